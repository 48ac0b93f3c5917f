"""A count asks the sinks that moved, and a few others that may hold bytes."""

from support.market.metering import Stalled, session_of, use

from market.money.money import GB
from proxyd.metering.in_transit import STALLED_ASKED


def test_sinks_that_stand_still_are_asked_a_few_at_a_time_and_each_in_its_turn() -> None:
    session, _ = session_of(GB)
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
    session, _ = session_of(GB)
    sinks = [Stalled() for _ in range(3 * STALLED_ASKED)]
    for sink in sinks:
        use(session, 10, sink)
    session.certain()
    sinks[-1].waiting = 0
    use(session, 5, sinks[-1])
    assert session.certain() == 15


def test_a_sink_that_claims_more_than_it_was_given_makes_nothing_uncertain_again() -> None:
    session, _ = session_of(GB)
    sink = Stalled()
    sink.waiting = 4
    use(session, 10, sink)
    assert session.certain() == 6
    sink.waiting = 9
    assert session.certain() == 6
