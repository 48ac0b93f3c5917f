"""Watchers get every change once, and no event of another socket."""

import asyncio
import errno
import logging
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import pytest
from support.base.waiting import until

from proxyd.loop.poller import (
    ALONE_TURNS,
    APART_MAX,
    CROWD,
    GONE,
    HUNG_UP,
    READS,
    WRITABLE,
    Poller,
)


class Heard:
    """A watcher that records its events."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self.events: list[int] = []
        self.failures: list[Exception] = []
        self._act = act

    def ready(self, events: int) -> None:
        self.events.append(events)
        self._act()

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class Reading(Heard):
    """A reader that takes everything; `reads` has the bytes of each call of `read`."""

    def __init__(self, poller: Poller) -> None:
        super().__init__(self._take)
        self._poller = poller
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.taken = b""
        self.reads: list[bytes] = []
        self.at_ease = True
        self.error: Exception | None = None
        poller.watch(self.near.fileno(), self)

    def _take(self) -> None:
        with suppress(BlockingIOError):
            self.taken += self.near.recv(100)

    @property
    def is_at_ease(self) -> bool:
        return self.at_ease

    def read(self) -> bool:
        if self.error is not None:
            raise self.error
        before = self.taken
        self._take()
        self.reads.append(self.taken[len(before) :])
        return self.at_ease and self.taken != before

    @property
    def is_apart(self) -> bool:
        return self._poller.is_apart(self.near.fileno())

    async def hears(self, data: bytes) -> None:
        """Send bytes to the watcher, and wait until it has read them."""
        wanted = self.taken + data
        self.far.send(data)
        await until(lambda: self.taken == wanted, "it reads")

    async def set_apart(self) -> None:
        """Send single messages until the socket is set apart."""
        for _ in range(ALONE_TURNS):
            if not self.is_apart:
                await self.hears(b"x")
        assert self.is_apart
        assert not self.reads

    def close(self) -> None:
        if self.near.fileno() >= 0:
            self._poller.forget(self.near.fileno())
        self.near.close()
        self.far.close()


@pytest.fixture
async def reading(poller: Poller) -> AsyncIterator[Reading]:
    with closing(Reading(poller)) as made:
        yield made


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


# --- sockets that are set apart ------------------------------------------------------------------


async def test_a_socket_whose_events_come_alone_is_set_apart(reading: Reading) -> None:
    for _ in range(ALONE_TURNS - 1):
        await reading.hears(b"x")
    assert not reading.is_apart
    await reading.hears(b"x")
    assert reading.is_apart
    before = len(reading.events)
    for number in range(5):
        await reading.hears(b"%d" % number)
    assert reading.reads == [b"0", b"1", b"2", b"3", b"4"]
    assert len(reading.events) == before
    await turns()
    assert len(reading.reads) == 5, "a socket that was read has no event"


async def test_a_watcher_that_reads_no_sockets_is_never_set_apart(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard = Heard(lambda: pair[0].recv(100) and None)
    poller.watch(pair[0].fileno(), heard)
    for _ in range(2 * ALONE_TURNS):
        heard.events.clear()
        pair[1].send(b"x")
        await until(lambda: bool(heard.events), "it hears")
    assert not poller.is_apart(pair[0].fileno())


async def test_a_watcher_that_is_not_at_ease_is_not_set_apart(reading: Reading) -> None:
    reading.at_ease = False
    for _ in range(2 * ALONE_TURNS):
        await reading.hears(b"x")
    assert not reading.is_apart


async def test_a_socket_that_is_not_read_to_its_end_rejoins(reading: Reading) -> None:
    await reading.set_apart()
    reading.at_ease = False
    await reading.hears(b"x")
    assert not reading.is_apart
    reading.events.clear()
    await reading.hears(b"y")
    assert reading.events
    assert len(reading.reads) == 1


@pytest.mark.parametrize("is_gone", [False, True])
async def test_the_end_of_a_socket_set_apart_is_reported(reading: Reading, is_gone: bool) -> None:
    await reading.set_apart()
    reading.events.clear()
    if is_gone:
        reading.far.close()
    else:
        reading.far.shutdown(socket.SHUT_WR)
    wanted = GONE if is_gone else HUNG_UP
    await until(lambda: any(each & wanted for each in reading.events), "the end is told")
    assert not reading.is_apart
    assert reading.reads == [b""]
    await turns()
    assert reading.reads == [b""], "the end is told once"


async def test_a_socket_set_apart_can_be_watched_for_writing(
    poller: Poller, reading: Reading
) -> None:
    await reading.set_apart()
    reading.events.clear()
    poller.watch_writes(reading.near.fileno())
    await until(lambda: any(each & WRITABLE for each in reading.events), "it can be written")
    assert not reading.is_apart


async def test_another_watcher_takes_a_socket_set_apart_over(
    poller: Poller, reading: Reading
) -> None:
    await reading.set_apart()
    second = Heard()
    poller.watch(reading.near.fileno(), second)
    reading.far.send(b"x")
    await until(lambda: any(each & READS for each in second.events), "the second hears it")
    assert not reading.is_apart
    assert not reading.reads
    assert len(poller) == 1


async def test_a_released_socket_is_not_apart(poller: Poller, reading: Reading) -> None:
    await reading.set_apart()
    poller.release(reading.near.fileno())
    reading.far.send(b"x")
    await turns()
    assert not reading.reads
    heard = Heard()
    poller.watch(reading.near.fileno(), heard)
    await until(lambda: bool(heard.events), "it is told")


async def test_a_mistake_of_a_reader_is_reported_and_its_socket_rejoins(reading: Reading) -> None:
    await reading.set_apart()
    error = reading.error = ValueError("a mistake")
    reading.far.send(b"x")
    await until(lambda: bool(reading.failures), "it is told")
    assert reading.failures == [error]
    await turns()
    assert reading.failures == [error], "it is told once"
    assert not reading.is_apart


async def test_sockets_whose_events_come_together_rejoin(poller: Poller, reading: Reading) -> None:
    await reading.set_apart()
    others = [Reading(poller) for _ in range(CROWD)]
    for each in others:
        each.far.send(b"x")
    await until(lambda: all(each.taken for each in others), "all are told")
    assert not reading.is_apart
    await reading.hears(b"x")
    for each in others:
        each.close()


async def test_few_sockets_are_set_apart_and_the_first_makes_room(poller: Poller) -> None:
    many = [Reading(poller) for _ in range(APART_MAX + 2)]
    for each in many:
        await each.set_apart()
    assert [each.is_apart for each in many] == [False] * 2 + [True] * APART_MAX
    for each in many:
        await each.hears(b"y")
        each.close()


async def test_a_socket_stays_with_the_others_where_no_descriptor_is_left(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "poller")

    def none_left() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(select, "epoll", none_left)
    for _ in range(ALONE_TURNS + 1):
        await reading.hears(b"x")
    assert not reading.is_apart
    assert "a socket is not set apart: [Errno 24]" in caplog.text


class FullLoop:
    """An event loop that soon has no room to watch another descriptor."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.time, self.remove_reader = loop.time, loop.remove_reader
        self._add = loop.add_reader
        self.is_full = False

    def add_reader(self, fd: int, callback: Callable[..., object]) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        self._add(fd, callback)


async def test_a_socket_stays_with_the_others_where_the_loop_watches_no_more() -> None:
    loop = FullLoop()
    poller = Poller(cast(asyncio.AbstractEventLoop, loop))
    loop.is_full = True
    before = len(list(Path("/proc/self/fd").iterdir()))
    with closing(Reading(poller)) as each:
        for _ in range(ALONE_TURNS + 2):
            await each.hears(b"x")
        assert not each.is_apart
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    poller.close()


async def test_the_successor_of_a_socket_set_apart_hears_of_its_own(
    poller: Poller, reading: Reading
) -> None:
    await reading.set_apart()
    fd = reading.near.fileno()
    reading.far.send(b"x")
    reading.close()
    with closing(Reading(poller)) as successor:
        assert successor.near.fileno() == fd
        await turns()
        assert not successor.events
        await successor.hears(b"y")
    assert not reading.reads


async def test_no_descriptor_of_sockets_set_apart_is_left(poller: Poller) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with closing(Reading(poller)) as each:
            await each.set_apart()
    await turns()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with closing(Reading(poller)) as each:
        await each.set_apart()
        poller.close()
    await turns()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1
