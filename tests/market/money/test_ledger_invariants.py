"""For any events in any order, no money is created, lost, or without an owner."""

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)
from msgspec.structs import replace
from support.base.brief import examples
from support.base.clock import Clock
from support.database import sqlite
from support.market.jobs import prove
from support.market.market import Market
from support.market.reviews import decide_review

from market.attempts.attempts import PROVEN_JOBS, Action, Ending, FailureKind, slots_left
from market.bandwidth.leases import Grant, Usage
from market.bandwidth.sessions import Purchase
from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.jobs.attempt_reports import Named
from market.jobs.jobs import NOTHING_SAID
from market.jobs.postings import NewJob
from market.jobs.specs import NewSpec, understand
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO, Currency
from market.trust.reputation import NEW_RELIABILITY
from proxyctl.protocol.jobspec import Payload
from storage.bandwidth import sessions as bandwidth_queries
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction
from storage.jobs import jobs as job_queries
from storage.jobs.jobs import JobRow

PEOPLE = 3
FEE_TENTHS = 1
REVIEW_SECONDS = 24 * 3_600
UNREVIEWED = (Code.JOB_NOT_FOUND, Code.NOT_REVIEWABLE)
LATE = {Code.ATTEMPT_NOT_CURRENT, Code.JOB_NOT_FOUND}

Result = TypeVar("Result")

person = st.integers(0, PEOPLE - 1)
amount = st.integers(1, 5 * MICRO)
jobs = Bundle("jobs")
sessions = Bundle("sessions")


class Review(NamedTuple):
    """Finished job without a payment yet: its parties, their parts of the price, and the time."""

    buyer: str
    worker: str
    price: int
    earned: int
    until: int
    is_disputed: bool = False


