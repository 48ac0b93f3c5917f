"""Bounds the bytes that a bulk transfer queues in the kernel, where the other end is near (Linux).

On a short path bounded buffers keep the bytes in flight near the processor's cache, and they keep a
stalled receiver from filling the kernel's memory. On a long path fixed buffers would cap the
connection at buffer / round trip, so there the kernel goes on to size them (tcp(7), TCP_INFO;
socket(7), SO_SNDBUF, SO_RCVBUF; since Linux 5.14 SO_BUF_LOCK).
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Final

# Within a machine or a switched network; at 1 GB/s such a path holds 300 KB.
SHORT_MICROSECONDS: Final = 300
# More than a pipe, so that one splice empties it while the last is still being sent, and little
# enough to stay near the cache.
SEND_BYTES: Final = 1536 * 1024
RECEIVE_BYTES: Final = 2 * 1024 * 1024

_INFO_BYTES: Final = 152
_MIN_RTT: Final = struct.Struct("=I")
_MIN_RTT_OFFSET: Final = 148
_SO_BUF_LOCK: Final = 72
_SEND_LOCK, _RECEIVE_LOCK = 1, 2


def bound_if_short(sock: socket.socket, microseconds: int = SHORT_MICROSECONDS) -> None:
    """Bound the buffers of a TCP socket if its other end is near, and the system lets them be.

    Args:
        sock: a connected socket.
        microseconds: the round trip of the longest path that is short.
    """
    with suppress(OSError):  # it is over, or the kernel is older than an option
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) == _INFO_BYTES:
            (round_trip,) = _MIN_RTT.unpack_from(info, _MIN_RTT_OFFSET)
            if 0 < round_trip <= microseconds:
                _bound(sock)


def _bound(sock: socket.socket) -> None:
    """Fix the sizes; the kernel continues to choose a size that the system does not allow."""
    locks = 0
    for option, size, lock in (
        (socket.SO_SNDBUF, SEND_BYTES, _SEND_LOCK),
        (socket.SO_RCVBUF, RECEIVE_BYTES, _RECEIVE_LOCK),
    ):
        sock.setsockopt(socket.SOL_SOCKET, option, size)
        if sock.getsockopt(socket.SOL_SOCKET, option) >= size:
            locks |= lock
    sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, locks)
