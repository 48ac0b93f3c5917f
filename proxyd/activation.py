"""Listening sockets that the service manager holds (sd_listen_fds(3)).

It keeps them while the daemon restarts: clients that come meanwhile wait in the kernel, and nobody
is refused.
"""

import os
import socket
from collections.abc import MutableMapping

FIRST_DESCRIPTOR = 3
NAMES = ("api", "proxy", "passwordless")


class ActivationError(Exception):
    """What was handed over cannot be served on; the message says why, for the operator."""


def inherited(environment: MutableMapping[str, str]) -> dict[str, list[socket.socket]]:
    """Return the sockets that were handed over to this process, by name: `NAMES`.

    They are known by their names (`FileDescriptorName=`); without names they are, in this order,
    the API's, the proxy's, and those without passwords. The variables are taken out of the
    environment.

    Raises:
        ActivationError: one of them does not listen, or has a name that means nothing here.
    """
    owner = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "0")
    named = environment.pop("LISTEN_FDNAMES", "").split(":")
    if owner != str(os.getpid()) or not count.isdecimal():
        return {}
    descriptors = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))
    found: dict[str, list[socket.socket]] = {}
    for place, descriptor in enumerate(descriptors):
        name = named[place] if place < len(named) else ""
        if name not in NAMES:
            if name and not name.endswith(".socket"):
                raise ActivationError(f"the socket {name!r} is none of {', '.join(NAMES)}")
            name = NAMES[min(place, len(NAMES) - 1)]
        found.setdefault(name, []).append(_listening(descriptor, name))
    return found


def _listening(descriptor: int, name: str) -> socket.socket:
    os.set_inheritable(descriptor, False)
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ActivationError(f"the {name} socket: {error.strerror}") from error
    is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not is_tcp or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        raise ActivationError(f"the {name} socket does not listen on a TCP port")
    sock.setblocking(False)
    return sock
