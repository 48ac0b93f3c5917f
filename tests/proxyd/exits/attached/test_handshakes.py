"""Handshakes at the exits' port take turns by network, and can end in any state."""

import asyncio
import socket
from dataclasses import dataclass

from proxyd.exits.attached.handshakes import HANDSHAKES_AT_ONCE, HANDSHAKES_PER_EXIT, Handshakes


@dataclass(frozen=True)
class Some:
    """A connection that has sent its ClientHello."""

    sock: socket.socket
    network: str


async def test_a_network_with_many_does_not_delay_another() -> None:
    begun: list[Some] = []
    handshakes = Handshakes[Some](asyncio.get_running_loop(), begun.append)
    near, far = socket.socketpair()
    with near, far:
        for _ in range(3 * HANDSHAKES_AT_ONCE):
            handshakes.add(Some(near.dup(), "many"))
        handshakes.add(Some(near, "one"))
        while not begun:
            await asyncio.sleep(0)
        assert [each.network for each in begun[:2]] == ["many", "one"]
        assert len(begun) == HANDSHAKES_AT_ONCE
        for each in begun:
            handshakes.end(each)
            each.sock.close()
        handshakes.close()
        assert len(handshakes) == 0


async def test_the_handshakes_of_a_network_are_bounded() -> None:
    handshakes = Handshakes[Some](asyncio.get_running_loop(), lambda _: None)
    near, far = socket.socketpair()
    with near, far:
        for _ in range(2 * HANDSHAKES_PER_EXIT):
            assert not handshakes.full_network("one", 2)
            handshakes.add(Some(near.dup(), "one"))
        assert handshakes.full_network("one", 2) == "one"
        assert not handshakes.full_network("other", 2)
        handshakes.close()
        assert not handshakes.full_network("one", 2)


async def test_one_that_is_cut_is_closed_before_it_has_begun_and_ended_after_that() -> None:
    begun: list[Some] = []
    loop = asyncio.get_running_loop()
    handshakes = Handshakes[Some](loop, begun.append)
    one, its_client = socket.socketpair()
    other, others_client = socket.socketpair()
    with one, its_client, other, others_client:
        first, second = Some(one, "a"), Some(other, "a")
        handshakes.add(first)
        while not begun:
            await asyncio.sleep(0)
        assert handshakes.oldest(loop.time()) is first
        assert handshakes.oldest(loop.time() - 1.0) is None
        handshakes.add(second)
        handshakes.cut(first)
        handshakes.cut(second)
        assert its_client.recv(1) == others_client.recv(1) == b""
        assert one.fileno() >= 0, "the loop has it"
        assert other.fileno() < 0
        assert not handshakes.end(first)
        assert len(handshakes) == 0
