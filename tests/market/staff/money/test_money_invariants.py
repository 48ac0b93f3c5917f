"""For any refunds, corrections, approvals and purchases, the books and a model agree."""

import asyncio
import tempfile
import uuid
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.base.brief import examples
from support.base.clock import Clock
from support.database import postgres, sqlite
from support.market.market import Market
from support.market.staff_money import ASKER, SECOND

from market.base.errors import Code, MarketError
from market.money import ledger
from market.money.money import GB, MICRO, Currency
from market.staff.audit import audit_all
from market.staff.base.roles import Machine
from market.staff.money import money, second_person
from market.staff.money.approvals import Outcome, State
from market.staff.money.second_person_limit import WINDOW_SECONDS
from storage.engines.open import open_store
from storage.money import ledger as ledger_queries

LIMIT = 20
LIMITS = dict.fromkeys(Currency, LIMIT * MICRO)
AUTHORS = (ASKER, SECOND)
Result = TypeVar("Result")
units = st.integers(1, 40)


class Books(RuleBasedStateMachine):
    """One user, whose money two people move; the model counts whole units of USD."""

    url: str = ""
    server: tuple[str, str] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.folder = tempfile.TemporaryDirectory(prefix="proxyd-staff-money-")
        self.stack = AsyncExitStack()
        self.clock = Clock()
        self.available = 0
        self.paid_in = 0
        self.corrections = 0
        self.deposits: dict[str, int] = {}
        self.refunded: dict[str, int] = {}
        self.unapproved: list[tuple[int, Machine, int]] = []
        self.waiting: dict[str, tuple[Machine, int, str | None]] = {}
        self.number = 0
        self.market = self.run(self.opened())
        self.user = self.run(self.market.person())

    def run(self, coroutine: Awaitable[Result]) -> Result:
        async def awaited() -> Result:
            return await coroutine

        return self.runner.run(awaited())

    async def opened(self) -> Market:
        if self.server is None:
            self.url = sqlite.database(Path(self.folder.name))
        elif not self.url:
            server, template = self.server
            name = f"test_{uuid.uuid4().hex}"
            self.url = await self.stack.enter_async_context(
                postgres.database(server, name, template=template)
            )
        return Market(await open_store(self.url), self.clock)

    def teardown(self) -> None:
        self.market.passwords.close()
        self.run(self.market.store.close())
        self.run(self.stack.aclose())
        self.runner.close()
        self.folder.cleanup()

    def name(self) -> str:
        self.number += 1
        return f"r{self.number}"

    def attempt(self, coroutine: Awaitable[Outcome], *allowed: Code) -> Outcome | None:
        try:
            return self.run(coroutine)
        except MarketError as error:
            if error.code not in allowed:
                raise
            return None

    @rule(whole=units)
    def deposit(self, whole: int) -> None:
        reference = self.name()
        assert self.run(self.market.deposit("person1@example.com", whole * MICRO, reference))
        self.deposits[reference] = whole
        self.refunded[reference] = 0
        self.available += whole
        self.paid_in += whole

    @rule(whole=units)
    def spend(self, whole: int) -> None:
        """Hold money, which stays spent in this test."""

        async def buy() -> Any:
            return await self.market.bandwidth.buy(
                self.user, quota_bytes=whole * GB, price_per_gb=MICRO
            )

        if self.attempt(buy(), Code.INSUFFICIENT_FUNDS) is None:
            assert self.available < whole
            return
        self.available -= whole

    @rule(whole=st.one_of(units, units.map(lambda each: -each)), who=st.sampled_from(AUTHORS))
    def correct(self, whole: int, who: Machine) -> None:
        reference = self.name()
        for _ in range(2):  # the repetition changes nothing
            outcome = self.attempt(self._correct(whole, who, reference), Code.INSUFFICIENT_FUNDS)
        if outcome is None:
            assert self.available + whole < 0
            return
        self._asked(outcome, who, whole, None)

    @precondition(lambda self: self.deposits)
    @rule(whole=units, who=st.sampled_from(AUTHORS), data=st.data())
    def refund(self, whole: int, who: Machine, data: st.DataObject) -> None:
        deposit = data.draw(st.sampled_from(sorted(self.deposits)))
        reference = self.name()
        for _ in range(2):
            outcome = self.attempt(
                self._refund(whole, who, deposit, reference), Code.REFUND_TOO_LARGE
            )
        if outcome is None:
            return
        assert whole <= self.deposits[deposit] - self.refunded[deposit] + (
            whole if outcome.state is State.DONE_BEFORE else 0
        )
        self._asked(outcome, who, -whole, deposit)

    @precondition(lambda self: self.waiting)
    @rule(who=st.sampled_from(AUTHORS), data=st.data())
    def approve(self, who: Machine, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.waiting)))
        author, whole, deposit = self.waiting[request]
        outcome = self.attempt(
            second_person.approve(self.market.context, who, request),
            Code.NOT_PERMITTED,
            Code.APPROVAL_OVER,
            Code.INSUFFICIENT_FUNDS,
            Code.REFUND_TOO_LARGE,
        )
        if outcome is None:
            return
        assert who != author
        del self.waiting[request]
        self._moved(whole, deposit)

    @precondition(lambda self: self.waiting)
    @rule(who=st.sampled_from(AUTHORS), data=st.data())
    def refuse(self, who: Machine, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.waiting)))

        async def no() -> Any:
            return await second_person.refuse(self.market.context, who, request, "no")

        if self.attempt(no(), Code.APPROVAL_OVER) is not None:
            del self.waiting[request]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def race(self, data: st.DataObject) -> None:
        """Approve and refuse a request at the same time; both authors and twice each."""
        request = data.draw(st.sampled_from(sorted(self.waiting)))
        _, whole, deposit = self.waiting[request]
        context = self.market.context

        async def all_at_once() -> list[Any]:
            return await asyncio.gather(
                *(second_person.approve(context, who, request) for who in AUTHORS * 2),
                second_person.refuse(context, SECOND, request, "no"),
                return_exceptions=True,
            )

        outcomes = self.run(all_at_once())
        winners = [each for each in outcomes if not isinstance(each, MarketError)]
        assert len(winners) <= 1
        if winners:
            del self.waiting[request]
            if isinstance(winners[0], Outcome):
                self._moved(whole, deposit)

    @rule(hours=st.sampled_from([1, 24, 73]))
    def wait(self, hours: int) -> None:
        self.clock.now += hours * 3_600

    @rule()
    def crash(self) -> None:
        """Lose everything that is not in the store."""
        people = self.market._people
        self.market.passwords.close()
        self.run(self.market.store.close())
        self.market = self.run(self.opened())
        self.market._people = people

    @invariant()
    def the_books_agree_with_the_model(self) -> None:
        report = self.run(audit_all(self.market.store))
        assert report.passed, report
        for account, whole in (
            (ledger.available(self.user, Currency.USD), self.available),
            (ledger.corrections(Currency.USD), -self.corrections),
            (ledger.deposits(Currency.USD), -self.paid_in),
        ):
            found = self.run(self.market.store.read(ledger_queries.balance, account))
            assert found == whole * MICRO
        assert all(self.refunded[each] <= self.deposits[each] for each in self.deposits)
        since = self.clock.now - WINDOW_SECONDS
        for who in AUTHORS:
            alone = sum(
                each for at, author, each in self.unapproved if at > since and author == who
            )
            assert alone <= LIMIT
        assert (
            sum(each for at, _, each in self.unapproved if at > since) <= LIMIT
        )  # of one receiver

    def _asked(self, outcome: Outcome, who: Machine, whole: int, deposit: str | None) -> None:
        if outcome.state is State.WAITS:
            self.waiting[outcome.id] = (who, whole, deposit)
            return
        assert outcome.state is State.DONE_BEFORE
        self.unapproved.append((self.clock.now, who, abs(whole)))
        self._moved(whole, deposit)

    def _moved(self, whole: int, deposit: str | None) -> None:
        self.available += whole
        if deposit is None:
            self.corrections += whole
        else:
            self.refunded[deposit] -= whole
            self.paid_in += whole

    async def _correct(self, whole: int, who: Machine, reference: str) -> Outcome:
        return await money.correct(
            self.market.context,
            who,
            self.user,
            LIMITS,
            amount=whole * MICRO,
            currency=Currency.USD,
            reference=reference,
            why="asked",
        )

    async def _refund(self, whole: int, who: Machine, deposit: str, reference: str) -> Outcome:
        return await money.refund(
            self.market.context,
            who,
            self.user,
            LIMITS,
            amount=whole * MICRO,
            currency=Currency.USD,
            deposit=deposit,
            reference=reference,
            why="asked",
        )


@pytest.fixture
def place(engine: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, str] | None]:
    """The server and the template of the databases on PostgreSQL; None on SQLite."""
    if engine == "sqlite":
        yield None
        return
    yield (
        request.getfixturevalue("postgres_server"),
        request.getfixturevalue("postgres_template"),
    )


@pytest.mark.both_engines
@pytest.mark.timeout(400)
def test_no_money_is_created_or_lost(place: tuple[str, str] | None) -> None:
    class Placed(Books):
        server = place

    run_state_machine_as_test(
        Placed,
        settings=settings(
            max_examples=examples(12 if place is None else 6),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
