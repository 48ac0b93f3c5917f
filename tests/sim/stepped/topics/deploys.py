"""Units on deploys and their replicas."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from market.deploys import rollouts
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.topics.jobs import cancels, completes, fails, renews, takes_back


async def _looks(name: str, side: Side) -> Any:
    await side.market.rollouts.look(side.world.deploys[name])


async def _scales(replicas: int, side: Side) -> Any:
    await side.market.rollouts.scale(side.buyer, side.world.deploys["fleet"], replicas)


async def _notes(side: Side) -> Any:
    deploy_id = side.world.deploys["fleet"]
    await side.market.store.write(rollouts._note, deploy_id, "a problem")


async def _ends(name: str, side: Side) -> Any:
    await side.market.deploys.cancel(side.buyer, side.world.deploys[name])


DEPLOYS: Mapping[str, Action] = {
    "looks at a deploy": partial(_looks, "fleet"),
    "scales a deploy down": partial(_scales, 1),
    "scales a deploy up": partial(_scales, 3),
    "cancels a deploy": partial(_ends, "fleet"),
    "cancels another deploy": partial(_ends, "second fleet"),
    "completes a replica": partial(completes, "replica 1 of fleet", "over"),
    "fails a replica": partial(fails, "replica 1 of fleet"),
    "takes a replica back": partial(takes_back, "replica 1 of fleet"),
    "takes a replica of another deploy back": partial(takes_back, "replica 1 of second fleet"),
    "renews a replica": partial(renews, "replica 1 of fleet"),
    "notes a problem": _notes,
    "cancels a replica": partial(cancels, "replica 1 of fleet"),
}

# Described in words, so that nothing but its jobs is locked.
WORDS: Mapping[str, Action] = {
    "completes the first replica": partial(completes, "replica 1 of in words", "over"),
    "completes the second replica": partial(completes, "replica 2 of in words", "over"),
    "cancels the first replica": partial(cancels, "replica 1 of in words"),
    "cancels a deploy in words": partial(_ends, "in words"),
    "takes the second replica back": partial(takes_back, "replica 2 of in words"),
}
