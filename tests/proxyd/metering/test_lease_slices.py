"""A part of a session: it asks in time, gives up what it can spare, and stops when time is over."""

from market.leases import SLICE_FIRST_BYTES, Grant
from market.states import SessionStatus
from proxyd.metering.lease_slices import LOW_BYTES, SLICE_MOST_BYTES, Fence, SharedSession
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


def shared(asked: list[LiveSession], clock: Clock | None = None) -> SharedSession:
    fence = Fence(clock or Clock())
    fence.until = 10.0
    grant = Grant("id", "name", "hash", SessionStatus.ACTIVE, 2**40, "lease", GRANTED, ())
    return SharedSession(grant, asked.append, asked.append, fence)


def use(session: SharedSession, size: int) -> None:
    session.take(size, None)
    session.deliver(size)


def test_it_asks_once_when_half_is_taken() -> None:
    asked: list[LiveSession] = []
    session = shared(asked)
    use(session, GRANTED // 2)
    assert session.allowance(None) == GRANTED // 2
    assert asked == []
    use(session, 1)
    assert session.allowance(None) == session.allowance(None) == GRANTED // 2 - 1
    assert asked == [session]


def test_it_hands_out_nothing_when_its_time_is_over() -> None:
    clock = Clock()
    session = shared([], clock)
    clock.now = 9.99
    assert session.allowance(None) == GRANTED
    clock.now = 10.0
    assert session.allowance(None) == 0


def test_who_waits_at_a_fence_goes_on_when_it_is_down() -> None:
    session = shared([])
    woken: list[int] = []
    session.wait(lambda: woken.append(1))
    session.wake()
    session.wake()
    assert woken == [1]


def test_who_waits_for_bytes_asks_and_goes_on_with_the_answer() -> None:
    asked: list[LiveSession] = []
    session = shared(asked)
    use(session, GRANTED)
    assert asked == [session]  # the last byte was delivered: perhaps it was the session's last
    woken: list[int] = []
    session.wait(lambda: woken.append(session.available))
    assert asked == [session, session]
    session.answered(GRANTED, 1.0, asked=True)
    assert woken == []
    assert session.retry_at > 1.0
    session.answered(GRANTED + 5, 2.0, asked=True)
    assert woken == [5]
    assert session.retry_at == 2.0


def test_slices_double_while_they_are_used_up_soon_and_start_again_when_not() -> None:
    session = shared([])
    now, wanted = 100.0, []
    for _ in range(8):
        wanted.append(session.wanted(now))
        session.answered(session.granted + wanted[-1], now, asked=True)
        now += 0.5
    assert wanted == [min(SLICE_FIRST_BYTES * 2**each, SLICE_MOST_BYTES) for each in range(8)]
    assert session.wanted(now + 10) == SLICE_FIRST_BYTES


def test_without_connections_everything_is_spared_and_half_of_it_otherwise() -> None:
    session = shared([])
    session.connections.add(Connection())
    use(session, 1_000)
    assert session.spare() == session.granted == 1_000 + (GRANTED - 1_000) // 2
    while session.available > LOW_BYTES:
        session.spare()
    assert session.spare() == session.used == 1_000
    assert session.available == 0
    session = shared([])
    assert session.spare() == 0


def test_an_answer_that_was_lost_is_made_up_for_by_the_next() -> None:
    session = shared([])
    use(session, 100)
    session.spare()  # the store never heard of it
    session.answered(GRANTED, 1.0, asked=False)
    assert (session.granted, session.available) == (GRANTED, GRANTED - 100)
