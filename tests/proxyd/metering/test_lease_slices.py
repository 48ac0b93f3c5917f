"""A part of a session: it asks in time, gives up spare bytes, and stops when time is over."""

import pytest
from support.market.metering import use

from market.bandwidth.lease_book import SLICE_FIRST_BYTES
from market.bandwidth.leases import Grant
from market.base.states import SessionStatus
from proxyd.metering.fence import Fence
from proxyd.metering.lease_slices import LOW_BYTES, SLICE_MOST_BYTES, LeaseSlice
from proxyd.metering.session import LiveSession

GRANTED = SLICE_FIRST_BYTES


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Connection:
    def finish(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Node:
    """A session that has a slice, and the list of requests to its node."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.asked: list[LeaseSlice] = []
        fence = Fence(self.clock)
        fence.until = 10.0
        grant = Grant("id", "name", "hash", SessionStatus.ACTIVE, 2**40, "lease", GRANTED, ())
        self.slice = LeaseSlice("id", GRANTED, fence, self.asked.append)
        self.session = LiveSession(grant, lambda _: self.slice.ask(), lease_slice=self.slice)

    def replied(self, granted: int, now: float) -> None:
        """Take a reply of the store to a request for more."""
        self.slice.topped_up(granted - self.session.granted, now)
        self.session.regrant(granted)

    def spare(self) -> int:
        """Return some to the others, and how many bytes are granted then."""
        session = self.session
        session.shrink(self.slice.kept(session.available, is_used=bool(session.connections)))
        return session.granted


@pytest.fixture
def node() -> Node:
    return Node()


def test_it_asks_once_when_half_is_taken(node: Node) -> None:
    use(node.session, GRANTED // 2)
    assert node.session.allowance(None) == GRANTED // 2
    assert node.asked == []
    use(node.session, 1)
    assert node.session.allowance(None) == node.session.allowance(None) == GRANTED // 2 - 1
    assert node.asked == [node.slice]


def test_it_hands_out_nothing_when_its_time_is_over(node: Node) -> None:
    node.clock.now = 9.99
    assert node.session.allowance(None) == GRANTED
    node.clock.now = 10.0
    assert node.session.allowance(None) == 0


def test_a_transfer_that_waits_at_a_fence_goes_on_when_it_is_down(node: Node) -> None:
    woken: list[int] = []
    node.session.wait(lambda: woken.append(1))
    node.session.wake()
    node.session.wake()
    assert woken == [1]


def test_a_transfer_that_waits_for_bytes_asks_and_goes_on_with_the_answer(node: Node) -> None:
    session = node.session
    use(session, GRANTED)
    assert node.asked == [node.slice]  # at the last byte: perhaps it was the session's last
    woken: list[int] = []
    session.wait(lambda: woken.append(session.available))
    assert node.asked == [node.slice] * 2
    node.replied(GRANTED, 1.0)
    assert woken == []
    assert node.slice.retry_at > 1.0
    node.replied(GRANTED + 5, 2.0)
    assert woken == [5]
    assert node.slice.retry_at == 2.0


def test_slices_double_while_they_are_used_up_soon_and_start_again_when_not(node: Node) -> None:
    now, wanted = 100.0, []
    for _ in range(8):
        wanted.append(node.slice.wanted(now))
        node.replied(node.session.granted + wanted[-1], now)
        now += 0.5
    assert wanted == [min(SLICE_FIRST_BYTES * 2**each, SLICE_MOST_BYTES) for each in range(8)]
    assert node.slice.wanted(now + 10) == SLICE_FIRST_BYTES


def test_without_connections_everything_is_spared_and_half_of_it_otherwise(node: Node) -> None:
    session = node.session
    session.connections.add(Connection())
    use(session, 1_000)
    assert node.spare() == 1_000 + (GRANTED - 1_000) // 2
    while session.available > LOW_BYTES:
        node.spare()
    assert node.spare() == session.used == 1_000
    assert session.available == 0
    assert Node().spare() == 0


def test_an_answer_that_was_lost_is_made_up_for_by_the_next(node: Node) -> None:
    session = node.session
    use(session, 100)
    node.spare()  # no report of it has reached the store
    session.regrant(GRANTED)
    assert (session.granted, session.available) == (GRANTED, GRANTED - 100)


def test_a_grant_below_the_counted_bytes_is_never_accepted(node: Node) -> None:
    with pytest.raises(AssertionError):
        node.session.regrant(GRANTED - 1)
