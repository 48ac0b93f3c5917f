"""Objects that the sockets of a loop share: one of each, closed together."""

import asyncio
import socket

from proxyd.loop.reactor import BUFFER_BYTES, Reactor


async def test_the_view_is_the_buffer_and_holds_the_largest_datagram() -> None:
    reactor = Reactor(asyncio.get_running_loop(), pipes_max=1)
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.send(b"datagram")
    size = right.recv_into(reactor.buffer)
    assert bytes(reactor.view[:size]) == b"datagram"
    assert len(reactor.view) == BUFFER_BYTES >= 65_535
    for sock in (left, right):
        sock.close()
    reactor.close()


async def test_there_are_no_more_pipes_than_it_may_have_and_it_closes_idle_ones() -> None:
    reactor = Reactor(asyncio.get_running_loop(), pipes_max=1)
    pipe = reactor.pipes.take()
    assert pipe is not None
    assert reactor.pipes.take() is None
    reactor.pipes.give(pipe)
    reactor.close()
    reactor.close()
    assert reactor.pipes.lent == 0
