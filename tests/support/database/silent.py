"""A server that takes connections and never answers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_server() -> Iterator[int]:
    """Listen on a port of the loopback; the kernel accepts, and no program does."""
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as listener:
        yield listener.getsockname()[1]
