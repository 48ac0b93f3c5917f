"""Units on deploys and their replicas."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from market.deploys import rollouts
from market.deploys.templates import Change
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.topics.jobs import cancels, completes, fails, renews, takes_back
from tests.sim.stepped.world import service


async def _looks(name: str, side: Side) -> Any:
    await side.market.rollouts.look(side.world.deploys[name])


async def _scales(replicas: int, side: Side) -> Any:
    await side.market.rollouts.scale(side.buyer, side.world.deploys["fleet"], replicas)


async def _revises(replicas: int | None, side: Side) -> Any:
    return await side.market.rollouts.revise(
        side.buyer,
        side.world.deploys["fleet"],
        Change(image="web:2"),
        side.receipt(side.buyer),
        replicas=replicas,
    )


async def _restarts(side: Side) -> Any:
    deploy_id = side.world.deploys["fleet"]
    return await side.market.rollouts.restart(side.buyer, deploy_id, side.receipt(side.buyer))


async def _rolls_back(side: Side) -> Any:
    deploy_id, receipt = side.world.deploys["fleet"], side.receipt(side.buyer)
    await side.market.rollouts.revise(side.buyer, deploy_id, Change(image="web:2"))
    return await side.market.rollouts.rollback(side.buyer, deploy_id, 1, receipt)


async def _begins(image: str, side: Side) -> Any:
    await side.market.deploys.create(side.buyer, service(image), side.receipt(side.buyer))


async def _notes(side: Side) -> Any:
    deploy_id = side.world.deploys["fleet"]
    await side.market.store.write(rollouts._note, deploy_id, "a problem")


async def _ends(name: str, side: Side) -> Any:
    await side.market.deploys.cancel(side.buyer, side.world.deploys[name])


DEPLOYS: Mapping[str, Action] = {
    "looks at a deploy": partial(_looks, "fleet"),
    "scales a deploy down": partial(_scales, 1),
    "scales a deploy up": partial(_scales, 3),
    "revises a deploy": partial(_revises, None),
    "revises a deploy and scales it down": partial(_revises, 1),
    "restarts a deploy": _restarts,
    "rolls a deploy back": _rolls_back,
    "begins a deploy": partial(_begins, "web:1"),
    "begins a deploy in words": partial(_begins, ""),
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
