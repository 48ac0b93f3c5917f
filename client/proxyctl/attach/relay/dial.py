"""Connects to targets: looked up here if need be, judged here always, one address after the other.

The next address starts when the one before has failed or has had a quarter of a second, and the
first that connects is taken (RFC 8305, section 5).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Union

from proxyctl.attach.network.lan import NEVER_PORTS, public_name
from proxyctl.attach.relay.attempts import TaskAttempt, close_spare
from proxyctl.protocol.addresses import Address, plain
from proxyctl.protocol.frames import CANDIDATES_MAX, DialOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from proxyctl.attach.network.lan import Guard
    from proxyctl.attach.relay.attempts import Attempt, Connected

    # Begins to connect to an address and port within some seconds.
    Connect = Callable[[Address, int, float, Connected], Attempt]
    PermitsPort = Callable[[Union[Address, None]], bool]
    Dialled = Callable[[Union["Reached", DialOutcome]], None]

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
_NONBLOCK: Final = getattr(socket, "SOCK_NONBLOCK", 0)  # not on macOS and Windows
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


class Reached(NamedTuple):
    """A target that was reached: the connected socket, and the address there."""

    sock: socket.socket
    host: str


class Dialer:
    """Connects to targets that the guard permits.

    Args:
        guard: judges every address before it is dialled, and every socket after it has connected.
        connect: begins to connect to an address, as `begin_connect` does here.
        seconds: for a dial, its look-up included.
    """

    def __init__(
        self,
        guard: Guard,
        connect: Connect,
        loop: asyncio.AbstractEventLoop,
        seconds: float = DIAL_SECONDS,
    ) -> None:
        self.guard = guard
        self.connect = connect
        self.loop = loop
        self._seconds = seconds
        self._lookups = 0

    def begin(
        self,
        host: tuple[Address, ...] | str,
        port: int,
        permits_port: PermitsPort,
        done: Dialled,
    ) -> Attempt:
        """Begin to dial a target.

        A buyer must not learn which names exist only at home. So a name with no other addresses is
        unknown, and the port is judged before the look-up.

        Args:
            host: some addresses, or a name.
            port: of the target.
            permits_port: says whether the limits have this port at an address; at some address for
                None.
            done: called with the connected socket, which its receiver owns, or with the reason for
                a failure.
        """
        dial = _Dial(self, port, permits_port, done, self.loop.time() + self._seconds)
        if port in NEVER_PORTS or not permits_port(None):
            dial.refuse(DialOutcome.NOT_ALLOWED)
        elif isinstance(host, str):
            dial.look_up(host)
        else:
            dial.judge(host)
        return dial

    async def dial(
        self, host: tuple[Address, ...] | str, port: int, permits_port: PermitsPort
    ) -> socket.socket:
        """Return a connected socket; see `begin`.

        Raises:
            DialError: the reason for a failure.
        """
        outcome: asyncio.Future[Reached | DialOutcome] = self.loop.create_future()

        def done(result: Reached | DialOutcome) -> None:
            if not outcome.done():
                outcome.set_result(result)
            elif isinstance(result, Reached):
                result.sock.close()

        attempt = self.begin(host, port, permits_port, done)
        try:
            result = await outcome
        except asyncio.CancelledError:
            attempt.cancel()
            if not outcome.cancelled() and isinstance(outcome.result(), Reached):
                done(outcome.result())
            raise
        if isinstance(result, Reached):
            return result.sock
        raise DialError(result)

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
        lookup = self.loop.create_task(
            self.loop.getaddrinfo(absolute, port, type=socket.SOCK_STREAM)
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

    def judged(self, sock: socket.socket, address: Address, port: int) -> Reached | DialOutcome:
        """Judge a socket where it has connected; one that may not stay is closed."""
        try:
            host, there = sock.getpeername()[:2]
        except OSError as error:  # the target has reset it since it connected
            sock.close()
            return outcome_of(error)
        if there == port and _names(host, address):  # reading the text again would cost more
            is_permitted = self.guard.permits(address, port)
        else:
            is_permitted = self.guard.permits_peer(host, there)
        if is_permitted:
            return Reached(sock, host)
        sock.close()
        return DialOutcome.NOT_ALLOWED


class _Dial:
    """One dial: a look-up if need be, the judgement, and attempts at each address in turn.

    Args:
        done: see `Dialer.begin`.
        deadline: for all of it, in the loop's time.
    """

    __slots__ = (
        "_attempts",
        "_deadline",
        "_dialer",
        "_done",
        "_failures",
        "_permits_port",
        "_port",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        dialer: Dialer,
        port: int,
        permits_port: PermitsPort,
        done: Dialled,
        deadline: float,
    ) -> None:
        self._dialer = dialer
        self._port = port
        self._permits_port = permits_port
        self._done: Dialled | None = done
        self._deadline = deadline
        self._waiting: list[Address] = []  # the next one last
        self._attempts: dict[int, Attempt] = {}  # by the number of addresses that waited then
        self._failures: list[DialOutcome] = []
        self._timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """See `Attempt.cancel`."""
        self._done = None
        self._release()

    def refuse(self, outcome: DialOutcome) -> None:
        """Report a failure in the next turn of the loop."""
        self._dialer.loop.call_soon(self._finish, outcome)

    def look_up(self, name: str) -> None:
        """Look a name up, and dial its addresses."""
        lookup = TaskAttempt(self._dialer.loop, self._addresses(name), self._looked_up)
        self._attempts[len(self._waiting)] = lookup

    def judge(self, host: Sequence[Address], *, is_name: bool = False) -> None:
        """Dial those of some addresses that are permitted."""
        guard, port, permits_port = self._dialer.guard, self._port, self._permits_port
        addresses = list(map(plain, host))
        if len(addresses) > 1:
            addresses = list(dict.fromkeys(addresses))
        permitted = [
            address
            for address in addresses
            if permits_port(address) and guard.permits(address, port)
        ]
        if permitted:
            self._waiting = permitted[CANDIDATES_MAX - 1 :: -1]
            self._next()
        else:
            self.refuse(self._refusal(addresses, is_name=is_name))

    async def _addresses(self, name: str) -> list[Address] | DialOutcome:
        try:
            return await self._dialer.look_up(name, self._port)
        except DialError as error:
            return error.outcome

    def _looked_up(self, found: list[Address] | DialOutcome | OSError) -> None:
        self._attempts.clear()
        if isinstance(found, list):
            self.judge(found, is_name=True)
        else:
            self._finish(DialOutcome.NAME_UNKNOWN if isinstance(found, OSError) else found)

    def _refusal(self, addresses: Iterable[Address], *, is_name: bool) -> DialOutcome:
        """Return why none of the addresses of a target may be dialled, as the buyer learns it."""
        guard = self._dialer.guard
        far = [address for address in addresses if guard.is_far(address, self._port)]
        if not all(map(guard.knows, far)):
            return DialOutcome.NETWORK_UNREACHABLE
        return DialOutcome.NOT_ALLOWED if far or not is_name else DialOutcome.NAME_UNKNOWN

    def _next(self) -> None:
        """Begin with the next address, and with the one after it a little later."""
        self._timer = None
        dialer = self._dialer
        left = self._deadline - dialer.loop.time()
        address, number = self._waiting.pop(), len(self._waiting)
        connected = partial(self._connected, address, number)
        self._attempts[number] = dialer.connect(address, self._port, max(left, 0.0), connected)
        if number:
            self._timer = dialer.loop.call_later(STAGGER_SECONDS, self._next)

    def _connected(self, address: Address, number: int, outcome: socket.socket | OSError) -> None:
        del self._attempts[number]
        if isinstance(outcome, OSError):
            result: Reached | DialOutcome = outcome_of(outcome)
        else:
            result = self._dialer.judged(outcome, address, self._port)
        if isinstance(result, Reached):
            self._finish(result)
            return
        self._failures.append(result)
        if self._waiting:
            if self._timer is not None:
                self._timer.cancel()
            self._next()
        elif not self._attempts:
            self._finish(max(self._failures, key=_RANK.index))

    def _finish(self, outcome: Reached | DialOutcome) -> None:
        done, self._done = self._done, None
        self._release()
        if done is not None:
            done(outcome)

    def _release(self) -> None:
        """Give up the attempts that are left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._attempts:
            self._attempts.popitem()[1].cancel()


def begin_connect(
    address: Address, port: int, seconds: float, done: Connected
) -> TaskAttempt[socket.socket]:
    """Begin to connect to an address, by a task, on every system."""
    loop = asyncio.get_running_loop()
    return TaskAttempt(loop, connect(address, port, seconds), done, close_spare)


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
    sock = socket.socket(family, socket.SOCK_STREAM | _NONBLOCK)
    try:
        if not _NONBLOCK:
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


def _names(text: str, address: Address) -> bool:
    """Return whether a text is an address in its usual spelling."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        return socket.inet_pton(family, text) == address.packed
    except OSError:  # with a scope, or of another family
        return False
