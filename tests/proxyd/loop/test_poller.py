"""Watchers hear of every change once, and of no socket that is not theirs."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from support.base.waiting import until

from proxyd.loop.poller import GONE, HUNG_UP, READS, WRITABLE, Poller


class Heard:
    """A watcher that writes down what it is told."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self.events: list[int] = []
        self.failures: list[Exception] = []
        self._act = act

    def ready(self, events: int) -> None:
        self.events.append(events)
        self._act()

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


@pytest.fixture
async def poller() -> AsyncIterator[Poller]:
    poller = Poller(asyncio.get_running_loop())
    yield poller
    poller.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    for sock in (left, right):
        sock.setblocking(False)
    yield left, right
    for sock in (left, right):
        sock.close()


async def turns(number: int = 5) -> None:
    """Let the loop go round."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_readable_socket_is_reported_once(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard = Heard()
    poller.watch(pair[0].fileno(), heard)
    pair[1].send(b"one")
    await until(lambda: bool(heard.events), "it is told")
    await turns()
    assert len(heard.events) == 1
    assert heard.events[0] & READS
    pair[1].send(b"two")
    await until(lambda: len(heard.events) == 2, "more is told, too")
    assert pair[0].recv(100) == b"onetwo"


async def test_earlier_bytes_are_reported(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    pair[1].send(b"early")
    heard = Heard()
    poller.watch(pair[0].fileno(), heard)
    await until(lambda: bool(heard.events), "it is told")


async def test_the_end_and_the_loss_of_a_peer_are_reported(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard = Heard()
    poller.watch(pair[0].fileno(), heard)
    pair[1].shutdown(socket.SHUT_WR)
    await until(lambda: any(each & HUNG_UP for each in heard.events), "the end is told")
    assert not any(each & GONE for each in heard.events)
    pair[1].close()
    await until(lambda: any(each & GONE for each in heard.events), "that it is gone is told")


async def test_a_writable_socket_is_reported_to_a_watcher_that_asks(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard, both = Heard(), Heard()
    poller.watch(pair[0].fileno(), heard)
    poller.watch(pair[1].fileno(), both, writes=True)
    await until(lambda: any(each & WRITABLE for each in both.events), "it can be written")
    assert heard.events == []
    poller.watch_writes(pair[0].fileno())
    await until(lambda: any(each & WRITABLE for each in heard.events), "the other, too")


async def test_another_watcher_takes_over(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    first, second = Heard(), Heard()
    poller.watch(pair[0].fileno(), first)
    poller.watch(pair[0].fileno(), second)
    pair[1].send(b"x")
    await until(lambda: bool(second.events), "the second hears it")
    assert first.events == []
    assert len(poller) == 1


async def test_no_event_is_reported_of_an_unwatched_socket(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard = Heard()
    poller.watch(pair[0].fileno(), heard)
    poller.forget(pair[0].fileno())
    poller.forget(pair[0].fileno())
    pair[1].send(b"x")
    await turns()
    assert heard.events == []


async def test_an_event_of_a_closed_socket_does_not_reach_its_successor(poller: Poller) -> None:
    """Both sockets of a turn are ready; the first closes the second and takes its number anew."""
    pairs = [socket.socketpair() for _ in range(2)]
    successor = Heard()
    taken: list[socket.socket] = []

    def replace(own: int) -> None:
        other = pairs[1 - own][0]
        if taken or other.fileno() < 0:
            return
        fd = other.fileno()
        poller.forget(fd)
        other.close()
        fresh = socket.socketpair()
        taken.extend(fresh)
        assert fresh[0].fileno() == fd
        poller.watch(fd, successor)

    for own in range(2):
        poller.watch(pairs[own][0].fileno(), Heard(lambda own=own: replace(own)))  # type: ignore[misc]
        pairs[own][1].send(b"x")
    await until(lambda: bool(taken), "one has replaced the other")
    await turns()
    assert successor.events == []
    taken[1].send(b"x")
    await until(lambda: bool(successor.events), "it hears of its own")
    for sock in (*pairs[0], *pairs[1], *taken):
        sock.close()


async def test_a_released_socket_may_be_watched_again_and_by_others(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard, other = Heard(), Heard()
    poller.watch(pair[0].fileno(), heard)
    poller.release(pair[0].fileno())
    poller.release(pair[0].fileno())
    assert len(poller) == 0
    pair[1].send(b"one")
    loop, seen = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pair[0].fileno(), seen.set)
    await seen.wait()
    loop.remove_reader(pair[0].fileno())
    assert heard.events == []
    poller.watch(pair[0].fileno(), other)
    await until(lambda: bool(other.events), "it is told")


async def test_a_watcher_that_fails_is_notified_and_stops_no_other(poller: Poller) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    heard = []
    for number, (left, right) in enumerate(pairs):
        each = Heard((lambda: 1 // 0) if number == 0 else (lambda: None))  # type: ignore[arg-type, return-value]
        heard.append(each)
        poller.watch(left.fileno(), each)
        right.send(b"x")
    await until(lambda: all(each.events for each in heard), "all are told")
    assert [len(each.failures) for each in heard] == [1, 0, 0]
    for sock in (sock for pair in pairs for sock in pair):
        sock.close()


async def test_more_sockets_than_a_turn_reports_are_all_reported(poller: Poller) -> None:
    pairs = [socket.socketpair() for _ in range(300)]
    heard = [Heard() for _ in pairs]
    for (left, right), each in zip(pairs, heard, strict=True):
        poller.watch(left.fileno(), each)
        right.send(b"x")
    await until(lambda: all(each.events for each in heard), "all are told")
    for sock in (sock for pair in pairs for sock in pair):
        sock.close()


async def test_closing_twice_is_harmless(poller: Poller) -> None:
    poller.close()
    poller.close()


async def test_a_watcher_after_the_close_gets_the_error_of_a_socket() -> None:
    poller = Poller(asyncio.get_running_loop())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poller.watch(ours.fileno(), Heard())
        poller.close()
        poller.release(ours.fileno())
        with pytest.raises(OSError, match="nothing is watched"):
            poller.watch(theirs.fileno(), Heard())
