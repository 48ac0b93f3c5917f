"""Carries one buyer's datagrams: between a work connection and any number of targets.

On the work connection each datagram stands behind a length of two bytes and the header of RFC 1928,
section 7: towards this device the header names the target, and the other way it names the sender.
Every target is judged before something is sent there, and again after a while; answers are passed
on from where something was sent to, and from nowhere else. A datagram without room is dropped, the
oldest first: no program waits for a datagram.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final, Protocol, cast

from proxyctl.attach.network.lan import public_name
from proxyctl.attach.relay.dial import DialError
from proxyctl.attach.relay.relay import reset
from proxyctl.protocol.addresses import Address, plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from proxyctl.attach.relay.relays import Meter

TARGETS_MAX: Final = 512  # of one buyer; the longest unused target is forgotten first
JUDGED_SECONDS: Final = 5.0  # afterwards the device may be on another network
WAITING_MAX_BYTES: Final = 128 * 1024  # towards the daemon, besides the kernel's buffers
FULL_BYTES: Final = 32 * 1024  # of these bytes, in the buffer of the loop
NAMES_MAX: Final = 64
NAME_SECONDS: Final = 60.0  # the use of one address of a name
LOOKUPS_MAX: Final = 8  # of one buyer at the same time
LOOKUP_WAITING_MAX_BYTES: Final = 64 * 1024
OVERHEAD_BYTES: Final = 128  # the memory of a waiting datagram besides its bytes
DATAGRAM_MAX_BYTES: Final = 65_535

_IPV4: Final = 1
_NAME: Final = 3
_IPV6: Final = 4
_HEAD: Final = 4  # before the address: two reserved bytes, the fragment, the address's type
_LENGTH: Final = 2
_PORT: Final = 2
_ANYWHERE: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - every way out


@dataclass(frozen=True)
class DatagramTimes:
    """How long datagrams and names are kept.

    Attributes:
        idle_seconds: the daemon's own bound is 300 s by default, and comes first.
        failed_name_seconds: a name without an address is looked up again after it, because the
            failure may have passed.
    """

    idle_seconds: float = 330.0
    failed_name_seconds: float = 1.0


USUAL: Final = DatagramTimes()


class DatagramError(Exception):
    """Bytes from the daemon that are no datagram."""


class Lookup(Protocol):
    """Looks a name up; raises DialError."""

    def __call__(self, name: str, port: int) -> Awaitable[list[Address]]:
        """Return the addresses of a name."""


def wrapped(address: Address, port: int, payload: bytes) -> bytes:
    """Return a datagram in the daemon's format; empty if it is too large for the format."""
    kind = _IPV4 if address.version == 4 else _IPV6
    head = bytes((0, 0, 0, kind)) + address.packed + port.to_bytes(_PORT, "big")
    size = len(head) + len(payload)
    return size.to_bytes(_LENGTH, "big") + head + payload if size <= DATAGRAM_MAX_BYTES else b""


def unwrapped(data: bytes) -> tuple[Address | str, int, bytes]:
    """Return the target of a datagram from the daemon, and its payload.

    Raises:
        DatagramError: the bytes are no datagram.
    """
    kind = data[3] if len(data) > _HEAD else 0
    start = _HEAD + (kind == _NAME)
    end = start + {_IPV4: 4, _IPV6: 16, _NAME: data[_HEAD] if kind else 0}.get(kind, 1 << 16)
    if len(data) < end + _PORT:
        raise DatagramError
    encoded = data[start:end]
    host: Address | str
    if kind == _IPV4:
        host = IPv4Address(encoded)
    elif kind == _IPV6:
        host = IPv6Address(encoded)
    else:
        host = encoded.decode("ascii", "replace")
    return host, int.from_bytes(data[end : end + _PORT], "big"), data[end + _PORT :]


class _Target:
    """Target of datagrams, which is permitted or denied."""

    __slots__ = ("address", "is_permitted", "judged_at")

    def __init__(self, address: Address, judged_at: float, *, is_permitted: bool) -> None:
        self.address = address
        self.judged_at = judged_at
        self.is_permitted = is_permitted


