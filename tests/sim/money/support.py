"""A support person who suspends users amid everything, and lets them resume."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from market.accounts.suspensions import Part
from market.staff.base.roles import Machine
from market.staff.stopping import suspending
from tests.sim.jobs import Actor
from tests.sim.money.plans import MoneyPlan

if TYPE_CHECKING:
    from tests.sim.clients import Network

ROOT = Machine("root")
# By itself a suspension ends within this time of the wall clock, at the latest.
LONGEST_SECONDS = 86_400
WHY = "a ticket"


class SupportPerson(Actor):
    """Suspends parts of users.

    Args:
        network: leads to the daemons.
        plan: has the suspensions.
        until: when it stops.
    """

    def __init__(self, network: "Network", plan: MoneyPlan, until: float) -> None:
        super().__init__(network, "support", 0, until)
        self._plan = plan

    async def run(self) -> None:
        """Carry out all suspensions."""
        loop = asyncio.get_running_loop()
        begun = [loop.create_task(self._one(*each)) for each in self._plan.suspensions]
        for each in begun:
            await each

    async def _one(self, at: float, user_id: str, parts: tuple[str, ...], seconds: float) -> None:
        await asyncio.sleep(max(0.0, at - self.network.world.now))
        await self.insist("suspend", partial(self._suspend, user_id, parts))
        self.network.world.say(f"{self.name} suspends {user_id}: {', '.join(parts)}")
        await asyncio.sleep(seconds)
        await self.insist("resume", partial(self._resume, user_id))
        self.network.world.say(f"{self.name} resumes {user_id}")

    async def _suspend(self, user_id: str, parts: tuple[str, ...], market: Any) -> Any:
        return await suspending.suspend(
            market.context,
            market.letters,
            ROOT,
            user_id,
            parts=[Part(each) for each in parts],
            ends_at=market.context.now() + LONGEST_SECONDS,
            shown="a question",
            why=WHY,
        )

    async def _resume(self, user_id: str, market: Any) -> Any:
        return await suspending.resume(market.context, market.letters, ROOT, user_id, why=WHY)
