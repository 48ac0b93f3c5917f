"""Bytes of a session by exit: their sum is the session's after any event."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.base.brief import examples
from support.base.cases import cases
from support.market.metering import Stalled, session_of, use

from market.bandwidth.leases import Usage
from market.base.states import SessionStatus
from proxyd.metering.exit_share import ExitShare
from proxyd.metering.session import LiveSession

GRANTED = 10_000
EXITS = ("", "one", "two", "three")  # the first is the way without


class Way(Stalled):
    """A sink of one payer; the test lets its waiting bytes leave or get lost."""

    def __init__(self, payer: LiveSession | ExitShare) -> None:
        super().__init__()
        self.payer = payer
        self.waiting = 0

    def abort(self) -> None:
        """Cut it, as `Closing.abort` does."""
        self.payer.closings.discard(self)
        self.payer.forget(self)
        self.payer.refund(self.waiting)
        self.waiting = 0


class AnyTraffic(RuleBasedStateMachine):
    """Deliveries, losses and reports in any order, of a session by several exits and directly."""

    def __init__(self) -> None:
        super().__init__()
        self.session, _ = session_of(GRANTED)
        self.ways: list[Way] = []
        self.direct = 0
        self.written: dict[str, int] = {}
        self.written_used = 0

    def payer(self, name: str) -> LiveSession | ExitShare:
        return self.session.share_of(name) if name else self.session

    @precondition(lambda self: self.session.available > 0)
    @rule(name=st.sampled_from(EXITS), size=st.integers(1, 3000), held=st.integers(0, 3000))
    def opens_a_way(self, name: str, size: int, held: int) -> None:
        way = Way(self.payer(name))
        self.ways.append(way)
        self.move(way, size, held)

    @precondition(lambda self: self.ways and self.session.available > 0)
    @rule(data=st.data(), size=st.integers(1, 3000), held=st.integers(0, 3000))
    def delivers(self, data: st.DataObject, size: int, held: int) -> None:
        self.move(data.draw(st.sampled_from(self.ways)), size, held)

    def move(self, way: Way, size: int, held: int) -> None:
        size = min(size, self.session.available)
        self.session.take(size, None)
        way.waiting += min(held, size)
        way.payer.deliver(size, way)
        self.direct += size if way.payer is self.session else 0
        if self.session.is_spent and self.session.status is SessionStatus.ACTIVE:
            self.session.status = SessionStatus.EXHAUSTED

    @precondition(lambda self: self.ways)
    @rule(data=st.data(), part=st.integers(0, 3000))
    def leaves(self, data: st.DataObject, part: int) -> None:
        way = data.draw(st.sampled_from(self.ways))
        way.waiting -= min(part, way.waiting)

    @precondition(lambda self: self.ways)
    @rule(data=st.data())
    def breaks(self, data: st.DataObject) -> None:
        way = data.draw(st.sampled_from(self.ways))
        self.ways.remove(way)
        self.abort(way)

    def abort(self, way: Way) -> None:
        used = self.session.used
        way.abort()
        self.direct -= used - self.session.used if way.payer is self.session else 0

    @precondition(lambda self: self.ways)
    @rule(data=st.data())
    def is_closed(self, data: st.DataObject) -> None:
        """The closer takes over the bytes that wait in a relay, and waits in the session's set."""
        way = data.draw(st.sampled_from(self.ways))
        closing = Way(way.payer)
        closing.waiting = way.waiting
        way.payer.forget(way)
        closing.payer.closings.add(closing)
        if closing.waiting:
            closing.payer.may_wait(closing, closing.waiting)
        self.ways[self.ways.index(way)] = closing

    @rule(is_lost=st.booleans())
    def reports(self, is_lost: bool) -> None:
        """A report that is lost leaves everything to the next."""
        before = {each.device_id: each.certain() for each in self.session.shares}
        usage = self.session.certain_usage()
        for share in self.session.shares:
            assert before[share.device_id] <= share.certain()
        if not is_lost:
            self.write(usage)
            self.session.mark_reported(usage)

    @rule(status=st.sampled_from([SessionStatus.ENDED, SessionStatus.ACTIVE]))
    def ends_or_the_end_is_taken_back(self, status: SessionStatus) -> None:
        """As a cut does: everything under way is aborted first."""
        if self.session.status is SessionStatus.EXHAUSTED:
            return
        for way in self.ways:
            self.abort(way)
        self.ways.clear()
        self.session.status = status

    def write(self, usage: Usage) -> None:
        """Take a report as the store does: absolute, never falling, exits within the whole."""
        assert usage.used_bytes >= self.written_used
        self.written_used = usage.used_bytes
        for device_id, size in usage.exits:
            assert size > self.written.get(device_id, 0), "nothing that has not changed is reported"
            self.written[device_id] = size
        assert sum(self.written.values()) <= self.written_used

    @invariant()
    def the_exits_and_what_left_directly_are_the_session(self) -> None:
        assert self.direct >= 0
        used = sum(each.used for each in self.session.shares)
        assert used + self.direct == self.session.used
        self.session.check()

    def teardown(self) -> None:
        for way in self.ways:
            self.abort(way)
        self.the_exits_and_what_left_directly_are_the_session()
        usage = self.session.usage
        assert usage is not None
        self.write(usage)
        assert self.written == {
            each.device_id: each.used for each in self.session.shares if each.used
        }
        self.session.mark_reported(usage)
        again = self.session.usage
        assert again == Usage("session", "lease", self.session.used), "all of it is written"


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(
    deadline=None, max_examples=examples(150), stateful_step_count=40
)


