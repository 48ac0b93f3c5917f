"""UDP ASSOCIATE: relays a client's datagrams, each metered, while its TCP connection lasts.

A datagram is sent on whole or not at all; what is dropped is not counted (RFC 1928, section 7).
Answers are let through only from where the client has sent something, because whoever else could
reach the socket would spend the client's bytes.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from proxyd.egress.policy import Policy
from proxyd.egress.resolve import LookupFailedError, NameNotFoundError, Resolver
from proxyd.meter import LiveSession
from proxyd.poller import READS, Poller
from proxyd.relay.closing import Closer, reset
from proxyd.wire.datagram import Datagram, header, unwrap
from proxyd.wire.events import Address
from proxyd.wire.hosts import address_of

DATAGRAM_MAX_BYTES = 65_536
DATAGRAMS_PER_TURN = 32
TARGETS_MAX = 1024
LOOKUPS_MAX = 16
DISCARD_BYTES = 4096

SocketAddress = tuple[str, int] | tuple[str, int, int, int]

_logger = logging.getLogger("relay")


class Datagrams:
    """What all associations of a loop share.

    Args:
        loop: the event loop.
        poller: watches their sockets.
        closer: takes over the TCP connections of those that end in order.
        resolver: looks targets up that are given as names.
        policy: says which targets may be sent to.
    """

    __slots__ = ("buffer", "closer", "loop", "policy", "poller", "resolver", "view")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        closer: Closer,
        resolver: Resolver,
        policy: Policy,
    ) -> None:
        self.loop = loop
        self.poller = poller
        self.closer = closer
        self.resolver = resolver
        self.policy = policy
        self.buffer = bytearray(DATAGRAM_MAX_BYTES)
        self.view = memoryview(self.buffer)


class Association:
    """One client's datagrams, to and from any number of targets.

    Args:
        shared: what all associations share.
        control: the client's TCP connection, non-blocking; owned from here on.
        inner: a bound UDP socket that the client sends to, non-blocking; owned from here on.
        client: the client's address, the only one that may send.
        client_port: the port it has said it will send from; 0 when that is to be seen.
        session: whose bytes are spent.
        closed: called once, when the association has let go of everything.
    """

    __slots__ = (
        "_client",
        "_client_address",
        "_closed",
        "_control",
        "_inner",
        "_lookups",
        "_outer",
        "_session",
        "_shared",
        "_targets",
        "active_at",
        "bytes_down",
        "bytes_up",
        "is_closed",
    )

    def __init__(
        self,
        shared: Datagrams,
        control: socket.socket,
        inner: socket.socket,
        client: Address,
        client_port: int,
        session: LiveSession,
        closed: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._control = control
        self._inner = inner
        self._client = client
        self._client_address: SocketAddress | None = None
        if client_port:
            self._client_address = _as_seen_by(inner, client, client_port)
        self._session = session
        self._closed = closed
        self._outer: dict[int, socket.socket] = {}
        self._targets: dict[tuple[Address, int], None] = {}
        self._lookups: set[asyncio.Task[None]] = set()
        self.active_at = shared.loop.time()
        self.bytes_up = 0
        self.bytes_down = 0
        self.is_closed = False

    def start(self) -> None:
        """Begin to relay."""
        poller = self._shared.poller
        poller.watch(self._control.fileno(), _Reader(self, self._control_ready))
        poller.watch(self._inner.fileno(), _Reader(self, self._inner_ready))

    def finish(self) -> None:
        """Stop relaying, and end the TCP connection in order."""
        if self._release():
            self._shared.closer.close(self._control)
            self._closed()

    def abort(self) -> None:
        """Stop relaying at once, and reset the TCP connection."""
        if self._release():
            self._shared.poller.forget(self._control.fileno())
            reset(self._control)
            self._closed()

    def fail(self, error: Exception) -> None:
        """Stop because of a mistake of ours, which is logged with its traceback."""
        _logger.error("an association failed and is cut", exc_info=error)
        self.abort()

    def _release(self) -> bool:
        if self.is_closed:
            return False
        self.is_closed = True
        for task in self._lookups:
            task.cancel()
        for sock in (self._inner, *self._outer.values()):
            self._shared.poller.forget(sock.fileno())
            sock.close()
        return True

    # --- the three kinds of sockets ------------------------------------------------------------

    def _control_ready(self) -> None:
        """The association ends with its TCP connection; what is said there means nothing."""
        try:
            while self._control.recv(DISCARD_BYTES):
                pass
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.abort()
            return
        self.finish()

    def _inner_ready(self) -> None:
        for _ in range(DATAGRAMS_PER_TURN):
            if self.is_closed:
                return
            try:
                size, sender = self._inner.recvfrom_into(self._shared.buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an ICMP error about an earlier datagram
            if self._is_client(sender):
                datagram = unwrap(self._shared.view[:size])
                if datagram is not None:
                    self._send_up(datagram)
        self._again(self._inner_ready)

    def _outer_ready(self, outer: socket.socket) -> None:
        for _ in range(DATAGRAMS_PER_TURN):
            if self.is_closed:
                return
            try:
                size, sender = outer.recvfrom_into(self._shared.buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an ICMP error about an earlier datagram
            source = (address_of(sender[0]), sender[1])
            if source in self._targets:
                self._send_down(source, size)
        self._again(lambda: self._outer_ready(outer))

    def _again(self, read: Callable[[], None]) -> None:
        """Read on in the next turn, so that all get theirs."""
        self._shared.loop.call_soon(_Reader(self, read).ready, READS)

    def _is_client(self, sender: SocketAddress) -> bool:
        """Say whether a datagram is the client's; the first one tells which port it sends from."""
        if self._client_address is None and address_of(sender[0]) == self._client:
            self._client_address = sender
        known = self._client_address
        return known is not None and sender[:2] == known[:2]

    # --- up ------------------------------------------------------------------------------------

    def _send_up(self, datagram: Datagram) -> None:
        host, port, payload = datagram
        if not isinstance(host, str):
            self._send_to(host, port, payload)
            return
        try:
            addresses = self._shared.resolver.cached(host)
        except NameNotFoundError:
            return
        if addresses is not None:
            self._send_to_first(addresses, port, payload)
        elif len(self._lookups) < LOOKUPS_MAX:
            task = self._shared.loop.create_task(self._look_up(host, port, bytes(payload)))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)

    async def _look_up(self, name: str, port: int, payload: bytes) -> None:
        with suppress(NameNotFoundError, LookupFailedError):
            addresses = await self._shared.resolver.resolve(name)
            if not self.is_closed:
                self._send_to_first(addresses, port, payload)

    def _send_to_first(
        self, addresses: list[Address], port: int, payload: bytes | memoryview
    ) -> None:
        """Send to the first address that may be sent to and that there is a way to."""
        for address in addresses:
            if self._send_to(address, port, payload):
                return

    def _send_to(self, host: Address, port: int, payload: bytes | memoryview) -> bool:
        """Send a datagram on if it may be, and if the budget pays for all of it."""
        target = (host, port)
        size = len(payload)
        if target not in self._targets and not self._shared.policy.permits(host, port):
            return False
        outer = self._outer_for(host)
        if outer is None:
            return False
        if size > self._session.allowance(self):
            return True
        self._session.take(size, self)
        try:
            outer.sendto(payload, (str(host), port))
        except OSError:
            self._session.give_back(size)
            return False
        self._remember(target)
        self.bytes_up += size
        self._count(size)
        return True

    def _outer_for(self, host: Address) -> socket.socket | None:
        """Return the socket that sends to a family of addresses; None when it cannot be had."""
        outer = self._outer.get(host.version)
        if outer is not None:
            return outer
        family = socket.AF_INET if host.version == 4 else socket.AF_INET6
        try:
            outer = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError:
            return None
        try:
            if family == socket.AF_INET6:
                outer.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            outer.bind(("", 0))
        except OSError:
            outer.close()
            return None
        self._outer[host.version] = outer
        reader = _Reader(self, lambda: self._outer_ready(outer))
        self._shared.poller.watch(outer.fileno(), reader)
        return outer

    def _remember(self, target: tuple[Address, int]) -> None:
        """Let answers through from where the client has sent to, the latest so many of them."""
        self._targets.pop(target, None)
        self._targets[target] = None
        if len(self._targets) > TARGETS_MAX:
            del self._targets[next(iter(self._targets))]

    # --- down ----------------------------------------------------------------------------------

    def _send_down(self, source: tuple[Address, int], size: int) -> None:
        """Send an answer to the client, if the budget pays for all of it."""
        if self._client_address is None or size > self._session.allowance(self):
            return
        self._session.take(size, self)
        parts = (header(*source), self._shared.view[:size])
        try:
            self._inner.sendmsg(parts, (), 0, self._client_address)
        except OSError:
            self._session.give_back(size)
            return
        self.bytes_down += size
        self._count(size)

    def _count(self, size: int) -> None:
        self.active_at = self._shared.loop.time()
        if size:
            self._session.deliver(size)


class _Reader:
    """One of an association's sockets, as the poller sees it."""

    __slots__ = ("_association", "_read")

    def __init__(self, association: Association, read: Callable[[], None]) -> None:
        self._association = association
        self._read = read

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if not events & READS or self._association.is_closed:
            return
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - logged there; half an association helps nobody
            self._association.fail(error)

    def fail(self, error: Exception) -> None:
        """See `Watcher.fail`."""
        self._association.fail(error)


def _as_seen_by(sock: socket.socket, host: Address, port: int) -> SocketAddress:
    """Return an address as a socket of this family would name it."""
    if sock.family == socket.AF_INET6 and host.version == 4:
        return (f"::ffff:{host}", port, 0, 0)
    return (str(host), port)