# More than 12 fields: objects that it was given, its sockets, and the bytes that wait in each
# direction.
class DatagramRelay:
    """One buyer's datagrams, until the work connection ends.

    Args:
        permits: says whether an address and port may be sent to.
        meter: counts every byte of payload, both ways.
        noted: called with the host and the port of each new target.
        over: called once, when all its sockets are gone.
    """

    def __init__(
        self,
        *,
        permits: Callable[[Address, int], bool],
        look_up: Lookup,
        meter: Meter,
        noted: Callable[[str, int], None],
        over: Callable[[DatagramRelay], None],
        loop: asyncio.AbstractEventLoop,
        times: DatagramTimes = USUAL,
    ) -> None:
        self._times = times
        self.moved_at = loop.time()
        self._permits = permits
        self._look_up = look_up
        self._meter = meter
        self._noted = noted
        self._over = over
        self._loop = loop
        self.work = WorkStream(self)
        self._outer: dict[int, tuple[socket.socket, asyncio.DatagramTransport]] = {}
        self._targets: dict[tuple[str, int], _Target] = {}
        self._names: dict[str, tuple[list[Address], float]] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, list[tuple[int, bytes]]] = {}
        self._asked_bytes = 0
        self._quiet_until = 0.0
        self._is_over = False

    async def open(self) -> None:
        """Open a socket for each family of addresses that the device has.

        Raises:
            OSError: no socket could be opened.
        """
        for family, host in _ANYWHERE.items():
            with suppress(OSError):
                await self._open(family, host)
        if not self._outer:
            raise OSError("no socket for datagrams")

    async def _open(self, family: socket.AddressFamily, host: str) -> None:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, 0))
            transport, _ = await self._loop.create_datagram_endpoint(
                lambda: _Outer(self.answered), sock=sock
            )
        except BaseException:
            sock.close()
            raise
        self._outer[4 if family == socket.AF_INET else 6] = (sock, transport)

    def tend(self) -> None:
        """End it if nothing has gone through for long."""
        if self.moved_at < self._loop.time() - self._times.idle_seconds:
            self.abort()

    def abort(self) -> None:
        """Reset the work connection, and close everything else immediately."""
        self._close()
        if self.work.transport is None:
            self.lost()
        else:
            reset(self.work.transport)

    def lost(self) -> None:
        """The work connection is gone, or never was."""
        if not self._is_over:
            self._is_over = True
            self._close()
            self._over(self)

    def _close(self) -> None:
        """Close the sockets of targets; cancel the look-ups."""
        for task in tuple(self._lookups.values()):
            task.cancel()
        for _, transport in self._outer.values():
            transport.abort()
        self._outer.clear()

    # --- towards targets -----------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send a datagram where the daemon wants it, if it may go there.

        Raises:
            DatagramError: the bytes are no datagram.
        """
        host, port, payload = unwrapped(data)
        if not isinstance(host, str):
            self._send_to(plain(host), port, payload)
            return
        addresses, until = self._names.get(host, ([], 0.0))
        if until > self._loop.time() and host not in self._lookups:
            self._send_to_one_of(addresses, host, port, payload)
        else:
            self._keep(host, port, payload)

    def _send_to(self, address: Address, port: int, payload: bytes, name: str = "") -> bool:
        """Send to an address; False when another one of the same name may do better."""
        target = self._judged(address, port, name)
        if not target.is_permitted or address.version not in self._outer:
            return False
        sock, _ = self._outer[address.version]
        try:
            sock.sendto(payload, (str(address), port))
        except BlockingIOError:
            return True  # lost, as in any full queue
        except OSError:
            return False
        self.moved_at = self._loop.time()
        seconds = self._meter.count(len(payload))
        if seconds:
            self.work.rest(seconds, self._loop)
        return True

    def _judged(self, address: Address, port: int, name: str) -> _Target:
        """Return a target that was judged recently."""
        key, now = (str(address), port), self._loop.time()
        target = self._targets.pop(key, None)
        if target is None or target.judged_at + JUDGED_SECONDS < now:
            is_permitted = self._permits(address, port)
            if is_permitted and (target is None or not target.is_permitted):
                self._noted(name or str(address), port)
            target = _Target(address, now, is_permitted=is_permitted)
        self._targets[key] = target
        if len(self._targets) > TARGETS_MAX:
            del self._targets[next(iter(self._targets))]
        return target

    def _send_to_one_of(
        self, addresses: list[Address], name: str, port: int, payload: bytes
    ) -> None:
        """Send to one that was sent to before, or to the first that may be, IPv4 before IPv6."""
        known = self._targets
        for address in sorted(
            addresses, key=lambda each: ((str(each), port) not in known, each.version)
        ):
            if self._send_to(address, port, payload, name):
                return

    def _keep(self, name: str, port: int, payload: bytes) -> None:
        """Keep a datagram until its target is looked up, if there is room."""
        size = len(payload) + OVERHEAD_BYTES
        if self._asked_bytes + size > LOOKUP_WAITING_MAX_BYTES:
            return
        if name not in self._lookups:
            # A name that is never looked up takes no room from other names.
            if len(self._lookups) >= LOOKUPS_MAX or public_name(name) is None:
                return
            task = self._loop.create_task(self._resolve(name, port))
            self._lookups[name] = task
            task.add_done_callback(lambda done: done.cancelled() or done.result())
        self._asked.setdefault(name, []).append((port, payload))
        self._asked_bytes += size

    async def _resolve(self, name: str, port: int) -> None:
        """Look a name up, and send its waiting datagrams in their order of arrival."""
        addresses: list[Address] = []
        seconds = self._times.failed_name_seconds
        try:
            with suppress(DialError):
                addresses = [plain(each) for each in await self._look_up(name, port)]
                seconds = NAME_SECONDS
        finally:
            del self._lookups[name]
            waiting = self._asked.pop(name, [])
            self._asked_bytes -= sum(len(each) + OVERHEAD_BYTES for _, each in waiting)
        if len(self._names) >= NAMES_MAX:
            del self._names[next(iter(self._names))]
        self._names[name] = addresses, self._loop.time() + seconds
        for each_port, payload in waiting:
            self._send_to_one_of(addresses, name, each_port, payload)

    # --- back ----------------------------------------------------------------------------------

    def answered(self, payload: bytes, sender: tuple[str, int]) -> None:
        """Pass an answer on, if it comes from where something was sent to."""
        target = self._targets.get((sender[0], sender[1]))
        if target is None or not target.is_permitted:
            return
        now = self._loop.time()
        if now < self._quiet_until:
            return  # the device goes no faster
        data = wrapped(target.address, sender[1], payload)
        if not data:
            return
        self.moved_at = now
        self._quiet_until = now + self._meter.count(len(payload))
        self.work.write(data)


class WorkStream(asyncio.Protocol):
    """The work connection: one datagram after the other."""

    def __init__(self, relay: DatagramRelay) -> None:
        self.transport: asyncio.Transport | None = None
        self._relay = relay
        self._read = b""
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(FULL_BYTES)

    def data_received(self, data: bytes) -> None:
        """Send every datagram that is whole, and keep the rest."""
        data = self._read + data if self._read else data
        at = 0
        while len(data) - at >= _LENGTH:
            after = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "big")
            if after > len(data):
                break
            try:
                self._relay.send(data[at + _LENGTH : after])
            except DatagramError:
                self._relay.abort()
                return
            at = after
        self._read = data[at:]

    def eof_received(self) -> bool:
        """Close the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's signature
        """End the relay."""
        self._waiting.clear()
        self._relay.lost()

    def pause_writing(self) -> None:
        """Keep answers here: the oldest can be dropped here."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Write waiting datagrams until the transport is full."""
        self._is_full = False
        while self._waiting and not self._is_full and self.transport is not None:
            data = self._waiting.popleft()
            self._waiting_bytes -= len(data) + OVERHEAD_BYTES
            self.transport.write(data)

    def write(self, data: bytes) -> None:
        """Write an answer, or keep it; the oldest make room for it."""
        if self.transport is None or self.transport.is_closing():
            return
        if not self._is_full:
            self.transport.write(data)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data) + OVERHEAD_BYTES
        while self._waiting_bytes > WAITING_MAX_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft()) + OVERHEAD_BYTES

    def rest(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Stop reading for this time."""
        transport = self.transport
        if transport is not None and transport.is_reading() and not transport.is_closing():
            transport.pause_reading()
            loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            with suppress(RuntimeError):  # it has read everything already
                self.transport.resume_reading()


class _Outer(asyncio.DatagramProtocol):
    """A socket that targets see.

    Args:
        answered: receives the answers of the targets.
    """

    def __init__(self, answered: Callable[[bytes, tuple[str, int]], None]) -> None:
        self._answered = answered

    def datagram_received(self, data: bytes, addr: tuple[object, ...]) -> None:
        """Hand an answer over."""
        self._answered(data, cast("tuple[str, int]", addr))
