"""A halted session is cut, reported and given back without a settlement, alone and among nodes."""

import asyncio

import pytest
from support.market.market import Market
from support.market.metering import Node, admitted, use, written

from market.bandwidth.halts import HaltKind
from market.bandwidth.leases import Grant
from market.base.states import SessionStatus
from market.money.money import GB
from proxyd.metering import halting
from proxyd.metering.meter import Meter
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Refusal
from storage.bandwidth.halts import HaltRow, is_leased
from storage.engines.store import Transaction


class Connection:
    """A connection that is cut or finished."""

    def __init__(self, session: LiveSession) -> None:
        self.session = session
        self.is_open = True
        session.connections.add(self)

    def abort(self) -> None:
        self.is_open = False
        self.session.connections.discard(self)

    finish = abort


@pytest.fixture(params=["alone", "among others"])
def one(request: pytest.FixtureRequest) -> Meter:
    """The byte counter of a process."""
    if request.param == "alone":
        meter: Meter = request.getfixturevalue("meter")
        return meter
    node: Node = request.getfixturevalue("node")
    return node.meter


async def halted(tx: Transaction, session_id: str, at: int | None) -> None:
    await tx.run(
        "UPDATE bandwidth_sessions SET halted_at = :at WHERE id = :id", id=session_id, at=at
    )


def order(kind: HaltKind, user: str, session_id: str | None = None) -> HaltRow:
    return HaltRow(1, kind, user, session_id)


async def known(meter: Meter, session_id: str) -> LiveSession:
    session = meter.sessions.get(session_id)
    assert session is not None
    return session


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_halt_cuts_and_gives_back_and_a_resumption_goes_on(
    market: Market, one: Meter, is_whole: bool
) -> None:
    user, other = await market.person("10"), await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    others = await market.bandwidth.buy(other, quota_bytes=GB, price_per_gb=None)
    session, stays = await admitted(one, bought), await admitted(one, others)
    assert isinstance(session, LiveSession)
    assert isinstance(stays, LiveSession)
    connections = [Connection(session) for _ in range(3)]
    kept = Connection(stays)
    use(session, 1_000)
    await market.store.write(halted, bought.session_id, 1)
    subject = None if is_whole else bought.session_id
    assert one.halting.carry_out(order(HaltKind.HALT, user, subject)) == 3
    assert not any(each.is_open for each in connections)
    assert kept.is_open
    assert await admitted(one, bought) is Refusal.OVER
    await one.flush()
    assert await written(market, session) == 1_000
    assert not await market.store.read(is_leased, bought.session_id)
    assert one.halting.carry_out(order(HaltKind.HALT, user, subject)) == 0
    for _ in range(2):  # the store's refusal is remembered
        assert await admitted(one, bought) is Refusal.OVER
    row = await market.bandwidth.one(user, bought.session_id)
    assert (row.session.status, row.session.paid) == (SessionStatus.ACTIVE, None)

    await market.store.write(halted, bought.session_id, None)
    assert one.halting.carry_out(order(HaltKind.GO, user, subject)) == 0
    again = await admitted(one, bought)
    assert isinstance(again, LiveSession)
    use(again, 500)
    assert await admitted(one, others) is stays
    await one.stop()
    assert await written(market, again) == 1_500


async def test_a_halt_while_a_lease_is_opened_lets_no_client_in(
    market: Market, one: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    lease = market.leases.open

    async def slow(session_id: str) -> Grant | None:
        grant = await lease(session_id)
        await market.store.write(halted, bought.session_id, 1)
        one.halting.carry_out(order(HaltKind.HALT, user))
        assert isinstance(grant, Grant)
        return grant

    monkeypatch.setattr(market.leases, "open", slow)
    assert await admitted(one, bought) is Refusal.OVER
    monkeypatch.undo()
    await one.flush()
    assert not await market.store.read(is_leased, bought.session_id)
    assert await admitted(one, bought) is Refusal.OVER


async def test_an_end_that_fails_does_not_undo_a_halt(market: Market, one: Meter) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    session = await admitted(one, bought)
    one.sessions.cut(bought.session_id, SessionStatus.ENDED)
    await market.store.write(halted, bought.session_id, 1)
    one.halting.carry_out(order(HaltKind.HALT, user))
    one.sessions.restore(bought.session_id)
    assert isinstance(session, LiveSession)
    assert session.status is SessionStatus.ENDED
    await one.flush()
    assert await admitted(one, bought) is Refusal.OVER


async def test_a_stop_gives_halted_sessions_back(market: Market, one: Meter) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    session = await admitted(one, bought)
    assert isinstance(session, LiveSession)
    use(session, 7)
    one.halting.carry_out(order(HaltKind.HALT, user))
    await one.stop()
    assert await written(market, session) == 7
    assert not await market.store.read(is_leased, bought.session_id)


async def test_few_halts_are_remembered(
    one: Meter, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halting, "REMEMBERED_MAX", 2)
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    session = await admitted(one, bought)
    assert isinstance(session, LiveSession)
    one.halting.carry_out(order(HaltKind.HALT, user))
    assert one.halting.stops(session)
    for number in range(2):
        one.halting.carry_out(order(HaltKind.HALT, f"user {number}"))
    assert not one.halting.stops(session)
    one.halting.carry_out(order(HaltKind.HALT, user))
    await asyncio.sleep(0)
    monkeypatch.setattr(halting, "REMEMBERED_SECONDS", 0.0)
    assert not one.halting.stops(session)
