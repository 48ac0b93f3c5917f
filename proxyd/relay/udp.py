"""UDP ASSOCIATE: relays a client's datagrams, each metered, while its TCP connection lasts.

They leave from this machine, or through an exit (`exit_datagrams.ExitWay`). Forbidden destinations
never reach an exit.

A datagram is sent on whole or not at all; dropped datagrams are not counted (RFC 1928, section 7).
One without a payload is free, so a session may send only a bounded number of datagrams a second, of
any size. Answers are let through only from where the client has sent something: anybody else who
could reach the socket would spend the client's bytes.

An exit passes such answers on only, and goes no faster than it may. The datagrams of an exit that
are dropped here cost work and no bytes, so they have a rate too; an exit that keeps going over it
is given up, and the association ends.

An association has three kinds of sockets: the client's TCP connection, a UDP socket at the address
that the client dialled, and a UDP socket towards the targets for each family of addresses. The
client receives the address of the UDP socket without a wait. The association ends with the TCP
connection, and the TCP connection with the association.

A datagram counts once the kernel has it. It is dropped if the budget cannot pay for it, if the
session is over its rate, if it is a fragment or malformed, or if it comes from a stranger: not the
client, nor one of its targets. Datagrams to a name wait for the look-up in their order; an
association looks up sixteen names at most.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import final

from market.base.networks import counted_network, plain
from proxyctl.protocol.policy import Policy
from proxyd.access import Destinations, Hour
from proxyd.egress.names import canonical, is_number
from proxyd.egress.resolve import LookupFailedError, NameNotFoundError, Resolver
from proxyd.loop.poller import READS, Watcher
from proxyd.loop.reactor import Reactor
from proxyd.metering.exit_share import ExitShare
from proxyd.metering.session import LiveSession
from proxyd.relay.closing import Closer, reset
from proxyd.relay.exit_datagrams import ExitWay, Receiver
from proxyd.wire.datagram import Datagram, header, unwrap
from proxyd.wire.events import Address
from proxyd.wire.hosts import address_of

READS_PER_TURN = 32  # a socket with more goes on in the next turn, after all others
# Datagrams of one exit for one session, besides those that are relayed. An honest exit has some
# when a target sends faster than the session may receive. It is the default rate of a session.
DROPPED_PER_SECOND = 20_000
TARGETS_MAX = 1024  # a peer-to-peer client's swarm; the memory of an association is bounded by it

LOOKUPS_MAX = 16  # simultaneous names of one association: a web page has fewer
WAITING_MAX_BYTES = 131_072  # two of the largest datagrams, or a burst of ordinary ones
WAITING_OVERHEAD_BYTES = 1024  # memory of one datagram beside its payload

# A client that has vanished is noticed within 60 + 4 x 15 seconds, and costs nothing meanwhile that
# its targets do not send.
KEEPALIVE_IDLE_SECONDS = 60
KEEPALIVE_PAUSE_SECONDS = 15
KEEPALIVE_PROBES = 4

NEVER = -1  # no hour
NO_HOUR = Hour()

ANYWHERE: dict[int, Address] = {4: IPv4Address(0), 6: IPv6Address(0)}

SocketAddress = tuple[str, int] | tuple[str, int, int, int]

_logger = logging.getLogger("relay")


def datagram_socket(here: Address, scope: int = 0) -> socket.SocketType | None:
    """Return a UDP socket at any free port of this machine; None when that fails.

    Args:
        here: the address to bind, perhaps the unspecified one.
        scope: the link of a link-local address (RFC 4007).
    """
    family = socket.AF_INET if here.version == 4 else socket.AF_INET6
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        _logger.debug("no socket for datagrams: %s", error.strerror)
        return None
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((str(here), 0, 0, scope) if family == socket.AF_INET6 else (str(here), 0))
    except OSError as error:
        _logger.debug("no port for datagrams at %s: %s", here, error.strerror)
        sock.close()
        return None
    return sock


@final
class DatagramEgress:
    """Policy and limits of datagrams: shared by all associations of a gateway.

    `over_rate` counts datagrams that were dropped because their session had had too many recently.

    Args:
        resolver: looks targets up that are given as names.
        policy: says which targets may be sent to.
        allows: says whether the session of this identifier may have one more datagram relayed now.
        tolerates: says whether one more dropped datagram of an exit is acceptable now; the text
            has the identifiers of the session and of the exit.
    """

    __slots__ = ("allows", "over_rate", "policy", "resolver", "tolerates")

    def __init__(
        self,
        resolver: Resolver,
        policy: Policy,
        allows: Callable[[str], bool],
        tolerates: Callable[[str], bool],
    ) -> None:
        self.resolver = resolver
        self.policy = policy
        self.allows = allows
        self.tolerates = tolerates
        self.over_rate = 0


@final
class Association(Receiver):
    """One client's datagrams, to and from any number of targets.

    `is_broken` says that the exit was lost; datagrams themselves know no reset.

    Args:
        closer: takes over the TCP connection when it ends in order.
        control: the client's TCP connection, non-blocking; owned from here on.
        inner: a bound UDP socket that the client sends to, non-blocking; owned from here on.
        client: the client's address, the only one that may send.
        client_port: the port it has announced to send from; 0 when its first datagram shows it.
        closed: called once, when the association has let go of everything.
        way: through which exit the datagrams leave; None for directly. Owned from here on.
        share: the session's share of that exit.
        destinations: records where datagrams go; None without an access log.
        hour: the hour of the access log.
    """

    # More than 12 fields: its three kinds of sockets, and their permitted senders, are one state.
    __slots__ = (
        "_client",
        "_client_address",
        "_client_port",
        "_closed",
        "_closer",
        "_control",
        "_destinations",
        "_egress",
        "_hour",
        "_inner",
        "_lookups",
        "_named",
        "_outer",
        "_reactor",
        "_session",
        "_share",
        "_targets",
        "_waiting_bytes",
        "_way",
        "active_at",
        "bytes_down",
        "bytes_up",
        "is_broken",
        "is_closed",
        "is_half_closed",
    )

    def __init__(
        self,
        reactor: Reactor,
        closer: Closer,
        egress: DatagramEgress,
        control: socket.SocketType,
        inner: socket.SocketType,
        client: Address,
        client_port: int,
        session: LiveSession,
        closed: Callable[[], None],
        way: ExitWay | None = None,
        share: ExitShare | None = None,
        destinations: Destinations | None = None,
        hour: Hour = NO_HOUR,
    ) -> None:
        self._reactor = reactor
        self._closer = closer
        self._egress = egress
        self._control = control
        self._inner = inner
        self._client = client
        self._client_port = client_port
        self._client_address: SocketAddress | None = None
        self._session = session
        self._closed = closed
        self._way = way
        self._share = share
        self._destinations = destinations
        self._hour = hour
        self._outer: dict[int, socket.SocketType] = {}
        # Each target, and each name that the exit was sent, with the hour of its last record. For
        # a name the exit may answer from anywhere.
        self._targets: dict[tuple[Address, int], int] = {}
        self._named: dict[tuple[str, int], int] = {}
        self._lookups: dict[str, _Lookup] = {}
        self._waiting_bytes = 0
        self.active_at = reactor.loop.time()
        self.bytes_up = 0
        self.bytes_down = 0
        self.is_broken = False
        self.is_half_closed = False  # datagrams have no streams
        self.is_closed = False

    def start(self) -> None:
        """Begin to relay."""
        _notice_a_vanished_peer(self._control)
        control = _Reader(self, self._reactor.loop, self._read_control)
        self._reactor.poller.watch(self._control.fileno(), control)
        self._watch(self._inner, self._read_inner)
        control.ready(READS)  # bytes that came with the request were reported to the watcher before
        if self._way is not None and not self.is_closed:
            try:
                self._way.start(self)
            except OSError:
                self.lost()

    def finish(self) -> None:
        """Stop relaying, and end the TCP connection in order."""
        if self._release():
            if self._way is not None:
                self._way.finish()
            self._closer.close(self._control, network=counted_network(str(self._client)))
            self._closed()

    def abort(self) -> None:
        """Stop relaying at once, and reset the TCP connection."""
        if self._release():
            if self._way is not None:
                self._way.abort()
            self._reactor.poller.forget(self._control.fileno())
            reset(self._control)
            self._closed()

    def fail(self, error: BaseException) -> None:
        """Stop because of a fault in this program, and log the traceback."""
        _logger.error("an association failed and is cut", exc_info=error)
        self.abort()

    def _release(self) -> bool:
        """Release all but the TCP connection and the exit's; False when that was done before."""
        if self.is_closed:
            return False
        self.is_closed = True
        for lookup in self._lookups.values():
            lookup.task.cancel()
        for sock in (self._inner, *self._outer.values()):
            self._reactor.poller.forget(sock.fileno())
            sock.close()
        return True

    def _watch(self, sock: socket.SocketType, read: Callable[[], bool]) -> None:
        self._reactor.poller.watch(sock.fileno(), _Reader(self, self._reactor.loop, read))

    # --- the three kinds of sockets: each reads once, and says whether there may be more ---------

    def _read_control(self) -> bool:
        """End the association with its TCP connection; ignore bytes that the client sends there."""
        try:
            size = self._control.recv_into(self._reactor.buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.abort()
            return False
        if not size:
            self.finish()
        return not self.is_closed

    def _read_inner(self) -> bool:
        try:
            size, sender = self._inner.recvfrom_into(self._reactor.buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True  # about an earlier datagram, and reported once
        if self._may_be_client(sender):
            datagram = unwrap(self._reactor.view[:size])
            if datagram is not None:
                self._client_address = sender
                self._send_up(datagram)
        return not self.is_closed

    def _read_outer(self, outer: socket.SocketType) -> bool:
        try:
            size, sender = outer.recvfrom_into(self._reactor.buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True  # about an earlier datagram, and reported once
        source = (address_of(sender[0]), sender[1])
        if source in self._targets:
            self._send_down(source, self._reactor.view[:size])
        return not self.is_closed

    def _may_be_client(self, sender: SocketAddress) -> bool:
        """Return whether a sender is the client; its first good datagram sets its port.

        Until then anybody at its address may be, unless it has announced a port.
        """
        if self._client_address is not None:
            return sender == self._client_address
        return self._client_port in (0, sender[1]) and address_of(sender[0]) == self._client

    # --- up ------------------------------------------------------------------------------------

    def _send_up(self, datagram: Datagram) -> None:
        host, port, payload = datagram
        way = self._way
        if way is not None and way.ports and port not in way.ports:
            return
        if not isinstance(host, str):
            self._send_to(host, port, payload)
            return
        if way is not None and way.looks_up and (name := _name(host)):
            if self._egress.policy.permits_port(port) and self._may_relay(len(payload)):
                self._remember_name(name, port)
                way.send(name, port, payload)
            return
        addresses = None
        if host not in self._lookups:  # the datagrams that wait for it go first
            try:
                addresses = self._egress.resolver.cached(host)
            except NameNotFoundError:
                return
        if addresses is None:
            self._keep(host, port, bytes(payload))
        else:
            self._send_to_one_of(addresses, port, payload)

    def _keep(self, name: str, port: int, payload: bytes) -> None:
        """Keep a datagram until its target is looked up, if there is room."""
        size = len(payload) + WAITING_OVERHEAD_BYTES
        if self._waiting_bytes + size > WAITING_MAX_BYTES:
            return
        lookup = self._lookups.get(name)
        if lookup is None:
            if len(self._lookups) >= LOOKUPS_MAX:
                return
            lookup = _Lookup(self._reactor.loop.create_task(self._look_up(name)))
            self._lookups[name] = lookup
            lookup.task.add_done_callback(self._looked_up)
        lookup.waiting.append((port, payload))
        self._waiting_bytes += size

    async def _look_up(self, name: str) -> None:
        """Look a name up, and send its waiting datagrams in their order of arrival."""
        addresses: list[Address] = []
        try:
            with suppress(NameNotFoundError, LookupFailedError):
                addresses = await self._egress.resolver.resolve(name, self._session.id)
        finally:
            waiting = self._lookups.pop(name).waiting
            self._waiting_bytes -= sum(len(each) + WAITING_OVERHEAD_BYTES for _, each in waiting)
        for port, payload in waiting:
            if self.is_closed:
                return
            self._send_to_one_of(addresses, port, payload)

    def _looked_up(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _send_to_one_of(
        self, addresses: list[Address], port: int, payload: bytes | memoryview
    ) -> None:
        """Send to the first allowed address with a route.

        One that the client has sent to before goes first: a name whose addresses change places must
        not tear a conversation apart. Through an exit the next is IPv4: many have no IPv6, and none
        says so of a datagram.
        """
        through_exit = self._way is not None
        for address in sorted(
            addresses,
            key=lambda each: (
                (each, port) not in self._targets,
                through_exit and each.version == 6,
            ),
        ):
            if self._send_to(address, port, payload):
                return

    def _send_to(self, host: Address, port: int, payload: bytes | memoryview) -> bool:
        """Send a permitted datagram on, if the budget pays for all of it.

        Returns:
            False when another address of the same name may do better.
        """
        host = plain(host)
        target = (host, port)
        size = len(payload)
        if target not in self._targets and not self._egress.policy.permits(host, port):
            return False
        if not self._may_relay(size):
            return True
        if self._way is not None:
            self._remember(target)
            self._way.send(host, port, payload)
            return True
        return self._send_directly(target, payload)

    def _send_directly(self, target: tuple[Address, int], payload: bytes | memoryview) -> bool:
        """Send an allowed datagram from this machine; False as for `_send_to`."""
        host, port = target
        outer = self._outer_to(host)
        if outer is None:
            return False
        try:
            outer.sendto(payload, (str(host), port))
        except BlockingIOError:
            return True  # lost, as in any full queue
        except OSError:
            return False
        self._remember(target)
        self.bytes_up += len(payload)
        self._count(len(payload))
        return True

    def _outer_to(self, host: Address) -> socket.SocketType | None:
        """Return the socket that sends to a family of addresses; None when that fails."""
        outer = self._outer.get(host.version)
        if outer is None:
            outer = datagram_socket(ANYWHERE[host.version])
            if outer is not None:
                self._outer[host.version] = outer
                self._watch(outer, partial(self._read_outer, outer))
        return outer

    def _remember(self, target: tuple[Address, int]) -> None:
        """Accept answers from the latest `TARGETS_MAX` targets of the client."""
        hour = self._hour.number
        if self._targets.pop(target, NEVER) != hour:
            self._note(hour, str(target[0]), target[1])
        self._targets[target] = hour
        if len(self._targets) > TARGETS_MAX:
            del self._targets[next(iter(self._targets))]

    def _remember_name(self, name: str, port: int) -> None:
        """Accept answers from anywhere, and record a name that is new in this hour."""
        hour = self._hour.number
        if self._named.get((name, port), NEVER) != hour:
            self._named[name, port] = hour
            self._note(hour, name, port)
            if len(self._named) > TARGETS_MAX:
                del self._named[next(iter(self._named))]

    def _note(self, hour: int, host: str, port: int) -> None:
        """Record a destination, if there is an access log."""
        if self._destinations is not None:
            outer = self._outer.get(6 if ":" in host else 4)
            source_port = 0 if outer is None else outer.getsockname()[1]
            self._destinations.note(hour, host, port, source_port)

    # --- down ----------------------------------------------------------------------------------

    def arrived(self, host: Address, port: int, payload: memoryview) -> None:
        """See `Receiver.arrived`: the exit is not believed that anybody else may answer."""
        source = (plain(host), port)
        if source in self._targets or (self._named and self._egress.policy.permits(*source)):
            if not self._send_down(source, payload):
                self._dropped()
        else:
            self._dropped()

    def went(self, size: int) -> None:
        """See `Receiver.went`."""
        self.bytes_up += size
        self.active_at = self._reactor.loop.time()

    def lost(self) -> None:
        """See `Receiver.lost`."""
        self.is_broken = True
        self.abort()

    def _dropped(self) -> None:
        """Count a dropped datagram of the exit; give up an exit that has sent too many."""
        if self._share is None or self.is_closed:
            return
        if not self._egress.tolerates(f"{self._session.id} {self._share.device_id}"):
            _logger.debug("an exit is given up: too many of its datagrams were dropped")
            self.lost()

    def _send_down(self, source: tuple[Address, int], payload: memoryview) -> bool:
        """Send an answer to the client, if the budget pays for all of it.

        Returns:
            Whether the session's rate has counted it; one that was lost afterwards is counted too.
        """
        size = len(payload)
        if self._client_address is None or not self._may_relay(size):
            return False
        parts = (header(*source), payload)
        try:
            self._inner.sendmsg(parts, (), 0, self._client_address)
        except OSError:
            return True  # lost, as in any full queue
        self.bytes_down += size
        self._count(size)
        return True

    def _may_relay(self, size: int) -> bool:
        """Return whether the session pays for a datagram, and has not had too many recently."""
        if not self._session.affords(size, self):
            return False
        if self._way is not None and not self._way.is_in_time():
            return False
        if self._egress.allows(self._session.id):
            return True
        self._egress.over_rate += 1
        return False

    def _count(self, size: int) -> None:
        """Count bytes that the kernel took; the last byte of the budget ends the association.

        The loop has run nothing else since the check that the session `affords` it.
        """
        self.active_at = self._reactor.loop.time()
        if size:
            self._session.take(size, self)
            if self._share is not None:
                self._share.deliver(size)
            else:
                self._session.deliver(size)


@final
class _Lookup:
    """A name that is being looked up, and the datagrams that wait for it."""

    __slots__ = ("task", "waiting")

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self.waiting: list[tuple[int, bytes]] = []


@final
class _Reader(Watcher):
    """Watcher of one socket of an association: its reads in each turn are bounded.

    Args:
        read: reads once; returns False when nothing is left to read.
    """

    __slots__ = ("_association", "_is_due", "_loop", "_read")

    def __init__(
        self, association: Association, loop: asyncio.AbstractEventLoop, read: Callable[[], bool]
    ) -> None:
        self._association = association
        self._loop = loop
        self._read = read
        self._is_due = False

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if events & READS and not self._is_due:
            self._turn()

    def fail(self, error: Exception) -> None:
        """See `Watcher.fail`."""
        self._association.fail(error)

    def _turn(self) -> None:
        """Read a number of times; if more is left, continue in the next turn of the loop."""
        self._is_due = False
        if self._association.is_closed:
            return
        try:
            for _ in range(READS_PER_TURN):
                if not self._read():
                    return
        except Exception as error:  # noqa: BLE001 - logged there; half an association helps nobody
            self._association.fail(error)
            return
        self._is_due = True
        self._loop.call_soon(self._turn)


def _name(host: str) -> str:
    """Return a name as an exit may look it up; "" for an address in an old spelling."""
    name = canonical(host) or ""
    return "" if is_number(name) else name


def _notice_a_vanished_peer(control: socket.SocketType) -> None:
    """Make the kernel check that the peer is alive: nothing else is ever sent to it.

    Without that, datagrams to a client that is long gone would spend the bytes of its session.
    """
    control.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    control.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
    control.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PAUSE_SECONDS)
    control.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
