"""The known sessions agree with the store after failures in between."""

import asyncio

from support.market.market import Market
from support.market.metering import admitted, session_of, use

from market.base.states import SessionStatus
from market.money.money import GB
from proxyd.metering.meter import MeterBounds, solo_meter
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import MemoryBounds, Sessions
from proxyd.wire.events import Refusal

FORGETFUL = MemoryBounds(remember_seconds=0.0)


async def test_a_cut_that_is_taken_back_leaves_a_session_usable_that_was_being_leased(
    market: Market,
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    asking = asyncio.create_task(admitted(meter, bought))
    await asyncio.sleep(0)
    meter.cut(bought.session_id, SessionStatus.ENDED)
    assert await asking is Refusal.OVER
    meter.restore(bought.session_id)
    await meter.flush()
    session = await admitted(meter, bought)
    assert isinstance(session, LiveSession)
    assert session.available == GB
    await meter.stop()


async def test_an_unknown_session_that_could_not_be_ended_is_never_forgotten_in_use(
    market: Market,
) -> None:
    """No report counted its bytes then, and an end cut no connection."""
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    bounds = MeterBounds(memory=FORGETFUL)
    meter = solo_meter(
        market.leases, market.clock.seconds, connections_per_session=10, bounds=bounds
    )
    meter.cut(bought.session_id, SessionStatus.ENDED)
    meter.restore(bought.session_id)
    session = await admitted(meter, bought)
    assert isinstance(session, LiveSession)
    meter.sessions.forget_old(())
    use(session, 1_000)
    usage = meter.cut(session.id, SessionStatus.ENDED)
    assert usage is not None
    assert usage.used_bytes == 1_000
    await meter.stop()


async def test_a_leased_session_is_not_forgotten_in_spite_of_notes_about_it() -> None:
    sessions = Sessions(bounds=FORGETFUL)
    session = known(sessions)
    sessions.forget_later(session.id)
    sessions.forget_old(())
    assert sessions.get(session.id) is session


async def test_refusals_of_sessions_without_clients_are_bounded() -> None:
    sessions = Sessions(bounds=MemoryBounds(unseen_most=2))
    until = asyncio.get_running_loop().time() + 100
    for session_id in ("first", "second", "third"):
        sessions.refuse(session_id, SessionStatus.ENDED, until)
    kept = [sessions.refused_until(each) for each in ("first", "second", "third")]
    assert kept == [None, until, until]


async def test_a_session_past_its_time_is_not_made_usable_by_a_cut_that_is_taken_back(
    market: Market,
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    market.clock.now += 31 * 86_400
    assert await admitted(meter, bought) is Refusal.OVER
    meter.cut(bought.session_id, SessionStatus.EXPIRED)
    meter.restore(bought.session_id)
    assert meter.live == 0
    await meter.stop()


def known(sessions: Sessions) -> LiveSession:
    """Return an active session that is known."""
    session, grant = session_of(100)
    sessions.add(session, grant)
    return session


def take_back(sessions: Sessions, session: LiveSession) -> None:
    """Take a cut of a session back, whose lease is open."""
    restored = sessions.restore(session.id)
    if restored is not None:
        assert restored is session
        sessions.confirm(session)


async def test_a_session_that_was_cut_twice_is_usable_when_both_are_taken_back() -> None:
    sessions = Sessions()
    session = known(sessions)
    for _ in range(2):
        sessions.cut(session.id, SessionStatus.ENDED)
    take_back(sessions, session)
    assert session.status is SessionStatus.ENDED
    take_back(sessions, session)
    assert session.status is SessionStatus.ACTIVE
    take_back(sessions, session)
    sessions.cut(session.id, SessionStatus.ENDED)
    take_back(sessions, session)
    assert session.status is SessionStatus.ACTIVE


async def test_a_session_that_is_cut_again_before_its_lease_is_confirmed_stays_refused() -> None:
    sessions = Sessions()
    session = known(sessions)
    sessions.cut(session.id, SessionStatus.ENDED)
    assert sessions.restore(session.id) is session
    sessions.cut(session.id, SessionStatus.ENDED)
    sessions.confirm(session)
    assert session.status is SessionStatus.ENDED


async def test_a_stored_end_is_not_taken_back_by_a_request_that_gave_up_on_its_answer() -> None:
    """The session's clients were let in again, and their bytes were not billed."""
    sessions = Sessions()
    session = known(sessions)
    sessions.cut(session.id, SessionStatus.ENDED)
    sessions.end(session.id, SessionStatus.ENDED)  # the notice comes before the answer
    take_back(sessions, session)
    assert session.status is SessionStatus.ENDED


async def test_an_exhausted_session_is_not_made_usable_by_a_cut_that_is_taken_back() -> None:
    sessions = Sessions()
    session = known(sessions)
    session.status = SessionStatus.EXHAUSTED
    sessions.cut(session.id, SessionStatus.ENDED)
    take_back(sessions, session)
    assert session.status is SessionStatus.EXHAUSTED


async def test_an_ended_session_is_forgotten_after_a_while_unless_it_is_to_be_kept() -> None:
    forgotten: list[str] = []
    sessions = Sessions(forgotten.append, FORGETFUL)
    session = known(sessions)
    sessions.end(session.id, SessionStatus.ENDED)
    sessions.forget_old(kept=[session.id])
    assert forgotten == []
    assert sessions.of_username(session.username) is session
    sessions.forget_old(kept=())
    assert forgotten == [session.id]
    assert sessions.of_username(session.username) is None
    assert list(sessions) == []
