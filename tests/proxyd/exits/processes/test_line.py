"""A line between processes: whole messages, descriptors closed once, a hung side is cut."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from msgspec import DecodeError
from support.base.waiting import until

from proxyd.exits.processes.line import WAITING_MAX_BYTES, Line, is_ours
from proxyd.loop.reactor import Reactor


class End:
    """Keeps what it is told; the word "nonsense" is none."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.descriptors: list[int] = []
        self.losses = 0

    def take(self, data: memoryview, descriptor: int) -> None:
        if data == b"nonsense":
            raise DecodeError("no such message")
        self.heard.append(bytes(data))
        if descriptor >= 0:
            self.descriptors.append(descriptor)

    def lose(self) -> None:
        self.losses += 1


class Pair:
    """Two ends, and the line between them."""

    def __init__(self, reactor: Reactor, waiting_max_bytes: int) -> None:
        socks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ends = End(), End()
        for sock in socks:
            sock.setblocking(False)
        self.ours, self.theirs = (
            Line(reactor, sock, end, waiting_max_bytes)
            for sock, end in zip(socks, self.ends, strict=True)
        )


@pytest.fixture
async def reactor() -> Reactor:
    """What the sockets of the test's loop share."""
    return Reactor(asyncio.get_running_loop(), 10)


@pytest.fixture
def waiting_max_bytes() -> int:
    return WAITING_MAX_BYTES


@pytest.fixture
async def pair(reactor: Reactor, waiting_max_bytes: int) -> Iterator[Pair]:
    """A line; nothing of it is left when the test is over."""
    made = Pair(reactor, waiting_max_bytes)
    yield made
    made.ours.close()
    made.theirs.close()
    assert len(reactor.poller) == 0
    reactor.close()


async def test_messages_stay_whole_and_in_order(pair: Pair) -> None:
    sent = [b"%d" % number * (1 + number % 50) for number in range(1000)]
    for message in sent:
        assert pair.ours.send(message)
    await until(lambda: len(pair.ends[1].heard) == len(sent))
    assert pair.ends[1].heard == sent
    assert pair.ours.waiting == 0


async def test_a_descriptor_comes_with_its_message(pair: Pair) -> None:
    ours, theirs = socket.socketpair()
    pair.ours.send(b"one")
    pair.ours.send(b"two", theirs)
    assert theirs.fileno() == -1
    await until(lambda: len(pair.ends[1].heard) == 2)
    (descriptor,) = pair.ends[1].descriptors
    with ours, socket.socket(fileno=descriptor) as came:
        assert not os.get_inheritable(descriptor)
        ours.send(b"words")
        assert came.recv(5) == b"words"


@pytest.mark.parametrize("waiting_max_bytes", [10_000])
async def test_a_side_that_does_not_read_loses_its_line_and_its_waiting_streams(
    pair: Pair,
) -> None:
    with ExitStack() as stack:
        kept, refused = [], None
        while refused is None:
            ours, theirs = socket.socketpair()
            stack.enter_context(ours)
            if not pair.ours.send(bytes(1000), theirs):
                refused = theirs
            elif theirs.fileno() >= 0:
                kept.append(theirs)
        assert len(kept) == 10
        assert refused.fileno() == -1
        await until(lambda: pair.ends[0].losses == 1 and pair.ends[1].losses == 1)
        assert all(each.fileno() == -1 for each in kept)
        for each in pair.ends[1].descriptors:
            os.close(each)
    assert not pair.ours.is_open
    assert not pair.ours.send(b"too late")


async def test_waiting_messages_are_sent_when_the_other_side_reads(pair: Pair) -> None:
    count = 0
    while pair.ours.waiting < 100:
        pair.ours.send(bytes(1000))
        count += 1
    await until(lambda: len(pair.ends[1].heard) == count)
    assert pair.ours.waiting == 0


async def test_the_end_is_notified_once(pair: Pair) -> None:
    pair.ours.send(b"last words")
    pair.ours.close()
    pair.ours.close()
    await until(lambda: pair.ends[1].losses == 1)
    assert pair.ends[1].heard == [b"last words"]
    assert pair.ends[0].losses == 0


async def test_nonsense_ends_it(pair: Pair) -> None:
    pair.ours.send(b"nonsense")
    await until(lambda: pair.ends[0].losses == pair.ends[1].losses == 1)


async def test_a_message_that_is_too_long_ends_it(pair: Pair) -> None:
    pair.ours.send(bytes(100_000))
    await until(lambda: pair.ends[1].losses == 1)
    assert pair.ends[1].heard == []


def test_only_processes_of_the_same_user_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert is_ours(ours)
        monkeypatch.setattr(os, "getuid", lambda: 4711)
        assert not is_ours(ours)
