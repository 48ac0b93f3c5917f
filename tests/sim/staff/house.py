"""The staff of a run: its desks at the daemons, its members, and the users whose accounts end."""

import io
from functools import partial
from typing import TYPE_CHECKING, Any

from market.base.sealing import Sealing
from market.erasure.erasing import Tools
from market.staff.abuse.exit_use import Found, Question
from market.staff.desk import StaffDesk, StaffTerms
from market.staff.money.user_limits import PriceBounds
from proxyd.wiring import slices
from proxyd.wiring.abuse_settings import rules_of
from tests.sim.jobs import Records
from tests.sim.letters import MailServer, PeopleBooks
from tests.sim.staff.books import HouseBooks
from tests.sim.staff.finance import Finance
from tests.sim.staff.leavers import Appellants, Leaver
from tests.sim.staff.members import LIMITS, MemberActor
from tests.sim.staff.operators import Operator
from tests.sim.staff.plans import HousePlan
from tests.sim.staff.support import Support, records_of, search_everywhere
from tests.sim.store import Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network
    from tests.sim.process import Life

ACTORS: dict[str, type[MemberActor]] = {
    "operator": Operator,
    "finance": Finance,
    "support": Support,
}
PRICES = PriceBounds(50, 200)
_USED = "SELECT id FROM bandwidth_sessions ORDER BY id LIMIT 8"


class House:
    """The staff of a run that has one.

    Args:
        network: leads to the daemons.
        plan: all of it.
        key: signs and seals at the daemons.
    """

    def __init__(self, network: "Network", plan: HousePlan, key: bytes) -> None:
        self.network = network
        self.plan = plan
        self.books = HouseBooks(network)
        self.members: list[MemberActor] = []
        # By the marketplace of a daemon.
        self.desks: dict[Any, StaffDesk] = {}
        self._key = key

    def begin(self, life: "Life") -> None:
        """Open the desk of a daemon."""
        market, settings = life.market, life.process.settings
        terms = StaffTerms(
            limits=LIMITS,
            prices=PRICES,
            logs=slices.log_terms(settings),
            outcomes=market.jobs.outcomes,
            artifacts=market.artifacts,
            search=partial(self._search, market),
            rules=rules_of(settings),
            app_url="https://app.example.com",
            exports=market.leaving.exports,
        )
        self.desks[market] = StaffDesk(
            market.context, market.passwords, self._key, market.letters, terms
        )

    def tools(self, market: Any) -> Tools:
        """Return the tools of an erasure."""
        return Tools(market.letters, Sealing(self._key, b"outbox"))

    async def _search(self, market: Any, asked: Question) -> Found:
        rows = self.network.books.database.rows(_USED)
        return await search_everywhere(market, asked, records_of(rows, asked))

    async def export(self, market: Any, user_id: str) -> int:
        """Write the export of a user, look at it, and return its size."""
        file = io.BytesIO()
        await market.leaving.exports.write(user_id, file)
        self.books.read(file.getvalue(), user_id)
        return len(file.getvalue())

    def tasks(
        self, until: float, mail: MailServer, people: PeopleBooks, records: Records
    ) -> list[Any]:
        """Return the actors."""
        self.members = [
            ACTORS[each.role](self, each, number, until)
            for number, each in enumerate(self.plan.members)
        ]
        leavers = [
            Leaver(self, each, number, until, mail, people, records)
            for number, each in enumerate(self.plan.leavers)
        ]
        return [*self.members, *leavers, Appellants(self, self.plan.appeals, until)]

    def committed(self, commit: Commit) -> None:
        """Look at what a commit has changed."""
        self.books.committed(commit)
