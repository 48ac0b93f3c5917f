"""Connects to targets: looked up here if need be, judged here always, one address after the other.

The next address starts when the one before has failed or has had a quarter of a second, and the
first that connects is taken (RFC 8305, section 5).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from proxyctl.attach.network.lan import NEVER_PORTS, public_name
from proxyctl.protocol.addresses import Address, plain
from proxyctl.protocol.frames import CANDIDATES_MAX, DialOutcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from proxyctl.attach.network.lan import Guard

    Connect = Callable[[Address, int, float], Awaitable[socket.socket]]

DIAL_SECONDS: Final = 10.0  # the daemon's own limit by default; later no buyer waits for the answer
STAGGER_SECONDS: Final = 0.25  # RFC 8305, section 8
LOOKUPS_MAX: Final = 16  # each takes a thread until the system's resolver gives up

# When every address fails, the failure highest in this order is reported.
_RANK: Final = (
    DialOutcome.FAILED,
    DialOutcome.NOT_ALLOWED,
    DialOutcome.NETWORK_UNREACHABLE,
    DialOutcome.HOST_UNREACHABLE,
    DialOutcome.TIMED_OUT,
    DialOutcome.AT_LIMIT,
    DialOutcome.REFUSED,
)


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(getattr(errno, name) for name in names if hasattr(errno, name))


# A device without an address of the target's family has no route, or no address to send from.
_NETWORK_UNREACHABLE: Final = _numbers(
    "ENETUNREACH", "WSAENETUNREACH", "ENETDOWN", "EADDRNOTAVAIL", "WSAEADDRNOTAVAIL"
)
_TIMED_OUT: Final = _numbers("ETIMEDOUT", "WSAETIMEDOUT")
_AT_LIMIT: Final = _numbers("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "WSAENOBUFS", "WSAEMFILE")
# The device's own firewall, which may close some targets and leave others open.
_NOT_ALLOWED: Final = _numbers("EPERM", "EACCES", "WSAEACCES")
# The target has answered, and has reset the connection.
_REFUSED: Final = _numbers(
    "ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "WSAECONNREFUSED", "WSAECONNRESET", "ENOTCONN"
)


class DialError(Exception):
    """A target was not reached; `outcome` says why."""

    def __init__(self, outcome: DialOutcome) -> None:
        super().__init__(outcome.name)
        self.outcome = outcome


class Dialer:
    """Connects to targets that the guard permits.

    Args:
        guard: judges every address before it is dialled, and every socket after it has connected.
        connect: returns a socket that is connected to an address, as `connect` does here.
        seconds: for a dial, its look-up included.
    """

    def __init__(
        self,
        guard: Guard,
        connect: Connect,
        loop: asyncio.AbstractEventLoop,
        seconds: float = DIAL_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._guard = guard
        self._connect_socket = connect
        self._loop = loop
        self._lookups = 0

    async def dial(
        self,
        host: tuple[Address, ...] | str,
        port: int,
        permits_port: Callable[[Address | None], bool],
    ) -> socket.socket:
        """Return a connected socket.

        A buyer must not learn which names exist only at home. So a name with no other addresses is
        unknown, and the port is judged before the look-up.

        Args:
            host: some addresses, or a name.
            port: of the target.
            permits_port: says whether the limits have this port at an address; at some address for
                None.

        Raises:
            DialError: the reason for a failure.
        """
        deadline = self._loop.time() + self._seconds
        if port in NEVER_PORTS or not permits_port(None):
            raise DialError(DialOutcome.NOT_ALLOWED)
        named = await self.look_up(host, port) if isinstance(host, str) else host
        addresses = dict.fromkeys(map(plain, named))
        permitted = [
            address
            for address in addresses
            if permits_port(address) and self._guard.permits(address, port)
        ]
        if not permitted:
            raise DialError(self._refusal(host, addresses, port))
        return await self._race(permitted[:CANDIDATES_MAX], port, deadline)

    def _refusal(
        self, host: tuple[Address, ...] | str, addresses: Iterable[Address], port: int
    ) -> DialOutcome:
        """Return why none of the addresses of a target may be dialled, as the buyer learns it."""
        far = [address for address in addresses if self._guard.is_far(address, port)]
        if not all(map(self._guard.knows, far)):
            return DialOutcome.NETWORK_UNREACHABLE
        return (
            DialOutcome.NOT_ALLOWED
            if far or not isinstance(host, str)
            else DialOutcome.NAME_UNKNOWN
        )

    async def look_up(self, name: str, port: int) -> list[Address]:
        """Return the addresses of a name; none of them is judged yet.

        Raises:
            DialError: why there are none.
        """
        absolute = public_name(name)
        if absolute is None:
            raise DialError(DialOutcome.NOT_ALLOWED)
        if self._lookups >= LOOKUPS_MAX:  # names of strangers fill it, so the device is not full
            raise DialError(DialOutcome.TIMED_OUT)
        self._lookups += 1
        lookup = self._loop.create_task(
            self._loop.getaddrinfo(absolute, port, type=socket.SOCK_STREAM)
        )
        lookup.add_done_callback(self._looked_up)
        done, _ = await asyncio.wait({lookup}, timeout=self._seconds)
        if not done:
            raise DialError(DialOutcome.TIMED_OUT)
        try:
            rows = lookup.result()
        except (OSError, UnicodeError):
            raise DialError(DialOutcome.NAME_UNKNOWN) from None
        # An address with a scope (fe80::1%eth0) is on a link, and no address for `ip_address`.
        return [ip_address(row[4][0]) for row in rows if "%" not in str(row[4][0])]

    def _looked_up(self, lookup: asyncio.Task[object]) -> None:
        self._lookups -= 1
        if not lookup.cancelled():
            lookup.exception()  # the caller that waited may be gone; a failed look-up is no fault

    async def _race(self, addresses: list[Address], port: int, deadline: float) -> socket.socket:
        if len(addresses) == 1:  # the daemon often names but one; a task for it alone costs more
            try:
                return await self._connect(addresses[0], port, deadline - self._loop.time())
            except OSError as error:
                raise DialError(outcome_of(error)) from None
        waiting = deque(addresses)
        running: set[asyncio.Task[socket.socket]] = set()
        failures: list[DialOutcome] = []
        connected: list[socket.socket] = []
        try:
            while not connected and (waiting or running):
                left = deadline - self._loop.time()
                if left <= 0:
                    raise DialError(DialOutcome.TIMED_OUT)
                if waiting:
                    address = waiting.popleft()
                    running.add(self._loop.create_task(self._connect(address, port, left)))
                done, running = await asyncio.wait(
                    running,
                    timeout=min(left, STAGGER_SECONDS) if waiting else left,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                _sort(done, connected, failures)
        finally:
            _end(running, connected)
        if not connected:
            raise DialError(max(failures, key=_RANK.index))
        return connected[0]

    async def _connect(self, address: Address, port: int, seconds: float) -> socket.socket:
        sock = await self._connect_socket(address, port, seconds)
        try:
            peer = sock.getpeername()
        except OSError as error:  # the target has reset it since it connected
            sock.close()
            raise DialError(outcome_of(error)) from None
        if not self._guard.permits_peer(peer[0], peer[1]):
            sock.close()
            raise DialError(DialOutcome.NOT_ALLOWED)
        return sock


async def connect(address: Address, port: int, seconds: float) -> socket.socket:
    """Return a socket that is connected to an address.

    Raises:
        OSError: it cannot be connected; TimeoutError after this time.
    """
    loop = asyncio.get_running_loop()
    sock = new_socket(address)
    try:
        attempt = loop.create_task(loop.sock_connect(sock, (str(address), port)))
        try:
            await asyncio.wait({attempt}, timeout=seconds)
            if not attempt.done():
                raise TimeoutError
            attempt.result()
        finally:
            attempt.cancel()
            with suppress(OSError, asyncio.CancelledError):
                await attempt
    except BaseException:
        sock.close()
        raise
    return sock


def new_socket(address: Address) -> socket.socket:
    """Return a socket that does not block, for connections to an address.

    Raises:
        OSError: there is no descriptor for it.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # asyncio does so only for sockets that name their protocol. Without it the second of two
        # short writes waits for an acknowledgement, which the other side delays by 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A byte that was sent as urgent stays among the others: it was counted, and is passed on.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def outcome_of(error: OSError) -> DialOutcome:
    """Return the report of a failed connect.

    It is never a fault of this device: a stranger chooses the target, and a target chooses how a
    connect fails. An error without an entry here comes from the network or the target.
    """
    if isinstance(error, ConnectionRefusedError):
        return DialOutcome.REFUSED
    if isinstance(error, TimeoutError) or error.errno in _TIMED_OUT:
        return DialOutcome.TIMED_OUT
    for numbers, outcome in (
        (_REFUSED, DialOutcome.REFUSED),
        (_NETWORK_UNREACHABLE, DialOutcome.NETWORK_UNREACHABLE),
        (_AT_LIMIT, DialOutcome.AT_LIMIT),
        (_NOT_ALLOWED, DialOutcome.NOT_ALLOWED),
    ):
        if error.errno in numbers:
            return outcome
    return DialOutcome.HOST_UNREACHABLE


def _sort(
    done: set[asyncio.Task[socket.socket]],
    connected: list[socket.socket],
    failures: list[DialOutcome],
) -> None:
    for attempt in done:
        error = attempt.exception()
        if error is None:
            connected.append(attempt.result())
        elif isinstance(error, DialError):
            failures.append(error.outcome)
        elif isinstance(error, OSError):
            failures.append(outcome_of(error))
        else:
            raise error


def _end(running: set[asyncio.Task[socket.socket]], connected: list[socket.socket]) -> None:
    """Cancel the attempts that lost, and close the sockets that they still connect."""
    for attempt in running:
        attempt.add_done_callback(_close_late)
        attempt.cancel()
    for sock in connected[1:]:
        sock.close()


def _close_late(attempt: asyncio.Task[socket.socket]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
