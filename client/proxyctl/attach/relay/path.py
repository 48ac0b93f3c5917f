"""Fits a socket to a bulk transfer: the limit of its queue in the kernel, and its pace (Linux).

On a short path bounded buffers keep the bytes in flight near the processor's cache, and they keep a
stalled receiver from filling the kernel's memory. The pacing of bbr would cost a timer's interrupt
for every 64 KiB there, so the congestion control is one without. On a long path fixed buffers would
cap the connection at buffer / round trip, so there the kernel has it all back (tcp(7), TCP_INFO,
TCP_CONGESTION; socket(7), SO_SNDBUF, SO_RCVBUF; since Linux 5.14 SO_BUF_LOCK).

`proxyd/relay/path.py` does the same for the daemon, which imports no relay of a device.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

SHORT_PATH_CONGESTION_CONTROL: Final = b"reno"  # in every kernel, and open to every process

_INFO_BYTES: Final = 152
_MIN_RTT: Final = struct.Struct("=I")
_MIN_RTT_OFFSET: Final = 148
_SO_BUF_LOCK: Final = 72
_SEND_LOCK, _RECEIVE_LOCK = 1, 2
_CONGESTION_CONTROL: Final = (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
_NAME_BYTES: Final = 16


@dataclass(frozen=True)
class ShortPath:
    """The longest short path, and the buffers of the kernel on it.

    Attributes:
        microseconds: the longest round trip: within a machine or a switched network; at 1 GB/s such
            a path holds 300 KB.
        send_bytes: more than a pipe, so that one splice empties it while the last is still being
            sent, and little enough to stay near the cache.
        receive_bytes: more than one splice moves, and little enough to stay near the cache.
    """

    microseconds: int = 300
    send_bytes: int = 1536 * 1024
    receive_bytes: int = 2 * 1024 * 1024


USUAL: Final = ShortPath()


def fit_to_path(sock: socket.socket, *, was_short: bool, short_path: ShortPath = USUAL) -> bool:
    """Fit a TCP socket to its path, and return whether that is short.

    Args:
        sock: a connected socket.
        was_short: the last result of this function for it; False at first.
        short_path: the longest short path, and its buffers.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO_BYTES:
            return False
        round_trip: int = _MIN_RTT.unpack_from(info, _MIN_RTT_OFFSET)[0]
        is_short = 0 < round_trip <= short_path.microseconds
        if is_short and not was_short:
            sock.setsockopt(*_CONGESTION_CONTROL, SHORT_PATH_CONGESTION_CONTROL)
            _bound_buffers(sock, short_path)
        elif was_short and not is_short:
            sock.setsockopt(*_CONGESTION_CONTROL, _usual_congestion_control())
            sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
    except OSError:  # the connection is over, or the kernel is older than an option
        return False
    return is_short


def _bound_buffers(sock: socket.socket, short_path: ShortPath) -> None:
    """Fix the sizes of buffers; the kernel keeps a buffer if the system allows less."""
    locks = 0
    for option, size, lock in (
        (socket.SO_SNDBUF, short_path.send_bytes, _SEND_LOCK),
        (socket.SO_RCVBUF, short_path.receive_bytes, _RECEIVE_LOCK),
    ):
        sock.setsockopt(socket.SOL_SOCKET, option, size)
        if sock.getsockopt(socket.SOL_SOCKET, option) >= size:
            locks |= lock
    sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, locks)


def _usual_congestion_control() -> bytes:
    """Return the name of the congestion control of a new socket."""
    with socket.socket() as fresh:
        return fresh.getsockopt(*_CONGESTION_CONTROL, _NAME_BYTES).rstrip(b"\0")
