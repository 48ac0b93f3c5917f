"""Listening sockets that the service manager holds (sd_listen_fds(3)).

It keeps them while the daemon restarts: clients that come meanwhile wait in the kernel, and nobody
is refused.
"""

import os
import socket
from collections.abc import Mapping, MutableMapping

from proxyd.ops.listening import CannotListenError

FIRST_DESCRIPTOR = 3
SINGLE = ("api", "proxy")
SEVERAL = "passwordless"

Held = Mapping[str, list[socket.socket]]


def inherited(environment: MutableMapping[str, str]) -> dict[str, list[socket.socket]]:
    """Return the sockets that were handed over to this process, by name; none if none were.

    The names (`FileDescriptorName=`) are `api`, `proxy` and, for any number, `passwordless`.

    Args:
        environment: `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES` are taken out of it.

    Raises:
        CannotListenError: a name means nothing here or comes twice, or a socket does not listen.
    """
    process = environment.pop("LISTEN_PID", "")
    number = environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not number.isdecimal():
        return {}
    found: dict[str, list[socket.socket]] = {}
    try:
        for index in range(int(number)):
            name = names[index] if index < len(names) else ""
            found.setdefault(name, []).append(_taken(FIRST_DESCRIPTOR + index, name))
        for name, socks in found.items():
            if name not in (*SINGLE, SEVERAL):
                raise CannotListenError(f"a socket was handed over as {name!r}: nobody knows it")
            if name != SEVERAL and len(socks) > 1:
                raise CannotListenError(f"two sockets were handed over as {name!r}")
    except BaseException:
        for sock in (sock for socks in found.values() for sock in socks):
            sock.close()
        raise
    return found


def _taken(descriptor: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise CannotListenError(f"the socket handed over as {name!r}: {error.strerror}") from error
    is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not is_tcp or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        raise CannotListenError(f"the socket handed over as {name!r} is no listening TCP socket")
    sock.setblocking(False)
    return sock
