"""Slices of a session on many nodes: never more than was sold, in any order of events."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.base.brief import examples
from support.base.cases import cases
from support.base.clock import Clock
from support.market import nodes
from support.market.market import Market

from market.bandwidth import lease_transactions
from market.bandwidth.lease_book import (
    SHARE_OF_REMAINDER,
    SLICE_FIRST_BYTES,
    SLICE_LEAST_BYTES,
    Ask,
    Usage,
    slice_of,
)
from market.bandwidth.leases import Leases
from market.bandwidth.sessions import Purchase
from market.base.states import SessionStatus
from market.money.audit import audit_ledger
from market.money.money import GB
from storage.bandwidth import sessions as queries
from storage.bandwidth.sessions import SessionRow
from storage.engines.errors import ConstraintError, UnavailableError, UnknownOutcomeError
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction

QUOTA = 10 * SLICE_FIRST_BYTES + 7
NODES = 4

Result = TypeVar("Result")
node = st.integers(0, NODES - 1)
size = st.integers(0, 4 * SLICE_FIRST_BYTES)


@dataclass
class Holder:
    """Lease in a node's view, with the bytes that the node has delivered."""

    leases: Leases
    lease_id: str
    granted: int
    used: int = 0
    reported: int = 0


class Slices(RuleBasedStateMachine):
    """Nodes that lease one session, on one SQLite file: the SQL is that of every engine."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="proxyd-slices-")
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.clock = Clock()
        self.holders: dict[int, Holder] = {}
        self.counted = 0
        self.births = 0

    def run(self, awaitable: Awaitable[Result]) -> Result:
        async def wait() -> Result:
            return await awaitable

        return self.runner.run(wait())

    @initialize()
    def open(self) -> None:
        async def make() -> tuple[Store, Market, Purchase]:
            store = await open_store(f"sqlite:///{self.folder.name}/slices.db")
            market = Market(store, self.clock)
            user = await market.person("10")
            bought = await market.bandwidth.buy(user, quota_bytes=QUOTA, price_per_gb=None)
            return store, market, bought

        self.store, self.market, self.bought = self.run(make())

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.run(self._finish())
        finally:
            self.runner.close()
            self.folder.cleanup()

    async def _finish(self) -> None:
        """All of the rest can be used, to the byte, and the ledger agrees."""
        for number in list(self.holders):
            await self._kill(number)
        row = await self._row()
        assert (row.bytes_used, row.bytes_leased) == (self.counted, 0)
        if row.status == SessionStatus.ACTIVE:
            await self._lease(0)
            holder = self.holders[0]
            while True:
                holder.used = holder.granted
                usage = Usage(self.bought.session_id, holder.lease_id, holder.used)
                [share] = await holder.leases.exchange([Ask(usage, want_bytes=QUOTA)])
                assert share is not None
                if share.is_used_up:
                    break
                assert share.granted_bytes > holder.granted
                holder.granted = share.granted_bytes
            assert self.counted + holder.used == QUOTA
            await holder.leases.settle(self.bought.session_id, SessionStatus.ENDED, None)
            assert (await self._row()).status == SessionStatus.EXHAUSTED
        report = await audit_ledger(self.store)
        assert report.passed, report
        self.market.passwords.close()
        await self.store.close()

    async def _row(self) -> SessionRow:
        row = await self.store.read(queries.find, self.bought.session_id)
        assert row is not None
        return row

    async def _lease(self, number: int) -> None:
        self.births += 1
        leases = Leases(self.market.context)
        leases.node_id = f"node-{self.births}"
        await self.store.write(nodes.register, leases.node_id, self.clock.seconds())
        grant = await leases.open(self.bought.session_id)
        assert grant is not None
        assert grant.lease_id is not None
        self.holders[number] = Holder(leases, grant.lease_id, grant.granted_bytes)

    async def _exchange(self, holder: Holder, *, want: int = 0, keep: int | None = None) -> int:
        usage = Usage(self.bought.session_id, holder.lease_id, holder.used)
        [share] = await holder.leases.exchange([Ask(usage, want, keep)])
        assert share is not None
        holder.reported = holder.used
        return share.granted_bytes

    async def _kill(self, number: int) -> None:
        holder = self.holders.pop(number)
        self.counted += holder.reported
        before = await self.market.leases.nodes()
        self.clock.now += 1
        others = [each.leases.node_id for each in self.holders.values()]
        for other in others:
            await self.store.write(seen, other or "", self.clock.seconds())
        assert await self.market.leases.reap(before) == 1

    @precondition(lambda self: len(self.holders) < NODES)
    @rule(number=node)
    def lease(self, number: int) -> None:
        if number not in self.holders:
            self.run(self._lease(number))

    @rule(number=node, amount=size)
    def deliver(self, number: int, amount: int) -> None:
        if number in self.holders:
            holder = self.holders[number]
            holder.used += min(amount, holder.granted - holder.used)

    @rule(number=node, amount=size)
    def refund(self, number: int, amount: int) -> None:
        if number in self.holders:
            holder = self.holders[number]
            holder.used -= min(amount, holder.used)

    @rule(number=node, want=size)
    def top_up(self, number: int, want: int) -> None:
        if number in self.holders:
            holder = self.holders[number]
            holder.granted = self.run(self._exchange(holder, want=want))

    @rule(number=node, want=size)
    def top_up_and_never_hear_of_it(self, number: int, want: int) -> None:
        if number in self.holders:
            self.run(self._exchange(self.holders[number], want=want))

    @rule(number=node, heard=st.booleans())
    def give_back(self, number: int, heard: bool) -> None:
        if number in self.holders:
            holder = self.holders[number]
            holder.granted = holder.used + (holder.granted - holder.used) // 2
            if heard:
                assert self.run(self._exchange(holder, keep=holder.granted)) == holder.granted

    @rule(number=node)
    def report(self, number: int) -> None:
        if number in self.holders:
            holder = self.holders[number]
            holder.granted = self.run(self._exchange(holder))

    @rule(number=node)
    def kill(self, number: int) -> None:
        if number in self.holders:
            self.run(self._kill(number))

    @rule(number=node)
    def stop(self, number: int) -> None:
        if number in self.holders:
            holder = self.holders.pop(number)
            self.counted += holder.used
            usage = Usage(self.bought.session_id, holder.lease_id, holder.used)
            self.run(holder.leases.release([usage]))
            self.run(holder.leases.leave())

    @invariant()
    def no_byte_can_be_handed_out_twice(self) -> None:
        if hasattr(self, "store"):
            held = sum(each.granted for each in self.holders.values())
            assert self.counted + held <= QUOTA
            row = self.run(self._row())
            assert row.bytes_used + row.bytes_leased <= QUOTA


async def seen(tx: Transaction, node_id: str, now: int) -> None:
    await tx.run("UPDATE nodes SET seen_at = :now WHERE id = :id", now=now, id=node_id)


TestSlices = Slices.TestCase
TestSlices.settings = settings(
    max_examples=examples(30),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@cases(
    ("remainder", "want", "granted"),
    [
        (0, 100, 0),
        (7, 100, 7),
        (SLICE_LEAST_BYTES, GB, SLICE_LEAST_BYTES),
        (GB, SLICE_FIRST_BYTES, SLICE_FIRST_BYTES),
        (GB, GB, GB // SHARE_OF_REMAINDER),
    ],
)
def test_a_slice_leaves_something_for_others(remainder: int, want: int, granted: int) -> None:
    assert slice_of(remainder, want) == granted


async def test_a_node_that_is_not_known_gets_nothing(store: Store, clock: Clock) -> None:
    market = Market(store, clock)
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    market.leases.node_id = "reaped"
    with pytest.raises(ConstraintError):
        await market.leases.open(bought.session_id)
    row = await store.read(queries.find, bought.session_id)
    assert row is not None
    assert row.bytes_leased == 0
    market.passwords.close()


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_lone_daemon_takes_back_the_leases_of_nodes_and_a_node_does_not(
    store: Store, clock: Clock, is_alone: bool
) -> None:
    market = Market(store, clock)
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=QUOTA, price_per_gb=None)
    for name in ("here", "there"):
        await store.write(nodes.register, name, clock.seconds())
    market.leases.node_id = "there"
    grant = await market.leases.open(bought.session_id)
    assert grant is not None
    await market.leases.report([Usage(bought.session_id, grant.lease_id or "", 7)])
    market.leases.node_id = None if is_alone else "here"
    assert await market.leases.recover() == int(is_alone)
    row = await store.read(queries.find, bought.session_id)
    assert row is not None
    left = 0 if is_alone else grant.granted_bytes - 7
    assert (row.bytes_used, row.bytes_leased) == (7, left)
    assert len(await market.leases.nodes()) == (0 if is_alone else 2)
    report = await audit_ledger(store)
    assert report.passed, report
    market.passwords.close()


@pytest.mark.parametrize("lost", [lease_transactions.settle, lease_transactions.reap])
async def test_a_failed_settlement_after_a_dead_node_is_tried_again(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, lost: Callable[..., Any]
) -> None:
    """A simulation found it: no later call settled the session, and its money stayed on hold."""
    market = Market(store, clock)
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=7, price_per_gb=None)
    for name in ("here", "there"):
        await store.write(nodes.register, name, clock.seconds())
    market.leases.node_id = "there"
    grant = await market.leases.open(bought.session_id)
    assert grant is not None
    await market.leases.report([Usage(bought.session_id, grant.lease_id or "", 7)])
    market.leases.node_id = "here"
    dead = [each for each in await market.leases.nodes() if each.id == "there"]
    write = store.write

    async def lose(unit: Callable[..., Any], *args: Any, **changes: Any) -> Any:
        if unit is lost and unit is lease_transactions.settle:
            raise UnavailableError("no answer in time")
        result = await write(unit, *args, **changes)
        if unit is lost:
            raise UnknownOutcomeError("the answer to a commit was lost")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", lose)
        with pytest.raises(UnavailableError):
            await market.leases.reap(dead)
    assert await market.leases.reap([]) == 0
    row = await store.read(queries.find, bought.session_id)
    assert row is not None
    assert row.status == SessionStatus.EXHAUSTED
    report = await audit_ledger(store)
    assert report.passed, report
    market.passwords.close()


@pytest.mark.both_engines
async def test_a_session_that_a_node_leases_between_the_recall_and_the_end_is_recalled_again(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation found it: the bytes of a lease that no notice had recalled were free."""
    market = Market(store, clock)
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=QUOTA, price_per_gb=None)
    for name in ("here", "there", "late"):
        await store.write(nodes.register, name, clock.seconds())
    market.leases.node_id, there, late = "here", Leases(market.context), Leases(market.context)
    there.node_id, late.node_id = "there", "late"
    held = {there: await there.open(bought.session_id)}
    write, read = store.write, store.read
    recalls = 0

    async def reports(unit: Callable[..., Any], *args: Any, **changes: Any) -> Any:
        nonlocal recalls
        result = await write(unit, *args, **changes)
        if unit is lease_transactions.settle_or_recall and not result:
            recalls += 1
            [(leases, grant)] = held.items()
            held.clear()
            assert grant is not None
            await leases.release([Usage(bought.session_id, grant.lease_id or "", 7)])
        return result

    async def lease_late(unit: Callable[..., Any], *args: Any, **given: Any) -> Any:
        result = await read(unit, *args, **given)
        if unit is queries.leased_elsewhere and recalls == 1:
            assert not result
            held[late] = await late.open(bought.session_id)
        return result

    monkeypatch.setattr(store, "write", reports)
    monkeypatch.setattr(store, "read", lease_late)
    await market.leases.end(bought.session_id, SessionStatus.ENDED, None)
    monkeypatch.undo()
    row = await store.read(queries.find, bought.session_id)
    assert row is not None
    assert (row.status, row.bytes_used, recalls) == (SessionStatus.ENDED, 14, 2)
    report = await audit_ledger(store)
    assert report.passed, report
    market.passwords.close()


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_lease_that_came_back_with_an_older_database_is_closed(
    store: Store, clock: Clock
) -> None:
    """The node released it; a database that lost the release must not keep clients out."""
    market = Market(store, clock)
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=QUOTA, price_per_gb=None)
    await store.write(nodes.register, "here", clock.seconds())
    market.leases.node_id = "here"
    forgotten = await market.leases.open(bought.session_id)
    assert forgotten is not None
    await market.leases.report([Usage(bought.session_id, forgotten.lease_id or "", 7)])
    grant = await market.leases.open(bought.session_id)
    assert grant is not None
    assert grant.lease_id not in {None, forgotten.lease_id}
    row = await store.read(queries.find, bought.session_id)
    assert row is not None
    assert (row.bytes_used, row.bytes_leased) == (7, grant.granted_bytes)
    report = await audit_ledger(store)
    assert report.passed, report
    market.passwords.close()
