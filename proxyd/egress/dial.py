"""Connects to a target: looks it up, asks the policy about every address, tries the permitted ones.

No coroutine is spent on a target that is given as an address; a name costs one, for its look-up.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

from proxyd.egress.policy import Policy
from proxyd.egress.resolve import NameNotFoundError, Resolver
from proxyd.wire.events import Failure

Address = IPv4Address | IPv6Address
Done = Callable[[socket.socket | Failure], None]

FAILURE_OF_ERRNO = {
    errno.ENETUNREACH: Failure.NETWORK_UNREACHABLE,
    errno.ENETDOWN: Failure.NETWORK_UNREACHABLE,
    errno.EAFNOSUPPORT: Failure.NETWORK_UNREACHABLE,
    errno.EHOSTUNREACH: Failure.HOST_UNREACHABLE,
    errno.EHOSTDOWN: Failure.HOST_UNREACHABLE,
    errno.ECONNREFUSED: Failure.REFUSED,
    errno.ECONNRESET: Failure.REFUSED,
    errno.ETIMEDOUT: Failure.TIMED_OUT,
    errno.EACCES: Failure.NOT_ALLOWED,
    errno.EPERM: Failure.NOT_ALLOWED,
}


class Dial:
    """One way to a target. Calls `done` once, with a connected socket or with why there is none.

    Args:
        loop: the event loop.
        resolver: looks names up.
        policy: says which addresses may be dialled.
        timeout: seconds for everything together.
        done: is told the outcome, perhaps before `start` returns; never after `cancel`.
    """

    __slots__ = (
        "_candidates",
        "_deadline",
        "_done",
        "_failure",
        "_lookup",
        "_loop",
        "_policy",
        "_port",
        "_resolver",
        "_sock",
        "_timer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resolver: Resolver,
        policy: Policy,
        *,
        timeout: float,
        done: Done,
    ) -> None:
        self._loop = loop
        self._resolver = resolver
        self._policy = policy
        self._deadline = loop.time() + timeout
        self._done: Done | None = done
        self._timer: asyncio.TimerHandle | None = None
        self._lookup: asyncio.Task[list[Address]] | None = None
        self._sock: socket.socket | None = None
        self._candidates: list[Address] = []
        self._failure = Failure.GENERAL
        self._port = 0

    def start(self, host: Address | str, port: int) -> None:
        """Begin. A name is looked up first."""
        self._port = port
        if isinstance(host, str):
            self._timer = self._loop.call_at(self._deadline, self._finish, Failure.TIMED_OUT)
            self._lookup = self._loop.create_task(self._resolver.resolve(host))
            self._lookup.add_done_callback(self._looked_up)
        else:
            self._try([host])

    def cancel(self) -> None:
        """Give up without calling `done`."""
        self._done = None
        self._release()

    def _looked_up(self, lookup: "asyncio.Task[list[Address]]") -> None:
        self._lookup = None
        if lookup.cancelled() or self._done is None:
            return
        error = lookup.exception()
        if error is None:
            self._try(lookup.result())
        elif isinstance(error, NameNotFoundError):
            self._finish(Failure.HOST_UNREACHABLE)
        else:
            self._finish(Failure.GENERAL)
            self._loop.call_exception_handler(
                {"message": "looking up a name failed", "exception": error}
            )

    def _try(self, addresses: list[Address]) -> None:
        self._candidates = [
            address for address in addresses if self._policy.permits(address, self._port)
        ]
        if self._candidates:
            self._next()
        else:
            self._finish(Failure.NOT_ALLOWED)

    def _next(self) -> None:
        """Connect to the next candidate; each may take its share of the time that is left."""
        while self._candidates:
            address = self._candidates.pop(0)
            try:
                if self._connect(address):
                    return
            except OSError as error:
                self._fail(error.errno)
            except (TypeError, ValueError):  # an address that no system call takes
                self._fail(None)
        self._finish(self._failure)

    def _connect(self, address: Address) -> bool:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((str(address), self._port))
        if code == 0:
            self._finish(sock)
            return True
        if code != errno.EINPROGRESS:
            self._fail(code)
            return False
        self._arm(1 + len(self._candidates))
        self._loop.add_writer(sock.fileno(), self._connected)
        return True

    def _arm(self, shares: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        share = max(self._deadline - self._loop.time(), 0) / shares
        self._timer = self._loop.call_later(share, self._timed_out)

    def _connected(self) -> None:
        sock = self._sock
        if sock is None:
            return
        self._loop.remove_writer(sock.fileno())
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            self._finish(sock)
        else:
            self._fail(code)
            self._next()

    def _timed_out(self) -> None:
        if self._sock is not None:
            self._loop.remove_writer(self._sock.fileno())
        self._fail(errno.ETIMEDOUT)
        self._next()

    def _fail(self, code: int | None) -> None:
        self._failure = FAILURE_OF_ERRNO.get(code or 0, Failure.GENERAL)
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _finish(self, outcome: socket.socket | Failure) -> None:
        done, self._done = self._done, None
        if isinstance(outcome, socket.socket):
            self._sock = None
        self._release()
        if done is not None:
            done(outcome)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None
        if self._sock is not None:
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._sock = None
