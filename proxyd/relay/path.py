"""Use of a socket by a bulk transfer: the limit of its queue in the kernel, and its pace.

On a short path, bounded buffers keep the bytes in flight near the processor's cache and keep a
receiver that stalls from filling the kernel's memory; and pacing (bbr's) would cost a timer's
interrupt for every 64 KiB, so the congestion control is one without. On a long path fixed buffers
would cap the connection at buffer / round trip: there the kernel has it all back (tcp(7), TCP_INFO,
TCP_CONGESTION; socket(7), SO_SNDBUF, SO_RCVBUF; since Linux 5.14 SO_BUF_LOCK).

A path is short if its round trip takes less than 300 µs (`ShortPath`).
"""

import socket
import struct
from dataclasses import dataclass
from typing import Final

SHORT_PATH_CONGESTION_CONTROL = b"reno"  # in every kernel, and open to everybody

_INFO_BYTES = 152
_MIN_RTT = struct.Struct("=I")
_MIN_RTT_OFFSET = 148
_SO_BUF_LOCK = 72
_SEND_LOCK, _RECEIVE_LOCK = 1, 2
_CONGESTION_CONTROL = (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
_NAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class ShortPath:
    """The longest short path, and the buffers of the kernel on it.

    Attributes:
        microseconds: the longest round trip: within a machine, a rack or a switched network; at
            1 GB/s such a path holds 300 KB.
        send_bytes: more than a wide pipe, so that one splice empties it while the last is still
            being sent, and little enough to stay near the cache.
        receive_bytes: more than one splice moves, and little enough to stay near the cache.
    """

    microseconds: int = 300
    send_bytes: int = 1536 * 1024
    receive_bytes: int = 2 * 1024 * 1024


USUAL: Final = ShortPath()


def fit_to_path(sock: socket.SocketType, *, was_short: bool, short_path: ShortPath = USUAL) -> bool:
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


def _bound_buffers(sock: socket.SocketType, short_path: ShortPath) -> None:
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
