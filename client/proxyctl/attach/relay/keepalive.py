"""Has the system notice that the other side of a connection is gone."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

# A mapping of the router's that died is noticed after a minute and a half, and replaced.
IDLE_SECONDS: Final = 60
INTERVAL_SECONDS: Final = 10
PROBES: Final = 3

_OPTIONS: Final = [
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", IDLE_SECONDS),
        (socket.IPPROTO_TCP, "TCP_KEEPALIVE", IDLE_SECONDS),  # macOS calls it so
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", INTERVAL_SECONDS),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", PROBES),
    )
    if hasattr(socket, name)
]


def keep_alive(sock: socket.socket) -> None:
    """Let the system notice a dead peer, within a minute and a half where it has the options."""
    for level, option, value in _OPTIONS:
        with suppress(OSError):  # it is over, or Python knows an option that this system does not
            sock.setsockopt(level, option, value)
