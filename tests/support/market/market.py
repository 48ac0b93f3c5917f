"""A marketplace without a network: the rules over a store, with a clock that tests set."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

from market import market
from market.accounts.accounts import LoginLimits
from market.accounts.bounds import Bounds
from market.accounts.passwords import Passwords
from market.accounts.referrals import Rewards
from market.accounts.tokens import Tokens
from market.attempts.renewals import Renewals
from market.bandwidth.leases import Grant, Leases, Usage, hold_of
from market.bandwidth.sessions import Purchase, Terms
from market.base.ids import Identifiers
from market.base.sealing import Sealing
from market.base.states import SessionStatus
from market.deploys.deploys import Rates
from market.devices.devices import Devices
from market.events.context import Context
from market.exits.consents import ExitTerms
from market.jobs.overdue import Overdue
from market.jobs.sweeper import JobSweeper, JobSweeps
from market.jobs.terms import JobTerms
from market.market import Keys, Rules
from market.money.money import MICRO, Currency, micro
from market.payments.provider import Provider
from market.payments.terms import PaymentTerms
from market.payouts.connect import Connect
from market.payouts.details import METHODS_PURPOSE
from market.payouts.terms import MethodKind, PayoutTerms
from storage.blobs.base import Blobs
from storage.blobs.local import LocalBlobs
from storage.engines.store import Store, Transaction
from storage.money.ledger import find_hold, insert_hold
from support.base.clock import Clock
from support.market import deposits

TERMS = Terms(
    price_default=1_000_000,
    price_floor=100_000,
    lifetime_seconds=30 * 86_400,
    public_host="proxy.example.com",
    public_port=1080,
    passwordless_ports=(2001, 2002),
)

SWEEP_SECONDS = 15
WAITING_SECONDS = 30 * 86_400

REWARDS = Rewards(referrer=50_000_000, referred=25_000_000)
RULES = Rules(
    terms=TERMS,
    jobs=JobTerms(fee=1_000, waiting_seconds=WAITING_SECONDS),
    rates=Rates(by_model={"a100": 1_500_000}, default=1_000_000, credit=10_000),
    rewards=REWARDS,
    bounds=Bounds(),
    login_limits=LoginLimits(),
    app_url="https://app.example.com",
    exits=ExitTerms(is_offered=True),
    payments=PaymentTerms(top_up_month=200 * MICRO),
    payouts=PayoutTerms(methods=frozenset(MethodKind) - {MethodKind.STRIPE}),
    origin_days=90,
)
SECRET = b"k" * 40
SEALING = Sealing(SECRET, b"outbox")
JOB_SECRETS = Sealing(SECRET, b"job secrets")
APP_KEYS = Sealing(SECRET, b"app keys")
WEBHOOK_SECRETS = Sealing(SECRET, b"webhook secrets")
PAYOUT_METHODS = Sealing(SECRET, METHODS_PURPOSE)
STAFF_SEALING = Sealing(SECRET, b"staff factors")


class NoTraffic:
    """A `Traffic` that carries nothing, and remembers the cuts."""

    def __init__(self) -> None:
        self.cuts: list[tuple[str, SessionStatus]] = []
        self.restored: list[str] = []
        self.settled = 0
        self.entries: list[tuple[int, tuple[str, ...]]] = []
        self.live: dict[str, int] = {}
        self.usage: dict[str, Usage] = {}

    def used_bytes(self, session_id: str, lease_id: str) -> int | None:
        return self.live.get(lease_id)

    def cut(self, session_id: str, status: SessionStatus) -> Usage | None:
        self.cuts.append((session_id, status))
        return self.usage.get(session_id)

    def restore(self, session_id: str) -> None:
        self.restored.append(session_id)

    def granted(self, port_index: int, addresses: Sequence[str]) -> None:
        self.entries.append((port_index, tuple(addresses)))

    async def settle_exhausted(self) -> None:
        self.settled += 1


class Market(market.Market):
    """The marketplace as the daemon builds it, over one store and a clock that tests set."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        blobs: Blobs | None = None,
        providers: Mapping[str, Provider] | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.identifiers = Identifiers(clock.milliseconds)
        self.tokens = Tokens(SECRET, lifetime_seconds=86_400)
        self.traffic = NoTraffic()
        context = Context(store, self.identifiers, clock.seconds)
        super().__init__(
            context,
            RULES,
            Keys(
                Passwords(time_cost=1, memory_kib=64),
                self.tokens,
                SEALING,
                JOB_SECRETS,
                APP_KEYS,
                WEBHOOK_SECRETS,
                PAYOUT_METHODS,
            ),
            leases=Leases(context),
            traffic=self.traffic,
            observed_seconds=clock.steady,
            blobs=blobs or LocalBlobs(Path(os.devnull)),  # a folder that nothing can be in
            providers=providers,
            connect=connect,
        )
        self._people = 0

    async def lease(self, bought: Purchase) -> Grant | None:
        """Lease a session as its meter does when a client shows its credentials."""
        session_id = await self.leases.find(bought.username, bought.password.encode())
        return None if session_id is None else await self.leases.open(session_id)

    @asynccontextmanager
    async def without_hold(self, bought: Purchase) -> AsyncIterator[None]:
        """Take the hold of a session away, so that it cannot be settled; then put it back."""
        hold = await self.store.read(find_hold, hold_of(bought.session_id))
        assert hold is not None

        async def delete(tx: Transaction) -> None:
            assert await tx.run("DELETE FROM holds WHERE id = :id", id=hold.id) == 1

        await self.store.write(delete)
        try:
            yield
        finally:
            await self.store.write(insert_hold, hold, self.clock.seconds())

    async def person(self, usd: str = "0", credit: str = "0") -> str:
        """Register a user with money, and return the identifier."""
        self._people += 1
        email = f"person{self._people}@example.com"
        login, _ = await self.accounts.register(
            username=f"person{self._people}", email=email, password="long enough"
        )
        if Decimal(usd):
            await self.deposit(email, micro(Decimal(usd)))
        if Decimal(credit):
            await self.deposit(email, micro(Decimal(credit)), currency=Currency.CREDIT)
        return login.profile.user_id

    def sweeper(self, sweeps: JobSweeps) -> JobSweeper:
        """Return the sweeper of jobs of a new daemon, with its own bounds."""
        devices, renewals = Devices(self.context, Bounds), Renewals(self.context)
        overdue = Overdue(self.context, devices, renewals, RULES.jobs.leases, self.clock.steady)
        return JobSweeper(
            self.context, overdue, self.jobs.outcomes, self.jobs.notices, WAITING_SECONDS, sweeps
        )

    async def silence(self, seconds: int, sweeper: JobSweeper | None = None) -> int:
        """Advance the time, and sweep silent attempts like the daemon. Return the number taken
        back.
        """
        end, taken = self.clock.now + seconds, 0
        while self.clock.now < end:
            self.clock.now += min(SWEEP_SECONDS, end - self.clock.now)
            taken += await (sweeper or self.job_sweeper).take_back()
        return taken

    async def deposit(
        self,
        email: str,
        amount: int,
        reference: str | None = None,
        currency: Currency = Currency.USD,
    ) -> bool:
        """Pay money in."""
        transfer = self.identifiers.new()
        return await self.store.write(
            deposits.deposit,
            self.context,
            email=email,
            currency=currency,
            amount=amount,
            reference=reference or transfer,
            transfer_id=transfer,
            now=self.clock.seconds(),
        )