class Marketplace(RuleBasedStateMachine):
    """Users who buy and work, each with a device of their own, on one SQLite file.

    The test computes every balance from these actions, beside the ledger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="proxyd-invariants-")
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.clock = Clock()
        self.people: list[str] = []
        self.tokens: list[tuple[str, str]] = []
        self.wealth: dict[tuple[str, Currency], int] = {}
        self.revenue = dict.fromkeys(Currency, 0)
        self.deposited = dict.fromkeys(Currency, 0)
        self.grants: dict[str, Grant] = {}
        self.reported: dict[str, int] = {}
        self.active: dict[str, str] = {}
        # When the work of an attempt began, by job and number; and the open reviews.
        self.began: dict[tuple[str, int], int] = {}
        self.specified: set[str] = set()
        self.reviews: dict[str, Review] = {}
        self.market = self.run(self.opened())

    def run(self, coroutine: Awaitable[Result]) -> Result:
        async def awaited() -> Result:
            return await coroutine

        return self.runner.run(awaited())

    async def opened(self) -> Market:
        return Market(await open_store(sqlite.database(Path(self.folder.name))), self.clock)

    @property
    def store(self) -> Store:
        return self.market.store

    def teardown(self) -> None:
        self.market.passwords.close()
        self.run(self.store.close())
        self.runner.close()
        self.folder.cleanup()

    def attempt(self, coroutine: Awaitable[Any], *allowed: Code) -> Any:
        """Await something that may be refused; return the refusal's code then."""
        try:
            return self.run(coroutine)
        except MarketError as error:
            if error.code not in allowed:
                raise
            return error.code

    @initialize(target=jobs)
    def begin(self) -> Any:
        for _ in range(PEOPLE):
            user = self.run(self.market.person())
            self.people.append(user)
            self.wealth.update({(user, currency): 0 for currency in Currency})
            made = self.market.devices.create(
                user, name="rig", device_type="server", min_price_usd=None
            )
            token = self.run(made)
            self.tokens.append((token.device_id, token.token))
            self.run(prove(self.market, user))
        for number in range(PEOPLE):
            for currency in Currency:
                self.deposit(number, currency, 5 * MICRO)
        return multiple(*(self.put_up(number, 1_234_567, 1) for number in range(PEOPLE)))

    @rule(number=person, currency=st.sampled_from(Currency), paid=amount)
    def deposit(self, number: int, currency: Currency, paid: int) -> None:
        email = f"person{number + 1}@example.com"
        assert self.run(self.market.deposit(email, paid, currency=currency))
        self.wealth[self.people[number], currency] += paid
        self.deposited[currency] += paid

    # Bandwidth

    @rule(
        target=sessions,
        number=person,
        quota=st.integers(1, 2 * GB),
        price=st.integers(100_000, 3 * MICRO),
    )
    def buy(self, number: int, quota: int, price: int) -> Any:
        user = self.people[number]
        bought = self.attempt(
            self.market.bandwidth.buy(user, quota_bytes=quota, price_per_gb=price),
            Code.INSUFFICIENT_FUNDS,
        )
        if not isinstance(bought, Purchase):
            return multiple()
        self.active[bought.session_id] = user
        self.reported[bought.session_id] = 0
        return bought

    @rule(bought=sessions)
    def connect(self, bought: Purchase) -> None:
        if bought.session_id not in self.grants:
            opening = self.market.lease(bought)
            grant = self.run(opening)
            assert grant is not None
            assert (grant.lease_id is not None) == (bought.session_id in self.active)
            if grant.lease_id is not None:
                self.grants[bought.session_id] = grant
                self.reported[bought.session_id] = 0

    @rule(bought=sessions, share=st.sampled_from([0.0, 0.001, 0.3, 0.999, 1.0]))
    def use(self, bought: Purchase, share: float) -> None:
        usage = self._usage(bought, share)
        if usage is not None:
            self.run(self.market.leases.report([usage]))

    @rule(bought=sessions, share=st.sampled_from([0.0, 0.5, 1.0]))
    def disconnect(self, bought: Purchase, share: float) -> None:
        usage = self._usage(bought, share)
        if usage is not None:
            self.run(self.market.leases.release([usage]))
            del self.grants[bought.session_id]

    @rule(bought=sessions, share=st.sampled_from([0.0, 0.5, 1.0]))
    def end(self, bought: Purchase, share: float) -> None:
        usage = self._usage(bought, share)
        if usage is not None:
            self.market.traffic.usage[bought.session_id] = usage
        session = self.run(self.store.read(bandwidth_queries.find, bought.session_id))
        assert session is not None
        ending = [self.market.bandwidth.end(session.user_id, bought.session_id) for _ in range(3)]
        assert self.run(together(ending)) == [None] * 3
        self._settled()
        assert bought.session_id not in self.active

    @rule()
    def expire(self) -> None:
        self.clock.now += 31 * 86_400
        self.run(self.market.bandwidth.expire())
        self._settled()
        assert self.active == {}

    def _usage(self, bought: Purchase, share: float) -> Usage | None:
        """Return more use of a connected session; reported use never shrinks."""
        grant = self.grants.get(bought.session_id)
        if grant is None or grant.lease_id is None:
            return None
        used = max(self.reported[bought.session_id], int(grant.granted_bytes * share))
        self.reported[bought.session_id] = used
        return Usage(bought.session_id, grant.lease_id, used)

    def _settled(self) -> None:
        """Charge for sessions that have left `active`: their bytes, rounded down, 1 at least."""
        for session_id, user in list(self.active.items()):
            session = self.run(self.store.read(bandwidth_queries.find, session_id))
            assert session is not None
            if session.status != "active":
                owed = session.bytes_used * session.price_per_gb // GB
                owed = max(owed, 1) if session.bytes_used else 0
                self.wealth[user, Currency.USD] -= owed
                self.revenue[Currency.USD] += owed
                del self.active[session_id]
                self.grants.pop(session_id, None)

    # Jobs

    @rule(
        target=jobs,
        number=person,
        price=st.one_of(st.integers(0, 20), st.integers(0, 3 * MICRO)),
        hours=st.integers(1, 3),
        has_payload=st.booleans(),
    )
    def put_up(self, number: int, price: int, hours: int, has_payload: bool = False) -> Any:
        new = NewJob("a job", "script", price, hours, "", "")
        if has_payload:
            new_spec = NewSpec(payload=Payload(command=("true",)))
            spec = understand(new_spec, job_type="script", duration_hrs=hours, text="")
            new = replace(new, spec=spec)
        creating = self.market.jobs.create(self.people[number], new)
        made = self.attempt(creating, Code.INSUFFICIENT_FUNDS)
        if not isinstance(made, str):
            return multiple()
        if has_payload:
            self.specified.add(made)
        return made

    @rule(job=jobs, number=person)
    def accept(self, job: str, number: int) -> None:
        before = self._job(job)
        refusals = (Code.JOB_NOT_WAITING, Code.JOB_FAILED_HERE, Code.DEVICE_FULL)
        outcome = self.attempt(self._accept(job, number), *refusals)
        device_id, _ = self.tokens[number]
        is_mine = before.status == "running" and before.device_id == device_id
        has_no_chance = self.run(
            self.store.read(
                job_queries.has_no_chance,
                job_id=job,
                device_id=device_id,
                now=self.market.clock.now,
            )
        )
        left = self.run(self.store.read(slots_left, device_id, self.market.bounds()))
        if isinstance(outcome, JobRow):
            assert left is not None
            assert left >= 0
            return
        assert not is_mine
        is_free = before.status == "waiting" and not has_no_chance and left
        assert not is_free

    @rule(job=jobs, number=person)
    def start(self, job: str, number: int) -> None:
        before = self._job(job)
        if self.attempt(self._start(job, number), *LATE) is None:
            self.began.setdefault((job, before.attempts), self.clock.now)

    @rule(number=person, share=st.sampled_from([0, 1, 3]))
    def sync(self, number: int, share: int) -> None:
        """Let a device name its jobs, or forget some of them."""
        device_id, _ = self.tokens[number]
        seen = {each: self._job(each) for each in self._known()}
        held = [
            row for row in seen.values() if (row.status, row.device_id) == ("running", device_id)
        ]
        named = [Named(row.id, row.attempts, "running") for row in held[:share]]
        assert self.run(self._sync(number, named)) == []
        for each, row in seen.items():
            self._charge(row, self._job(each))

    @rule(job=jobs, number=person)
    def confirm(self, job: str, number: int) -> None:
        user, review = self.people[number], self.reviews.get(job)
        if self.attempt(self.market.reviews.confirm(user, job), *UNREVIEWED) is None and review:
            assert review.buyer == user
            self._pay(job)

    @rule(job=jobs, number=person)
    def dispute(self, job: str, number: int) -> None:
        user, review = self.people[number], self.reviews.get(job)
        disputing = self.market.reviews.dispute(user, job, "an empty file")
        if self.attempt(disputing, *UNREVIEWED) is None:
            assert review is not None
            assert review.buyer == user
            assert review.is_disputed or self.clock.now < review.until
            self.reviews[job] = review._replace(is_disputed=True)

    @rule(job=jobs, state=st.sampled_from([ReviewStatus.UPHELD, ReviewStatus.REVERSED]))
    def decide(self, job: str, state: ReviewStatus) -> None:
        review = self.reviews.get(job)
        deciding = decide_review(self.market.context, job, state)
        if isinstance(self.attempt(deciding, Code.NOT_REVIEWABLE), Code) or review is None:
            return
        assert review.is_disputed
        if state == ReviewStatus.UPHELD:
            self._pay(job)
            return
        del self.reviews[job]
        self.wealth[review.buyer, Currency.CREDIT] += review.price
        self.wealth[review.worker, Currency.CREDIT] -= review.earned

    @rule()
    def end_reviews(self) -> None:
        self.run(self.market.reviews.expire())
        for job, review in list(self.reviews.items()):
            if not review.is_disputed and review.until <= self.clock.now:
                self._pay(job)

    def _pay(self, job: str) -> None:
        """The worker has its part already, held, so this payment is the house's part."""
        review = self.reviews.pop(job)
        self.revenue[Currency.CREDIT] += review.price - review.earned

    @rule(job=jobs, number=person)
    def complete(self, job: str, number: int) -> None:
        self._change(job, self._complete(job, number), *LATE)

    @rule(job=jobs, number=person)
    def fail(self, job: str, number: int) -> None:
        self._change(job, self._fail(job, number), *LATE)

    @rule(job=jobs)
    def cancel(self, job: str) -> None:
        self._change(job, self._cancel(job), Code.JOB_OVER)

    @rule(job=jobs)
    def complete_as_its_worker(self, job: str) -> None:
        before = self._job(job)
        if before.status == "running":
            self._change(job, self._complete(job, self._holder(before)))
            assert self._job(job).status == "completed"

    @rule(job=jobs)
    def fail_as_its_worker(self, job: str) -> None:
        before = self._job(job)
        if before.status == "running":
            unsuccessful = self.run(
                self.store.read(
                    job_queries.count_unsuccessful,
                    job,
                    before.attempts,
                    proven_attempts=PROVEN_JOBS,
                    proven_reliability=NEW_RELIABILITY,
                )
            )
            assert unsuccessful.owners == unsuccessful.proven
            is_over = unsuccessful.owners == PEOPLE
            self._change(job, self._fail(job, self._holder(before)))
            assert self._job(job).status == ("failed" if is_over else "waiting")

    @rule(job=jobs)
    def fail_by_its_own_work(self, job: str) -> None:
        """A job with a payload then fails for good, and is paid for its time."""
        before = self._job(job)
        if before.status == "running" and before.id in self.specified:
            ending = Ending(FailureKind.JOB)
            self._change(job, self._fail(job, self._holder(before), ending), pays_for_time=True)
            assert self._job(job).status == "failed"

    @rule(
        buyer=person,
        number=person,
        price=amount,
        seconds=st.sampled_from([0, 1_234, 3_599, 20_000]),
        ending=st.sampled_from(["complete", "fail", "cancel"]),
        has_payload=st.booleans(),
    )
    def live(
        self,
        buyer: int,
        number: int,
        price: int,
        seconds: int,
        ending: str,
        has_payload: bool,
    ) -> None:
        """Take a job from its beginning to an end; one that fails does so until it is over."""
        self.deposit(buyer, Currency.CREDIT, price)
        job = self.put_up(buyer, price, 1, has_payload)
        while (before := self._job(job)).status == "waiting":
            device = (number + before.attempts) % len(self.tokens)
            self.accept(job, device)
            if self._job(job).status == "waiting":  # the device is full
                return
            self.start(job, device)
            self.clock.now += seconds
            self.accept(job, device)
            if ending == "cancel":
                self.cancel(job)
                assert self._job(job).status == "cancelled"
            elif ending == "complete":
                self.complete_as_its_worker(job)
            else:
                self.fail_as_its_worker(job)

    @rule(job=jobs, order=st.permutations(range(5)))
    def race(self, job: str, order: list[int]) -> None:
        before = self._job(job)
        number = self._holder(before) if before.device_id is not None else 0
        rivals = [
            self._accept(job, number),
            self._complete(job, number),
            self._fail(job, number),
            self._cancel(job),
            self.market.job_sweeper.take_back(),
        ]
        racing = together([rivals[each] for each in order])
        seen = {each: row for each in self._known() if (row := self._job(each))}
        started = self.clock.now
        for outcome in self.run(racing):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, MarketError), outcome
        assert self.clock.now == started
        for each, row in seen.items():
            self._charge(row, self._job(each), may_start_now=each == job)

    @rule()
    def take_back(self) -> None:
        seen = {each: self._job(each) for each in self._known()}
        self.run(self.market.job_sweeper.take_back())
        for each, row in seen.items():
            self._charge(row, self._job(each))

    @rule(seconds=st.sampled_from([1, 59, 601, 3_599, 3_600, 20_000]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(number=person)
    def heartbeat(self, number: int) -> None:
        async def report() -> None:
            device = await self.market.devices.authenticate(self.tokens[number][1])
            self.market.devices.heartbeat(device, {"cpu_cores": 4})

        self.run(report())

    def _known(self) -> list[str]:
        async def every(tx: Any) -> list[str]:
            return list(await tx.all(str, "SELECT id FROM jobs"))

        return self.run(self.store.read(every))

    def _job(self, job: str) -> JobRow:
        found = self.run(self.store.read(job_queries.find, job))
        assert found is not None
        return found

    def _holder(self, row: JobRow) -> int:
        return [device_id for device_id, _ in self.tokens].index(row.device_id or "")

    async def _accept(self, job: str, number: int) -> JobRow:
        device = await self.market.devices.authenticate(self.tokens[number][1])
        return await self.market.jobs.accept(device, job)

    async def _start(self, job: str, number: int) -> None:
        device = await self.market.devices.authenticate(self.tokens[number][1])
        await self.market.attempt_reports.started(device, job, None)

    async def _sync(self, number: int, named: list[Named]) -> list[Action]:
        device = await self.market.devices.authenticate(self.tokens[number][1])
        return await self.market.attempt_reports.sync(device, {}, named)

    async def _complete(self, job: str, number: int) -> None:
        device = await self.market.devices.authenticate(self.tokens[number][1])
        await self.market.jobs.complete(device, job, "done")

    async def _fail(self, job: str, number: int, ending: Ending = NOTHING_SAID) -> None:
        device = await self.market.devices.authenticate(self.tokens[number][1])
        await self.market.jobs.fail(device, job, "cannot", ending=ending)

    async def _cancel(self, job: str) -> None:
        row = await self.store.read(job_queries.find, job)
        assert row is not None
        await self.market.jobs.cancel(row.user_id, job)

    def _change(
        self, job: str, change: Awaitable[None], *allowed: Code, pays_for_time: bool = False
    ) -> None:
        before = self._job(job)
        refused = self.attempt(change, *allowed)
        after = self._job(job)
        assert refused is None or after == before
        self._charge(before, after, pays_for_time=pays_for_time)

    def _charge(
        self,
        before: JobRow,
        after: JobRow,
        *,
        may_start_now: bool = False,
        pays_for_time: bool = False,
    ) -> None:
        """Charge the buyer for a change of a job, and pay its worker."""
        is_paid = after.status in ("completed", "cancelled") or pays_for_time
        if before.status == after.status or not is_paid:
            assert before.earned == after.earned
            return
        gross = after.price_credit
        if after.status == "cancelled" or pays_for_time:
            began = self.began.get((after.id, after.attempts), self.clock.now)
            ran = self.clock.now - began
            gross = min(gross * ran // (after.duration_hrs * 3_600), gross)
            if after.device_id is None:
                gross = 0
        if before.status == "waiting" and after.device_id is not None:
            assert may_start_now
        if not gross and pays_for_time:
            return
        fee = gross * FEE_TENTHS // 10
        self.wealth[after.user_id, Currency.CREDIT] -= gross
        worker = None
        if after.device_id is not None:
            worker = self.people[self._holder(after)]
            self.wealth[worker, Currency.CREDIT] += gross - fee
        if after.status in ("completed", "failed") and after.id in self.specified:
            assert worker is not None
            until = self.clock.now + REVIEW_SECONDS
            self.reviews[after.id] = Review(after.user_id, worker, gross, gross - fee, until)
        else:
            self.revenue[Currency.CREDIT] += fee

    # A crash, and the invariants after every rule

    @rule()
    def crash(self) -> None:
        """Lose everything that is not in the store, and start again."""
        people = self.market._people
        self.market.passwords.close()
        self.run(self.store.close())
        self.market = self.run(self.opened())
        self.market._people = people
        self.run(self.market.leases.recover())
        self.grants.clear()
        self._settled()

    @rule(bought=sessions, share=st.sampled_from([0.0, 0.4, 1.0]))
    def crash_in_a_transfer(self, bought: Purchase, share: float) -> None:
        """Die with a lease open; the session goes on, unless every byte of it was used."""
        self.connect(bought)
        self.use(bought, share)
        self.crash()
        assert (bought.session_id not in self.active) or share < 1.0
        self.connect(bought)

    @invariant()
    def the_books_agree(self) -> None:
        report = self.run(audit_ledger(self.store))
        assert report.passed, report
        owned = self.run(self.store.read(balances))
        for currency in Currency:
            assert sum(each for account, each in owned.items() if account.endswith(currency)) == 0
            assert owned[ledger.deposits(currency)] == -self.deposited[currency]
            assert owned[ledger.revenue(currency)] == self.revenue[currency]
        assert all(each >= 0 for account, each in owned.items() if account.startswith("user:"))

    @invariant()
    def everybody_owns_what_they_should(self) -> None:
        owned = self.run(self.store.read(balances))
        for (user, currency), expected in self.wealth.items():
            spendable, waiting = ledger.available(user, currency), ledger.held(user, currency)
            assert owned[spendable] + owned[waiting] == expected


async def balances(tx: Transaction) -> dict[str, int]:
    """Return the balance of every account, in micro-units."""
    return dict(await tx.all(lambda *row: row, "SELECT id, balance FROM accounts"))


async def together(coroutines: list[Awaitable[Any]]) -> list[Any]:
    """Await all at once, and return the outcome of each."""
    return await asyncio.gather(*coroutines, return_exceptions=True)


# Shrinking takes its time.
TestMarketplace = pytest.mark.early(pytest.mark.timeout(400)(Marketplace.TestCase))
TestMarketplace.settings = settings(
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
