"""Closed and silent ports, and ports on which a program can listen."""

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def free_port(count: int = 1) -> int:
    """Return a port to listen on that no outgoing connection will be given meanwhile (ip(7)).

    Args:
        count: the number of free ports in a row, beginning with the returned one.
    """
    outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(min(10_000, outgoing - 1000), outgoing - count)
        with ExitStack() as stack, suppress(OSError):
            for each in range(port, port + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port


@contextmanager
def closed_port() -> Iterator[int]:
    """Keep a port on which no program listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def silent_port() -> Iterator[int]:
    """Keep a port that never answers: its queue is full. It is free on other addresses."""
    with socket.socket() as listener, socket.socket() as first:
        port = free_port()
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        first.connect(listener.getsockname())
        yield port


@contextmanager
def listening_port() -> Iterator[int]:
    """Keep a port on which the system accepts connections, and no program does."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@contextmanager
def resetting_port() -> Iterator[int]:
    """Keep a port on which each connection is reset as soon as it is there, by the running loop."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        listener.setblocking(False)

        def accept() -> None:
            sock, _ = listener.accept()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()

        loop.add_reader(listener, accept)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.remove_reader(listener)
