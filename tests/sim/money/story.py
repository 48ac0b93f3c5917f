"""The money of a run: the bank, the users, the staff, and the days in which all is settled."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from config.settings import PaymentSettings, PayoutSettings
from proxyd.wiring.build_services import PaymentServices
from tests.sim.money.bank import LATE_MOST_SECONDS, NAME, BankClient, SimBank
from tests.sim.money.earners import Earner, Teller
from tests.sim.money.payers import Desk, Notices, Payer
from tests.sim.money.payment_books import PaymentBooks
from tests.sim.money.payout_books import PayoutBooks
from tests.sim.money.plans import MoneyPlan
from tests.sim.money.senders import ConnectClient, Outside, SenderClient
from tests.sim.money.support import SupportPerson
from tests.sim.store import EPOCH, Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network
    from tests.sim.process import Life

DAY_SECONDS = 86_400
# At the end, after the days in which old rows are deleted.
DAYS = (1, 1, 2, 2)
SWEEP_SECONDS = 2.0
# After this time every request has arrived, and its answer as well.
ARRIVED_SECONDS = LATE_MOST_SECONDS + 1.0
PAYOUTS = PayoutSettings(
    methods=("bank", "paypal", "stripe"),
    minimum_usd=Decimal("0.1"),
    fee_usd=Decimal("0.03"),
    automatic_usd=Decimal("0.5"),
    method_wait_hours=0,
    first_wait_days=0,
    payouts_per_day=100,
    kyc_above_usd=Decimal(10**6),
)
SWEEPS: tuple[tuple[str, Callable[[Any], Coroutine[Any, Any, Any]]], ...] = (
    ("payments", lambda market: market.payments.sweep()),
    ("top-ups", lambda market: market.top_ups.sweep()),
    ("cards", lambda market: market.payments.cards.sweep()),
)
Request = Callable[[str, Callable[[Any], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]


class MoneyStory:
    """The money of a run that has some.

    Args:
        network: leads to the daemons.
        plan: all of it.
    """

    def __init__(self, network: "Network", plan: MoneyPlan) -> None:
        self.network = network
        self.plan = plan
        database = network.books.database
        self.bank = SimBank(
            network.world, plan.lies, lambda: EPOCH + network.world.now + database.leapt
        )
        self.books = PaymentBooks(network, self.bank)
        self.outside = Outside(
            network.world, plan.failures, lambda: EPOCH + network.world.now + database.leapt
        )
        self.payouts = PayoutBooks(network, self.outside)
        self._tellers: list[Teller] = []
        self._notices: Notices | None = None
        for each in network.processes:
            each.services_of = self.services
            each.checks = replace(
                each.checks,
                payment_seconds=2.0,
                top_up_seconds=2.5,
                card_seconds=3.0,
                payout_seconds=2.0,
            )
            each.settings = msgspec.structs.replace(
                each.settings,
                payments=PaymentSettings(top_up_month_usd=Decimal(200)),
                payouts=PAYOUTS,
            )

    def services(self, life: "Life") -> PaymentServices:
        """Return the services of a daemon."""
        banks = {NAME: BankClient(self.bank, life.loop)}
        if not self.plan.earners:
            return PaymentServices(banks, None, ())
        connect = ConnectClient(self.outside, life.loop)
        return PaymentServices(banks, connect, (SenderClient(self.outside, life.loop), connect))

    def tasks(self, until: float) -> list[Any]:
        """Return the actors."""
        self._notices = notices = Notices(self.network, self.bank, until)
        if self.plan.earners:
            self._tellers = [Teller(self.network, each, until, self.outside) for each in range(2)]
        return [
            *self._tellers,
            *(
                Earner(self.network, each, number, until, self.outside)
                for number, each in enumerate(self.plan.earners)
            ),
            *(
                Payer(self.network, each, number, until, self.bank, notices)
                for number, each in enumerate(self.plan.payers)
            ),
            Desk(self.network, self.bank, until),
            SupportPerson(self.network, self.plan, until),
            Calendar(self.network, self.plan),
        ]

    def committed(self, commit: Commit) -> None:
        """Compare the books after a commit."""
        self.books.committed(commit)
        if self.plan.earners:
            self.payouts.committed(commit)

    async def heal(self) -> None:
        """Let the bank lie no more, and decide about all refunds and disputes."""
        if self._notices is not None:
            await self._notices.end()
        self.bank.heal()
        self.outside.heal()
        # Days pass at once afterwards: a request would be on its way for all of them.
        await asyncio.sleep(ARRIVED_SECONDS)
        self._decide()

    async def sweep(self, request: Request) -> None:
        """Look at everything that is due, after some days."""
        for name, sweep in SWEEPS:
            await request(f"later {name}", sweep)
        for teller in self._tellers[:1]:
            await teller.finish(request)

    async def settle(self, request: Request) -> None:
        """Let days pass until every payment is settled, and compare everything."""
        for days in DAYS:
            self.network.books.database.leapt += days * DAY_SECONDS
            self.network.world.say(f"{days} days pass")
            await self.sweep(request)
            await asyncio.sleep(SWEEP_SECONDS)
        self.books.check()
        self.payouts.check()

    def _decide(self) -> None:
        """Let banks decide about all refunds and disputes."""
        for payment in tuple(self.bank.truth.payments.values()):
            for each in payment.returns:
                if each.state == "pending":
                    state = "done" if len(each.ref) % 2 else "void"
                    self.bank.truth.decide(payment.payment_id, each.ref, state)
            self.bank.states(payment.payment_id)


class Calendar:
    """Lets all wall clocks jump forward while things go wrong.

    Args:
        network: has the database.
        plan: the jumps.
    """

    def __init__(self, network: "Network", plan: MoneyPlan) -> None:
        self._network = network
        self._plan = plan

    async def run(self) -> None:
        """Let time pass."""
        world = self._network.world
        for at, seconds in self._plan.jumps:
            await asyncio.sleep(max(0.0, at - world.now))
            self._network.books.database.leapt += seconds
            world.say(f"{seconds:.0f} s pass")
