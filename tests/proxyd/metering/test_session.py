"""A session's budget: the certain part of its counts, and the invariants that are asserted."""

import pytest
from support.base.cases import cases
from support.market.metering import Stalled, session_of, use

from market.base.states import SessionStatus
from proxyd.metering.session import LiveSession

# --- the invariants ------------------------------------------------------------------------------


def moved(session: LiveSession) -> tuple[int, int]:
    return session.available, session.used


def test_each_move_of_a_byte_keeps_the_invariants() -> None:
    (session, _), sink = session_of(100), Stalled()
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


@cases(
    ("status", "left"),
    [
        (SessionStatus.ACTIVE, (80, 20)),
        (SessionStatus.EXHAUSTED, (70, 20)),
        (SessionStatus.ENDED, (70, 30)),
    ],
)
def test_refunded_bytes_are_handed_out_again_only_while_the_session_is_active(
    status: SessionStatus, left: tuple[int, int]
) -> None:
    session, _ = session_of(100)
    use(session, 30)
    session.status = status
    session.refund(10)
    assert moved(session) == left
    session.check()


def test_counts_that_cannot_be_are_not_reported() -> None:
    """Delivered before it was taken, taken from nothing, refunded below the reported count."""
    session, _ = session_of(100)
    session.deliver(1)
    with pytest.raises(AssertionError):
        session.certain()
    session, _ = session_of(100)
    session.take(101, None)
    with pytest.raises(AssertionError):
        session.certain()
    session, _ = session_of(100)
    use(session, 10)
    session.reported = session.certain()
    session.refund(1)
    with pytest.raises(AssertionError):
        session.certain()
