"""How much a bulk transfer may queue in the kernel towards its sink.

On a short path a small send buffer keeps what is in flight within the processor's cache and doubles
the throughput. On a long one a fixed buffer would cap the connection at buffer / round trip, so
there the kernel grows it as it sees fit (tcp(7), TCP_INFO; socket(7), SO_SNDBUF, SO_BUF_LOCK).
"""

import socket
import struct

SHORT_PATH_MICROSECONDS = 300
SHORT_PATH_BUFFER_BYTES = 256 * 1024

_INFO_BYTES = 152
_MIN_RTT = struct.Struct("=I")
_MIN_RTT_OFFSET = 148
_SO_BUF_LOCK = 72


def fit_send_buffer(sink: socket.socket, *, is_fixed: bool) -> bool:
    """Fit the send buffer of a TCP socket to its path; return whether it is fixed now.

    Args:
        sink: the socket that is written to.
        is_fixed: what this function returned for it before; False at first.
    """
    try:
        info = sink.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO_BYTES:
            return is_fixed
        round_trip: int = _MIN_RTT.unpack_from(info, _MIN_RTT_OFFSET)[0]
        is_short = 0 < round_trip <= SHORT_PATH_MICROSECONDS
        if is_short and not is_fixed:
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SHORT_PATH_BUFFER_BYTES)
        elif is_fixed and not is_short:
            sink.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
    except OSError:  # the connection is over, or the kernel is older than the option
        return is_fixed
    return is_short
