"""Socket activation: listening sockets inherited from the service manager (sd_listen_fds(3)).

The manager keeps them open while the daemon restarts: clients that connect meanwhile wait in the
kernel's queue, and none is refused.
"""

import os
import socket
from collections.abc import Mapping, MutableMapping

from proxyd.ops.processes.listening import CannotListenError

FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START
SINGLE = ("api", "proxy", "exits", "apps")  # one socket has each of these names
SEVERAL = "passwordless"  # any number of sockets may have this name

InheritedSockets = Mapping[str, list[socket.socket]]


def inherited(environment: MutableMapping[str, str]) -> dict[str, list[socket.socket]]:
    """Return the sockets that were passed to this process, by name; empty if none were.

    The names (`FileDescriptorName=`) are those of `SINGLE` and, for any number, `passwordless`.

    Args:
        environment: `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES` are removed from it, so that no
            child takes the sockets for its own.

    Raises:
        CannotListenError: a name is unknown or comes twice, or a socket does not listen.
    """
    process = environment.pop("LISTEN_PID", "")
    number = environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not number.isdecimal():
        return {}
    sockets: dict[str, list[socket.socket]] = {}
    try:
        for index in range(int(number)):
            name = names[index] if index < len(names) else ""
            sockets.setdefault(name, []).append(_adopt(FIRST_DESCRIPTOR + index, name))
        for name, socks in sockets.items():
            if name not in (*SINGLE, SEVERAL):
                raise CannotListenError(f"socket activation: unknown socket name {name!r}")
            if name != SEVERAL and len(socks) > 1:
                raise CannotListenError(f"socket activation: two sockets have the name {name!r}")
    except BaseException:
        for sock in (sock for socks in sockets.values() for sock in socks):
            sock.close()
        raise
    return sockets


def _adopt(descriptor: int, name: str) -> socket.socket:
    """Return a descriptor as a non-blocking socket, which no child process inherits."""
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise CannotListenError(f"socket activation: {name!r}: {error.strerror}") from error
    is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not is_tcp or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        raise CannotListenError(f"socket activation: {name!r} is not a listening TCP socket")
    sock.setblocking(False)
    return sock
