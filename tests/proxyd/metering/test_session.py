"""A session's budget: what is certain of its counts, and the invariants that are asserted."""

import pytest
from support.sessions import Stalled, session_of, use

from market.money import GB
from market.states import SessionStatus
from proxyd.metering.in_transit import STALLED_ASKED
from proxyd.metering.session import LiveSession


def test_sinks_that_stand_still_are_asked_a_few_at_a_time_and_each_in_its_turn() -> None:
    session = session_of(GB)
    sinks = [Stalled() for _ in range(3 * STALLED_ASKED)]
    for sink in sinks:
        use(session, 10, sink)
    assert session.certain() == 0
    assert {each.asked for each in sinks} == {1}
    for sink in sinks:
        sink.waiting = 0
    for turn in (1, 2, 3):
        assert session.certain() == 10 * STALLED_ASKED * turn
        assert sum(each.asked for each in sinks) == len(sinks) + STALLED_ASKED * turn
    assert session.certain() == session.used


def test_a_sink_that_takes_more_is_asked_at_once_however_many_stand_still() -> None:
    session = session_of(GB)
    sinks = [Stalled() for _ in range(3 * STALLED_ASKED)]
    for sink in sinks:
        use(session, 10, sink)
    session.certain()
    sinks[-1].waiting = 0
    use(session, 5, sinks[-1])
    assert session.certain() == 15


def test_a_sink_that_claims_more_than_it_was_given_makes_nothing_uncertain_again() -> None:
    session = session_of(GB)
    sink = Stalled()
    sink.waiting = 4
    use(session, 10, sink)
    assert session.certain() == 6
    sink.waiting = 9
    assert session.certain() == 6


# --- the invariants ------------------------------------------------------------------------------


def moved(session: LiveSession) -> tuple[int, int]:
    return session.available, session.used


def test_each_move_of_a_byte_keeps_the_invariants() -> None:
    session, sink = session_of(100), Stalled()
    session.take(30, None)
    session.check()
    session.deliver(20, sink)
    assert session.certain() == 10
    session.give_back(10)
    assert moved(session) == (80, 20)
    session.forget(sink)
    session.refund(10)
    assert moved(session) == (90, 10)
    assert session.certain() == 10


@pytest.mark.parametrize(
    ("status", "left"),
    [
        (SessionStatus.ACTIVE, (80, 20)),
        (SessionStatus.EXHAUSTED, (70, 20)),
        (SessionStatus.ENDED, (70, 30)),
    ],
)
def test_what_is_refunded_is_handed_out_again_only_while_the_session_is_active(
    status: SessionStatus, left: tuple[int, int]
) -> None:
    session = session_of(100)
    use(session, 30)
    session.status = status
    session.refund(10)
    assert moved(session) == left
    session.check()


def test_counts_that_cannot_be_are_not_reported() -> None:
    """Delivered without being taken, taken from nothing, refunded below what was reported."""
    session = session_of(100)
    session.deliver(1)
    with pytest.raises(AssertionError):
        session.certain()
    session = session_of(100)
    session.take(101, None)
    with pytest.raises(AssertionError):
        session.certain()
    session = session_of(100)
    use(session, 10)
    session.reported = session.certain()
    session.refund(1)
    with pytest.raises(AssertionError):
        session.certain()
