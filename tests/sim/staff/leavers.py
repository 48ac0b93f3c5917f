"""Users whose accounts end: they export their data, close the account, and some come back.

Both sides of disputes appeal against decisions.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from market.base.errors import MarketError
from market.events.idempotency import Replayed
from market.site.gate import NO_PAPERS, Papers
from tests.sim.clients import receipt_of
from tests.sim.jobs import Actor, Records
from tests.sim.letters import MailServer, PeopleBooks
from tests.sim.people import NETWORK, Person, PersonPlan

if TYPE_CHECKING:
    from tests.sim.staff.house import House

# The share of registrations and logins that agree to the texts.
AGREES_SHARE = 0.7
QUOTA, PRICE = 1_000_000, 1_000_000
_SIDES = """
    SELECT r.job_id, j.user_id FROM job_reviews AS r JOIN jobs AS j ON j.id = r.job_id
    WHERE r.state IN ('upheld', 'reversed') AND r.disputed_at IS NOT NULL
    UNION SELECT job_id, user_id FROM job_reviews
    WHERE state IN ('upheld', 'reversed') AND disputed_at IS NOT NULL ORDER BY 1, 2
"""


class Leaver(Person):
    """A user whose account ends.

    Args:
        house: has the texts to agree to, and the books.
        plan: the actions.
        number: of the person.
        until: when they stop.
        mail: has their letters.
        books: note what their keys buy.
        records: of the answers to their devices.
    """

    def __init__(
        self,
        house: "House",
        plan: PersonPlan,
        number: int,
        until: float,
        mail: MailServer,
        books: PeopleBooks,
        records: Records,
    ) -> None:
        super().__init__(house.network, plan, number, until, mail, books, records)
        self.name = f"leaver{number}"
        self._house = house
        self._draw = house.network.world.draw(self.name)

    async def papers(self, market: Any) -> Papers:
        """Agree to the valid texts, in most cases."""
        if self._draw.random() >= AGREES_SHARE:
            return NO_PAPERS
        versions = await market.texts.versions()
        accepted = {each.kind: each.version for each in versions if each.is_valid}
        self._house.books.agrees(self.name, accepted)
        return Papers(accepted=accepted)

    async def do_session(self) -> Any:
        """Buy a session, which ends with the account."""
        self._count += 1
        key = f"{self.name} session {self._count}"

        async def buy(market: Any, caller: Any) -> Any:
            receipt = receipt_of(market, caller.profile.user_id, key)
            try:
                return await market.bandwidth.buy(
                    caller.profile.user_id, quota_bytes=QUOTA, price_per_gb=PRICE, receipt=receipt
                )
            except Replayed:
                return None

        return await self._as_caller("session", buy)

    async def do_cancel(self) -> Any:
        """Cancel the open jobs, and remove the devices."""

        async def cancel(market: Any, caller: Any) -> None:
            user_id = caller.profile.user_id
            for row in await market.jobs.page_of_user(user_id, status=None, before="", limit=50):
                try:
                    await market.jobs.cancel(user_id, row.id)
                except MarketError:
                    continue  # it is over

        done = await self._as_caller("cancel", cancel)
        while self.agents and not isinstance(await self.do_remove(), MarketError):
            self.agents.pop()
        return done

    async def do_export(self) -> Any:
        """Ask for an export, and look at it."""

        async def export(market: Any, caller: Any) -> Any:
            await market.leaving.exports.ask(caller.profile.user_id)
            return await self._house.export(market, caller.profile.user_id)

        return await self._as_caller("export", export)

    async def do_close(self) -> Any:
        """Close the account; the next login opens it again."""

        async def close(market: Any, caller: Any) -> Any:
            return await market.leaving.closing.close(
                caller, self._password, waives=True, client=NETWORK
            )

        return await self.insist("close", lambda market: self._called(market, close))

    async def _called(self, market: Any, make: Any) -> Any:
        return await make(market, await market.accounts.authenticate(self._token))

    async def do_read(self) -> Any:
        """Read the texts and the status, as any visitor."""

        async def read(market: Any) -> Any:
            for each in await market.texts.versions():
                await market.texts.body(each, each.locale("de"))
            return await market.status.report()

        return await self.insist("read", read)


class Appellants(Actor):
    """Both sides of decided disputes, who appeal.

    Args:
        house: has the network.
        times: of the appeals.
        until: when they stop.
    """

    def __init__(self, house: "House", times: tuple[float, ...], until: float) -> None:
        super().__init__(house.network, "appellants", 0, until)
        self._times = times

    async def run(self) -> None:
        """Appeal at each time, against every decision."""
        world = self.network.world
        for at in self._times:
            await asyncio.sleep(max(0.0, at - world.now))
            for job_id, user_id in self.network.books.database.rows(_SIDES):
                done = await self.insist(
                    "appeal",
                    lambda market, job=job_id, user=user_id: self._appeal(market, user, job),
                )
                shown = done.code if isinstance(done, MarketError) else "done"
                world.say(f"{user_id} appeals: {shown}")

    async def _appeal(self, market: Any, user_id: str, job_id: str) -> Any:
        await market.appeals.listed(user_id, limit=10)
        return await market.appeals.appeal(user_id, job_id, "it is unjust")