def test_there_is_one_share_of_each_exit() -> None:
    session, _ = session_of(100)
    assert list(session.shares) == []
    share = session.share_of("device")
    assert session.share_of("device") is share
    assert session.share_of("other") is not share
    assert {each.device_id for each in session.shares} == {"device", "other"}
    assert session.usage == Usage("session", "lease", 0), "nothing was used of them"


def test_bytes_that_left_directly_belong_to_no_exit() -> None:
    session, _ = session_of(100)
    use(session, 10)
    session.take(20, None)
    session.share_of("device").deliver(20)
    assert session.certain_usage() == Usage("session", "lease", 30, (("device", 20),))


def test_a_total_count_survives_a_report_and_only_changes_are_reported_again() -> None:
    session, _ = session_of(1000)
    shares = [session.share_of(name) for name in ("one", "two")]
    for share in shares:
        session.take(10, None)
        share.deliver(10)
    session.mark_reported(session.certain_usage())
    assert session.certain_usage().exits == ()
    session.take(5, None)
    shares[1].deliver(5)
    assert session.certain_usage().exits == (("two", 15),)
    assert session.certain_usage().exits == (("two", 15),), "no write was confirmed"


def test_waiting_bytes_in_a_sink_of_one_exit_are_uncertain_only_for_it() -> None:
    session, _ = session_of(1000)
    one, two, sink = session.share_of("one"), session.share_of("two"), Stalled()
    session.take(40, None)
    one.deliver(20, sink)
    two.deliver(20, None)
    assert session.certain_usage() == Usage("session", "lease", 30, (("one", 10), ("two", 20)))
    one.forget(sink)
    one.refund(10)
    assert session.certain_usage() == Usage("session", "lease", 30, (("one", 10), ("two", 20)))
    assert session.available == 970


@cases(
    ("status", "used"),
    [
        (SessionStatus.ACTIVE, 20),
        (SessionStatus.EXHAUSTED, 20),
        (SessionStatus.ENDED, 30),
        (SessionStatus.EXPIRED, 30),
    ],
)
def test_a_refund_counts_at_the_exit_when_it_counts_at_the_session(
    status: SessionStatus, used: int
) -> None:
    session, _ = session_of(100)
    share = session.share_of("device")
    session.take(30, None)
    share.deliver(30)
    session.status = status
    share.refund(10)
    assert (share.used, session.used) == (used, used)


def test_the_last_byte_is_the_exits_when_the_session_counts_it() -> None:
    seen: list[tuple[int, int]] = []
    _, grant = session_of(30)
    session = LiveSession(grant, lambda each: seen.append((each.used, share.used)))
    share = session.share_of("device")
    session.take(30, None)
    share.deliver(30)
    assert seen == [(30, 30)]


def test_more_than_the_session_has_is_not_reported() -> None:
    session, _ = session_of(100)
    share = session.share_of("device")
    session.take(10, None)
    share.deliver(10)
    share.used += 1
    with pytest.raises(AssertionError):
        session.certain_usage()
    share.used = 5
    share.reported = 6
    with pytest.raises(AssertionError):
        share.certain()
