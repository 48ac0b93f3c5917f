"""Resources that the sockets of one event loop share, so that none of them has to bring its own."""

import asyncio
import socket
from typing import Final, final

from proxyd.loop.pipes import PipePool
from proxyd.loop.poller import Poller
from proxyd.loop.turns import Turns

# The largest datagram, and the largest part of a stream that is worth copying: larger parts are
# spliced.
BUFFER_BYTES: Final = 64 * 1024


@final
class Reactor:
    """Parts of one event loop: poller, turns for bulk, pipes for splice, and a buffer for reads.

    `buffer` (and `view`, the same memory) may be used by anybody until they return to the loop, and
    holds nothing of theirs afterwards.

    Args:
        pipes_max: limit of existing pipes.
    """

    __slots__ = ("buffer", "loop", "pipes", "poller", "turns", "view")

    def __init__(self, loop: asyncio.AbstractEventLoop, pipes_max: int) -> None:
        self.loop = loop
        self.poller = Poller(loop)
        self.turns = Turns(loop)
        self.pipes = PipePool(pipes_max)
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)

    def close(self) -> None:
        """Stop watching all sockets, and close idle pipes; closing twice is harmless."""
        self.pipes.close()
        self.poller.close()


def for_loop(sock: socket.SocketType) -> socket.socket:
    """Return a non-blocking socket as the class that the event loop takes; it replaces the other.

    The Python part of that class doubles the cost of a socket, so acceptors make the class in C.
    """
    if isinstance(sock, socket.socket):
        return sock
    converted = socket.socket(fileno=sock.detach())
    converted.setblocking(False)
    return converted
