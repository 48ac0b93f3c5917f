"""Where exits come in: the first byte tells a control connection from a work connection.

A control connection begins with TLS's 0x16, and is handed to the event loop, which speaks TLS. A
work connection begins with `W` and a ticket, and stays in the proxy's own poller, where it waits
for a target and is relayed later. Until either has said enough, it is an arrival, with bounds.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from ipaddress import ip_address
from secrets import randbits
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from market.base.errors import MarketError
from market.base.networks import Address, NetworkCounts, counted_network, crowded, plain
from market.exits.consents import Door
from proxyctl.protocol.frames import (
    CALL,
    CALL_NUMBER_BYTES,
    CALLS,
    DENY,
    NODES_MAX,
    PREFACE,
    SECURE,
    UDP,
    WORK,
    FrameError,
    Hello,
    Limits,
    Node,
    Nodes,
    Preface,
    Seen,
    Tunnel,
    Welcome,
    encode,
)
from proxyd.counters import ExitCounters
from proxyd.exits.attached.attached import (
    ATTACHMENT_BITS,
    CROWDED,
    HARMLESS,
    SILENT_BEATS,
    STANDBY,
    WANDERING,
    Adopted,
    Attached,
    ParkedBudget,
    Pool,
)
from proxyd.exits.attached.control import (
    AGAIN_SECONDS,
    SOON_SECONDS,
    Authority,
    Control,
    ControlServices,
    ExitGrant,
    Loaner,
    NoLoans,
)
from proxyd.exits.attached.handshakes import Handshakes
from proxyd.exits.attached.secure import Seal, make_pair
from proxyd.exits.choosing.directory import Entry, Place, Region
from proxyd.limits import ExitLimits
from proxyd.loop.deadlines import Deadlines, Expiring
from proxyd.loop.owned_tasks import OwnedTasks
from proxyd.loop.poller import HUNG_UP, READS, Watcher
from proxyd.loop.reactor import Reactor
from storage.engines.errors import StoreError, level_of

if TYPE_CHECKING:
    from proxyd.exits.choosing.own_ports import OwnPorts

ARRIVAL_SECONDS = 10.0  # for 33 bytes that are sent at once
TLS_SECONDS: Final = 10.0  # for a handshake of one round trip
# What is said last goes out first, some records; then the exit has to say that it has read the end.
TLS_END_SECONDS = 10.0
# A flood that keeps all places is answered by closing the oldest; who is this old is not slow.
ROOM_AFTER_SECONDS = 0.5
# Of one network at once, for each exit that it may have: as many connections as one exit has
# waiting, and as many again that replace them. They say within a round trip what they are.
ARRIVALS_PER_EXIT: Final = 32
# The networks of attached exits keep a quarter of all places for arrivals: strangers from elsewhere
# must not keep out the work connections of these exits.
RESERVED_DIVISOR: Final = 4
NODES_FEATURE: Final = "nodes"  # of an agent that attaches elsewhere when its daemon is gone
# What agents offer that this service uses; the rest of their words is neither kept nor announced.
FEATURES: Final = frozenset((CALLS, DENY, "dns", "lend", NODES_FEATURE, SECURE, UDP))
# Features without use for an agent that attaches by IPv6 and makes no calls: it does not know the
# IPv4 address of its router, and the daemon does not judge each target of these.
UNJUDGED: Final = frozenset(("lend", UDP))
NODES_SECONDS: Final = 0.2  # for links that come and go together
CONTROLS_PER_TURN: Final = 100  # that are told something in one turn of the loop: a millisecond
EXPIRY_SECONDS: Final = 5.0  # between looks at what the directory may forget: a millisecond each
DAY_SECONDS: Final = 86_400
HELD_WORDS: Final = "paused in the account"  # for the owner, at the device

FLOOD: Final = "flood"
# An exit that was found on yet another line so often since the start has no place to sell.
MOVES_MAX: Final = 3
MOVES_KEPT: Final = 10_000
CALL_BYTES: Final = len(CALL) + CALL_NUMBER_BYTES

_TLS: Final = b"\x16"
# A ClientHello is in one record, and has one to two kilobytes with keys for the time after quanta.
HELLO_MAX_BYTES: Final = 8192
_HELLO_HEAD: Final = Struct("!BHHBBH")  # type, version and length of the record; of the message
_RECORD_HEAD_BYTES: Final = 5
_MESSAGE_HEAD_BYTES: Final = 4
_CLIENT_HELLO: Final = 1
_PREFACE_BYTES: Final = PREFACE.size
_MSG_PEEK: Final = socket.MSG_PEEK
# What a device is told of which another one with the same token has come, here or at another node.
_DISPLACED: Final = (
    "attached_again",
    "The same device has attached again; if it was not you, revoke its token.",
    AGAIN_SECONDS,
)
_logger = logging.getLogger("exits")


class Watch(Protocol):
    """Looks whether exits are honest; until somebody does, all are taken to be."""

    def admit(self, attached: Attached) -> None:
        """Hear of an exit that attaches, before it may be chosen."""

    def suspect(self, attached: Attached, kind: str, evidence: str) -> None:
        """Hear of what no honest exit does; it may have been let go of for it."""


class Book(Protocol):
    """Who may be chosen: of the directory, what the listener needs."""

    def is_standby(self, entry: Attached) -> bool:
        """Say whether an exit is not chosen because another one of its network is."""

    def coverage(self) -> Mapping[Region, int]:
        """Return how many exits may be chosen, by where they are."""

    def expire(self, now: float) -> None:
        """Forget what is over; to be called every few seconds."""

    def add(self, entry: Attached) -> None:
        """Let an exit be chosen from now on."""

    def remove(self, entry: Attached) -> None:
        """Let it be chosen no more."""


class Workers(Protocol):
    """Devices that are attached as workers: see `tunnels.py`."""

    async def welcome(self, control: Control, hello: Tunnel) -> None:
        """Take one in that has said hello, or refuse it."""

    def admit(self, control: Control, preface: Preface, rest: bytes) -> None:
        """Take a work connection over with what came behind its preface, or cut it."""

    def recheck(self, device_id: str) -> None:
        """Look again whether a device may be attached."""

    def drain(self, seconds: float) -> None:
        """Tell every one that the daemon stops."""

    def close(self) -> None:
        """Let every one go, with its streams; twice is harmless."""

    async def wait_closed(self) -> None:
        """Wait until nothing is under way any more."""


class Neighbours(Protocol):
    """Other nodes, which are told who is attached here."""

    __slots__ = ()

    def __len__(self) -> int:
        """Return how many there are."""

    def since(self, device_id: str) -> int:
        """Return when a device attaches that does so now (UTC, milliseconds).

        It is later than each time before, and than any that another node has told of the device.
        """

    def attached(self, attached: Attached) -> None:
        """An exit has attached."""

    def changed(self, attached: Attached) -> None:
        """It carries nothing from now on, or carries again, or its limits have changed."""

    def gone(self, attached: Attached) -> None:
        """It is not attached any more."""

    def welcome(self, transport: asyncio.Transport, data: bytes) -> bool:
        """Take the connection of another node that has begun with `data`; False if it is none."""

    def doors(self) -> list[Door]:
        """Return where devices may attach instead of here, the best first."""


@final
class Alone(Neighbours):
    """There is no other node."""

    __slots__ = ("_now", "_since")

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._since = 0

    def __len__(self) -> int:
        return 0

    def since(self, device_id: str) -> int:  # noqa: ARG002 - nobody else has it
        """See `Neighbours.since`."""
        self._since = max(self._now() * 1000, self._since + 1)
        return self._since

    def attached(self, attached: Attached) -> None:
        """See `Neighbours.attached`."""

    def changed(self, attached: Attached) -> None:
        """See `Neighbours.changed`."""

    def gone(self, attached: Attached) -> None:
        """See `Neighbours.gone`."""

    def welcome(self, transport: asyncio.Transport, data: bytes) -> bool:  # noqa: ARG002 - as above
        """See `Neighbours.welcome`."""
        return False

    def doors(self) -> list[Door]:
        """See `Neighbours.doors`."""
        return []


# More than 12 fields: what it was given, who has come, who is attached, and the bounds on both.
@final
class ExitListener:
    """Takes exits in, within bounds, and lets them go.

    Args:
        reactor: what the sockets of the loop share.
        context: speaks TLS.
        authority: knows which devices may attach.
        directory: is told who may be chosen.
        locate: says where an address is.
        limits: bounds.
        counters: count what becomes of them.
        now: the wall clock, in UTC seconds.
        encrypts_all: whether no connection is used that is not under TLS.
        budget: how many connections of exits may wait; None for one of its own.
        watch: looks whether exits are honest; None where nobody does.
        neighbours: the other nodes; None where there are none.
        loaner: lends exits to other nodes, and borrows theirs; None where there are none.
        workers: devices that are attached as workers; None where there are none.
        own_ports: what no buyer reaches through an exit; None where nothing is denied.
    """

    def __init__(
        self,
        reactor: Reactor,
        context: ssl.SSLContext,
        authority: Authority,
        directory: Book,
        locate: Callable[[str], Place],
        limits: ExitLimits,
        counters: ExitCounters,
        now: Callable[[], int],
        *,
        encrypts_all: bool = False,
        budget: ParkedBudget | None = None,
        watch: Watch | None = None,
        neighbours: Neighbours | None = None,
        loaner: Loaner | None = None,
        workers: Workers | None = None,
        own_ports: "OwnPorts | None" = None,
    ) -> None:
        self.limits = limits
        self.counters = counters
        self.watch = watch
        self.neighbours: Neighbours = Alone(now) if neighbours is None else neighbours
        self.next_door: Door | None = None  # by which devices will know this daemon
        self.loaner: Loaner = NoLoans() if loaner is None else loaner
        self.workers = workers
        self.own_ports = own_ports
        self._reactor = reactor
        self._context = context
        self._authority = authority
        self._directory = directory
        self._locate = locate
        self._now = now
        self._budget = ParkedBudget(limits.parked) if budget is None else budget
        self._arrivals: Deadlines[Arrival] = Deadlines(reactor.loop, ARRIVAL_SECONDS)
        self._arriving = NetworkCounts()
        self._handshakes: Handshakes[Arrival] = Handshakes(reactor.loop, self._begin_handshake)
        # Controls that have not attached, the oldest first, with what each is counted by.
        self._strangers: dict[Control, str] = {}
        self._controls: set[Control] = set()
        self.encrypts_all = encrypts_all
        self._seals: set[Seal] = set()  # of work connections under TLS
        self._attached: dict[int, tuple[Attached, Control]] = {}
        self._by_device: dict[str, Attached] = {}
        # Those that are gone while buyers' connections through them go on, by device.
        self._detached: dict[str, list[Attached]] = {}
        # Connections that other processes relay through devices which are not attached (again).
        self._adopted: dict[str, dict[Adopted, None]] = {}
        self._per_network = NetworkCounts()
        self._beats: Deadlines[Attached] = Deadlines(reactor.loop, limits.heartbeat_seconds)
        self._expiry: asyncio.TimerHandle | None = None
        self._nodes_timer: asyncio.TimerHandle | None = None
        self._tasks = OwnedTasks(reactor.loop, _logger, "serving an exit failed")
        self._calls: dict[bytes, Callable[[str], None]] = {}  # as many as are under way
        # Of devices whose connections leave from elsewhere: how often that was another network than
        # before, and which one it is.
        self._moves: dict[str, tuple[int, str]] = {}
        self._elsewhere = NetworkCounts()  # of exits whose connections leave there
        self._is_draining = False
        self._is_closed = False
        self._for_controls = ControlServices(
            loop=reactor.loop,
            authority=authority,
            attach=self._attach,
            lost=self._lost,
            paused=self._paused,
            changed=self._changed,
            refused=self._refused,
            suspected=self._suspected,
            admit=self._admit_secure,
            tunnel=self._tunnel,
            spawn=self._spawn,
            welcome=self._welcome_node,
            loaner=lambda: self.loaner,
        )

    def __len__(self) -> int:
        return len(self._attached)

    @property
    def budget(self) -> ParkedBudget:
        """How many connections of exits may wait: one bound for its own and borrowed ones."""
        return self._budget

    @property
    def arrivals(self) -> int:
        """Number of connections without a first message, or in a handshake, or not attached."""
        return len(self._arrivals) + len(self._handshakes) + len(self._strangers)

    def by_country(self) -> Counter[str]:
        """Return how many exits take connections, by the country's code; "": it is not known."""
        counts: Counter[str] = Counter()
        for region, number in self._directory.coverage().items():
            counts[region.country] += number
        return counts

    def places(self) -> list[tuple[str, Place]]:
        """Return the devices that are attached or still carry something, and where each is."""
        places = {device_id: next(iter(each)).place for device_id, each in self._adopted.items()}
        places |= {device_id: gone[-1].place for device_id, gone in self._detached.items()}
        places |= {device_id: each.place for device_id, each in self._by_device.items()}
        return list(places.items())

    def state(self, device_id: str) -> str | None:
        """Return why an attached device carries nothing now, "" if it does, None if it is away."""
        attached = self._by_device.get(device_id)
        if attached is None:
            return None
        if attached.is_spent:
            return "the bytes of the day are used up"
        if attached.astray:
            return attached.astray
        if self._directory.is_standby(attached):
            return STANDBY
        return attached.why_not

    def remark(self, device_id: str) -> str:
        """Return what the owner of an attached device should know; "" for nothing."""
        attached = self._by_device.get(device_id)
        if attached is None:
            return ""
        words = []
        if attached.is_elsewhere:
            words.append(
                f"Its connections leave from {attached.address}, and it counts as being there."
            )
        if not attached.is_proven:
            words.append("It carries port 443 alone until it has passed a look at what it carries.")
        return " ".join(words)

    def start(self) -> None:
        """Begin to look after what may be forgotten."""
        loop = self._reactor.loop
        self._directory.expire(loop.time())
        for device_id, gone in tuple(self._detached.items()):
            self._detached[device_id] = [each for each in gone if each.relays]
            if not self._detached[device_id]:
                del self._detached[device_id]
        self._expiry = loop.call_later(EXPIRY_SECONDS, self.start)

    # --- arrivals ------------------------------------------------------------------------------

    def welcome(self, sock: socket.SocketType, address: str) -> str:
        """Take a connection, or return why not."""
        network, limits = counted_network(address), self.limits
        most = ARRIVALS_PER_EXIT * limits.exits_per_network
        full = crowded(network, most, self._arriving)
        if full:
            self.counters.arrivals_refused["network"] += 1
            return f"{full} has {self._arriving[full]} connections that have said nothing"
        if self.arrivals >= self._places_for(network) and not self.shed(1):
            self.counters.arrivals_refused["total"] += 1
            return f"{self.arrivals} connections have said nothing"
        self._arriving.add(network)
        arrival = Arrival(self, sock, address, network)
        self._arrivals.add(arrival)
        try:
            self._reactor.poller.watch(sock.fileno(), arrival)
        except OSError as error:  # the kernel watches no more sockets
            self.forget(arrival)
            return f"it cannot be watched: {error.strerror}"
        return ""

    def _places_for(self, network: str) -> int:
        """Return how many arrivals there may be for one more of a network to come in."""
        most = self.limits.arrivals
        return most if self._per_network[network] else most - most // RESERVED_DIVISOR

    def shed(self, most: int) -> int:
        """Close connections without a whole hello, the oldest first. Return their number.

        An unfinished handshake makes room as a silent connection does.
        """
        shed = 0
        while shed < most and self._arrivals.expire_oldest(ROOM_AFTER_SECONDS):
            shed += 1
        old = self._reactor.loop.time() - ROOM_AFTER_SECONDS
        while shed < most and (arrival := self._handshakes.oldest(old)) is not None:
            self._cut_handshake(arrival)
            shed += 1
        while shed < most and (stranger := next(iter(self._strangers), None)) is not None:
            if stranger.began > old:
                break
            self._known(stranger)  # here, because its end is heard of later
            stranger.abort("slow")
            shed += 1
        return shed

    def forget(self, arrival: "Arrival") -> None:
        """One has said what it is, or is closed."""
        self._arrivals.discard(arrival)
        self._arriving.add(arrival.network, -1)

    def reject(self, arrival: "Arrival", reason: str) -> None:
        """Close one."""
        self.counters.arrivals_refused[reason] += 1
        self.forget(arrival)
        self._reactor.poller.forget(arrival.sock.fileno())
        arrival.sock.close()

    def secure(self, arrival: "Arrival") -> None:
        """One has sent a ClientHello: let the event loop speak TLS with it."""
        if self._handshakes.full_network(arrival.network, self.limits.exits_per_network):
            self.reject(arrival, "network")
            return
        self.forget(arrival)
        self._reactor.poller.release(arrival.sock.fileno())
        self._arriving.add(arrival.network)
        self._handshakes.add(arrival)

    def _begin_handshake(self, arrival: "Arrival") -> None:
        self._tasks.spawn(self._shake_hands(arrival), lambda: self._drop_handshake(arrival))

    def _drop_handshake(self, arrival: "Arrival") -> None:
        """Close a connection whose handshake ends here, if the loop has not closed it."""
        self._end_handshake(arrival)
        arrival.sock.close()

    def _end_handshake(self, arrival: "Arrival") -> None:
        """Count a handshake no more; ending it twice is harmless."""
        if self._handshakes.end(arrival):
            self._arriving.add(arrival.network, -1)

    def _cut_handshake(self, arrival: "Arrival") -> None:
        """End a handshake that takes long, to make room."""
        self.counters.arrivals_refused["slow"] += 1
        self._handshakes.cut(arrival)
        self._arriving.add(arrival.network, -1)

    def called(self, arrival: "Arrival", number: bytes) -> None:
        """One is a call through an exit: see `origin.py`."""
        called = self._calls.pop(number, None)
        if called is None:
            self.reject(arrival, "ticket")
            return
        self.forget(arrival)
        self._reactor.poller.forget(arrival.sock.fileno())
        arrival.sock.close()
        called(arrival.address)

    def admit(self, arrival: "Arrival", preface: Preface) -> None:
        """One is a work connection: let it wait, if it has a ticket."""
        attached, _ = self._attached.get(preface.attachment, (None, None))
        if attached is None:
            attached = self.loaner.find(preface.attachment)
        if attached is None or not attached.pool.admits(preface.number, preface.ticket):
            self.reject(arrival, "ticket")
            return
        try:
            attached.pool.park(preface.number, arrival.sock)
        except OSError:
            self.reject(arrival, "broken")
        else:
            self.forget(arrival)

    def _tunnel(self, control: Control, hello: Tunnel) -> None:
        """One says that it is a worker."""
        if self.workers is None:
            control.refuse("tunnels_off", "The service opens no streams into jobs.", AGAIN_SECONDS)
        else:
            self._spawn(self.workers.welcome(control, hello))

    def _admit_secure(self, control: Control, preface: Preface, rest: bytes) -> None:
        """One has shown under TLS that it is a work connection: let it wait, if it has a ticket."""
        attached, _ = self._attached.get(preface.attachment, (None, None))
        if attached is None and self.workers is not None:
            self.workers.admit(control, preface, rest)
            return
        pool = attached.secure if attached is not None else None
        if pool is None or not pool.admits(preface.number, preface.ticket):
            control.cut("ticket")
            return
        if rest:  # an exit says nothing before it has a target
            control.cut("violation")
            return
        if self._is_closed:
            control.cut("stopping")
            return
        transport = control.hand_over()
        try:
            sock, other = make_pair()
        except OSError as error:
            _logger.warning("a connection of an exit is closed: %s", error)
            transport.abort()
            return
        seal = Seal(transport, other, self._reactor.poller, self._seals.discard)
        self._seals.add(seal)

        def close_pair() -> None:
            sock.close()
            other.close()

        self._tasks.spawn(self._park_secure(pool, preface.number, sock, seal), close_pair)

    async def _park_secure(
        self, pool: Pool, number: int, sock: socket.SocketType, seal: Seal
    ) -> None:
        """Have what stands for a connection under TLS wait."""
        try:
            await seal.start()
            pool.park(number, sock)
        except OSError:
            sock.close()
            seal.abort()
            self._seals.discard(seal)
        except BaseException:
            sock.close()
            seal.abort()
            raise

    async def _shake_hands(self, arrival: "Arrival") -> None:
        control = Control(self._for_controls, arrival.address, self._over)
        try:
            await self._reactor.loop.connect_accepted_socket(
                lambda: control,
                arrival.sock,  # type: ignore[arg-type]  # that is what the acceptor makes
                ssl=self._context,
                ssl_handshake_timeout=TLS_SECONDS,
                ssl_shutdown_timeout=TLS_END_SECONDS,
            )
        except (OSError, ssl.SSLError) as error:  # a timeout and an abort are such, too
            self.counters.arrivals_refused["tls"] += 1
            _logger.debug("exit at %s: no TLS: %s", arrival.address, error)
        else:
            if not control.is_over:  # the exit may have left already
                self._controls.add(control)
                if control.attached is None:
                    self._strangers[control] = arrival.network
                    self._arriving.add(arrival.network)
            if self._is_closed:
                control.cut("stopping")
        finally:
            self._end_handshake(arrival)

    def _over(self, control: Control) -> None:
        """A control connection is over."""
        self._controls.discard(control)
        self._known(control)

    def _known(self, control: Control) -> None:
        """Count a control connection as arriving no more."""
        network = self._strangers.pop(control, None)
        if network is not None:
            self._arriving.add(network, -1)

    # --- where exits are -----------------------------------------------------------------------

    def expect(self, number: bytes, called: Callable[[str], None]) -> None:
        """Have `called` be called with the address that a number arrives from."""
        self._calls[number] = called

    def forget_call(self, number: bytes) -> None:
        """Expect a number no more."""
        self._calls.pop(number, None)

    def leaves_from(self, attached: Attached, address: str) -> None:
        """Take note of where an exit's connections leave: see `origin.py`.

        A call is the exit's own word. So the exit is counted there, but behind those that have
        attached from there, and takes no place of theirs; and it has nothing to sell where too many
        leave, or when its place keeps changing. A call in the other family of addresses than the
        exit attaches by changes no place.
        """
        parsed = plain(ip_address(address.partition("%")[0]))
        attached.learn(parsed)
        if CALLS in attached.features:
            attached.say(Seen(str(parsed)))
        if parsed.version == attached.address.version:
            self._file(attached, parsed, counted_network(address))

    def _file(self, attached: Attached, address: Address, network: str) -> None:
        """Count an exit where its connections leave, if that is elsewhere than before."""
        if network == attached.network:
            return
        moves, before = self._moves.pop(attached.device_id, (0, ""))
        if network != before:  # or it has attached again, and leaves from where it always does
            moves += 1
        self._moves[attached.device_id] = moves, network  # the latest last
        if len(self._moves) > MOVES_KEPT:
            del self._moves[next(iter(self._moves))]
        was_open = attached.is_open
        if was_open:
            self._directory.remove(attached)
        self._leave_elsewhere(attached)
        attached.is_elsewhere = network != self._home_of(attached)
        place = self._locate(str(address))
        attached.leave_from(address, place, network)
        floor = self._authority.price_floor(place.country)
        attached.min_price_per_gb = max(attached.min_price_per_gb, floor)
        most = self.limits.exits_per_network
        full = attached.is_elsewhere and crowded(network, most, self._per_network, self._elsewhere)
        attached.astray = WANDERING if moves > MOVES_MAX else CROWDED if full else ""
        if attached.is_elsewhere:
            self._elsewhere.add(network)
        if attached.is_open:
            self._directory.add(attached)
        self.neighbours.changed(attached)
        _logger.info("exit %s: its connections leave from %s", attached.device_id, address)

    def _leave_elsewhere(self, attached: Attached) -> None:
        """Count an exit no more where its connections leave, if it is attached from elsewhere."""
        if attached.is_elsewhere:
            self._elsewhere.add(attached.network, -1)

    def _home_of(self, attached: Attached) -> str:
        """Return the network that an exit has attached from."""
        return counted_network(self._attached[attached.attachment][1].address)

    def deny_changed(self) -> None:
        """Tell agents what no name may lead to by now."""
        if not self._is_closed:
            self._spawn(self._tell_all(self._tell_denied))

    def _tell_denied(self, control: Control) -> None:
        attached = control.attached
        if attached is None or self.own_ports is None or DENY not in attached.features:
            return
        for frame in self.own_ports.frames():
            control.send(frame)

    # --- exits ---------------------------------------------------------------------------------

    def recheck(self, device_id: str) -> None:
        """Look again whether a device may be attached, and what it may do."""
        if self.workers is not None:
            self.workers.recheck(device_id)
        attached = self._by_device.get(device_id)
        if attached is not None:
            _, control = self._attached[attached.attachment]
            control.check_again()
        elif device_id in self._detached or device_id in self._adopted:
            self._spawn(self._recheck_detached(device_id))

    def displace(self, device_id: str) -> None:
        """Let go of an exit that has attached to another node later."""
        attached = self._by_device.get(device_id)
        if attached is not None:
            self._attached[attached.attachment][1].refuse(*_DISPLACED)

    def announce(self, door: Door) -> None:
        """Tell devices by which certificate this daemon will be known."""
        if door != self.next_door:
            self.next_door = door
            self.nodes_changed()

    def nodes_changed(self) -> None:
        """There are other nodes than before where devices may attach: tell all that want to know.

        Later and together, because a node that ends or starts changes more than once.
        """
        if self._nodes_timer is None and not self._is_closed:
            loop = self._reactor.loop
            self._nodes_timer = loop.call_later(NODES_SECONDS, self._spawn_tell_nodes)

    def _spawn_tell_nodes(self) -> None:
        self._nodes_timer = None
        self._spawn(self._tell_all(self._tell_nodes))

    async def _tell_all(self, tell: Callable[[Control], None]) -> None:
        for number, (_, control) in enumerate(tuple(self._attached.values())):
            tell(control)
            if number % CONTROLS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _tell_nodes(self, control: Control) -> None:
        attached = control.attached
        if attached is None or NODES_FEATURE not in attached.features:
            return
        doors = self.neighbours.doors()
        if self.next_door is not None:
            doors.insert(0, self.next_door)
        doors = doors[:NODES_MAX]
        nodes = tuple(Node(each.host, each.port, each.certificate_sha256) for each in doors)
        if nodes or attached.knows_nodes:
            attached.knows_nodes = True
            control.send(Nodes(nodes))

    def _welcome_node(self, transport: asyncio.Transport, data: bytes) -> bool:
        return self.neighbours.welcome(transport, data)

    async def _recheck_detached(self, device_id: str) -> None:
        """Cut what goes on through a device whose control was lost, if it may carry nothing."""
        try:
            grant = await self._for_controls.authority.current(device_id)
        except MarketError as error:
            _logger.info("exit %s: what goes on is cut: %s", device_id, error.code.word)
        except StoreError as error:  # the marketplace asks for it again
            _logger.log(
                level_of(error, logging.WARNING),
                "exit %s: cannot be looked up now: %s",
                device_id,
                error,
            )
            return
        else:
            if not grant.paused:
                return
        self._cut_detached(device_id)

    def attached_here(self, device_id: str) -> Attached | None:
        """Return the exit that a device is, if it is attached to this node."""
        return self._by_device.get(device_id)

    def keep_detached(self, attached: Attached) -> None:
        """Look after an exit that is gone while connections through it go on."""
        self._detached.setdefault(attached.device_id, []).append(attached)

    def _cut_detached(self, device_id: str) -> None:
        for each in self._detached.pop(device_id, ()):
            each.cut()
        for relay in tuple(self._adopted.get(device_id, ())):
            relay.abort()

    def adopt(self, device_id: str, relay: Adopted) -> None:
        """Look after a connection through a device that was attached to a daemon before this one.

        It counts at the exit once that is attached. Whether the device may carry anything at all
        is for the caller to have looked up (`recheck`), once for all that go through it.
        """
        attached = self._by_device.get(device_id)
        if attached is not None:
            relay.join(attached)
        else:
            self._adopted.setdefault(device_id, {})[relay] = None

    def disown(self, device_id: str, relay: Adopted) -> None:
        """Look after it no more: it is over; harmless if nobody did."""
        relays = self._adopted.get(device_id, {})
        relays.pop(relay, None)
        if not relays:
            self._adopted.pop(device_id, None)

    def change_limits(self, limits: ExitLimits) -> None:
        """Apply other limits from now on; no exit is let go of."""
        self.limits = limits
        self._budget.most = limits.parked
        self._beats.seconds = limits.heartbeat_seconds
        self.loaner.change_heartbeat(limits.heartbeat_seconds)

    def drain(self, seconds: float) -> None:
        """Tell every exit that the daemon stops, and take no more; dials and relays go on."""
        self._is_draining = True
        for _, control in tuple(self._attached.values()):
            control.drain(max(1, round(seconds)))
        if self.workers is not None:
            self.workers.drain(seconds)

    def close(self) -> None:
        """Let every exit go, and every connection of theirs that waits; twice is harmless."""
        self._is_closed = True
        for arrival in tuple(self._arrivals):
            self.reject(arrival, "stopping")
        self._handshakes.close()
        for control in tuple(self._controls):
            control.cut("stopping")
        self.loaner.close()
        if self.workers is not None:
            self.workers.close()
        for seal in tuple(self._seals):
            seal.abort()
        self._arrivals.close()
        self._beats.close()
        for timer in (self._expiry, self._nodes_timer):
            if timer is not None:
                timer.cancel()
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing is under way any more."""
        await self._tasks.wait()
        if self.workers is not None:
            await self.workers.wait_closed()

    def _attach(self, control: Control, grant: ExitGrant, hello: Hello) -> None:
        network, limits = counted_network(control.address), self.limits
        if self._is_draining:
            control.refuse("stopping", "The service stops here; come again.", SOON_SECONDS)
            return
        older = self._by_device.get(grant.device_id)
        if older is not None:
            self._attached[older.attachment][1].refuse(*_DISPLACED)
        if len(self._attached) >= limits.exits_total:
            control.refuse("too_many_exits", "The service has enough devices now.", AGAIN_SECONDS)
            return
        if crowded(network, limits.exits_per_network, self._per_network):
            words = "Too many devices are attached from this network."
            control.refuse("too_many_on_network", words, AGAIN_SECONDS)
            return
        reactor, place = self._reactor, self._locate(control.address)
        attached = Attached(
            self._fresh(),
            grant.device_id,
            grant.user_id,
            self._least_price(grant, place),
            place,
            network,
            ip_address(control.address.partition("%")[0]),
            limits_of(grant),
            Pool(reactor, control.send, self._budget, self.counters),
            control.send,
            self._beat,
            reactor.loop.time,
        )
        welcome = self._welcome_of(attached)
        try:
            encode(welcome)
        except FrameError as error:  # the device would wait for it in vain, and count as attached
            _logger.error("exit %s: cannot be welcomed: %s", attached.device_id, error)
            control.refuse("unavailable", "The service cannot welcome this device.", AGAIN_SECONDS)
            return
        attached.since = self.neighbours.since(grant.device_id)
        attached.features = features_of(hello, attached.address)
        if self.own_ports is not None and not self.own_ports.fits:
            attached.features = tuple(each for each in attached.features if each != DENY)
        attached.take_in(hello.capacity)
        control.accepted()
        control.attached = attached
        self._known(control)
        self._attached[attached.attachment] = attached, control
        self._by_device[grant.device_id] = attached
        self._per_network.add(network)
        self._beats.add(attached)
        self.counters.attached += 1
        control.send(welcome)
        self._tell_denied(control)
        self._tell_nodes(control)
        attached.ping()
        self._open_pools(attached, control, hello)
        attached.carried_before(grant.bytes_today, self._now() // DAY_SECONDS)
        for relay in self._adopted.pop(grant.device_id, ()):
            relay.join(attached)
        attached.paused, attached.is_held = hello.paused, grant.paused
        if self.watch is not None:
            self.watch.admit(attached)
        self.neighbours.attached(attached)
        if attached.is_open:
            self._directory.add(attached)
        self._say_limits(attached)
        _logger.info("exit %s: attached from %s", attached.device_id, attached.address)

    def _welcome_of(self, attached: Attached) -> Welcome:
        """Return the first frame for an exit."""
        place = attached.place
        return Welcome(
            attached.attachment,
            str(attached.address),
            place.country,
            place.city,
            place.asn,
            attached.granted,
            max(1, round(self.limits.heartbeat_seconds)),
        )

    def _open_pools(self, attached: Attached, control: Control, hello: Hello) -> None:
        """Ask an exit for its first connections, under TLS if all have to be."""
        if SECURE in hello.features:
            attached.secure = Pool(
                self._reactor, control.send, self.budget, self.counters, is_secure=True
            )
        if not self.encrypts_all:
            attached.pool.open()
        elif attached.secure is not None:
            attached.secure.open()

    def prove(self, attached: Attached) -> None:
        """Let an exit carry whatever its owner allows."""
        if not attached.is_proven:
            attached.is_proven = True
            self.neighbours.changed(attached)

    def doubt(self, attached: Attached) -> None:
        """Let an exit carry port 443 alone from now on, until it is proven."""
        if attached.is_proven and not attached.is_gone:
            attached.is_proven = False
            self.neighbours.changed(attached)

    def standby_changed(self, entry: Entry) -> None:
        """An exit stands behind another one on its line from now on, or no more: notify it."""
        attached = self._by_device.get(entry.device_id)
        if attached is not None and attached is entry:  # or it is another node's
            self._say_limits(attached)

    def _say_limits(self, attached: Attached) -> None:
        """Send an exit its limits, and the reason why it rests, if either has changed."""
        words = HELD_WORDS if attached.is_held else ""
        if not words and self._directory.is_standby(attached):
            words = STANDBY
        if words != attached.granted.paused:
            attached.limits = attached.granted._replace(paused=words)
            self._attached[attached.attachment][1].send(attached.granted)

    def expel(self, attached: Attached, words: str) -> None:
        """Cut an exit with all that goes through it; `words` tell its owner why."""
        if attached.is_gone:
            self._cut_detached(attached.device_id)
        else:
            self._attached[attached.attachment][1].refuse("exit_barred", words, 0)

    def _suspected(self, attached: Attached, kind: str, evidence: str) -> None:
        """An exit did what no honest one does."""
        if self.watch is not None:
            self.watch.suspect(attached, kind, evidence)

    def _least_price(self, grant: ExitGrant, place: Place) -> int:
        """Return what a session has to cost that leaves through an exit, in micro-USD per GB.

        The operator's floor holds for those too that were sold without wishes, or for any country.
        """
        return max(grant.min_price_per_gb, self._authority.price_floor(place.country))

    def _fresh(self) -> int:
        """Return a number that no exit has: it is guessed no more easily than a ticket."""
        while True:
            number = randbits(ATTACHMENT_BITS)
            if number and number not in self._attached:
                return number

    def _lost(self, attached: Attached, reason: str) -> None:
        """An exit is gone."""
        self._leave_elsewhere(attached)
        self._per_network.add(self._home_of(attached), -1)
        del self._attached[attached.attachment]
        if self._by_device.get(attached.device_id) is attached:
            del self._by_device[attached.device_id]
        self._beats.discard(attached)
        if attached.is_open:
            self._directory.remove(attached)
        self.neighbours.gone(attached)
        self.counters.cut[reason] += 1
        _logger.info("exit %s: gone: %s", attached.device_id, reason)
        attached.close()
        if reason == FLOOD:
            self._suspected(attached, FLOOD, "more bytes or states than it may send")
        self.loaner.ended(attached, reason)
        if reason not in HARMLESS:
            attached.cut()
            self._cut_detached(attached.device_id)
        elif attached.relays:
            self.keep_detached(attached)

    def _paused(self, attached: Attached, words: str) -> None:
        """An exit takes nothing from now on, or takes connections again."""
        was_open, attached.paused = attached.is_open, words
        self._opened(attached, was_open=was_open)

    def _changed(self, attached: Attached, grant: ExitGrant) -> None:
        """The marketplace says something else of an exit."""
        was_open, attached.is_held = attached.is_open, grant.paused
        attached.min_price_per_gb = self._least_price(grant, attached.place)
        limits = limits_of(grant)
        if limits != attached.granted._replace(paused=limits.paused):
            attached.limits = limits
            self._attached[attached.attachment][1].send(limits)
        self._opened(attached, was_open=was_open)
        if attached.is_held:
            attached.interrupt()
            attached.cut()
            self.loaner.ended(attached, "paused")
            self._cut_detached(attached.device_id)

    def _opened(self, attached: Attached, *, was_open: bool) -> None:
        """Tell the directory if an exit takes connections that did not, or the other way round."""
        self.neighbours.changed(attached)
        if was_open and not attached.is_open:
            self._directory.remove(attached)
        elif attached.is_open and not was_open:
            self._directory.add(attached)
        self._say_limits(attached)

    def _refused(self, reason: str) -> None:
        """An exit was not taken."""
        self.counters.refused[reason] += 1

    def _beat(self, attached: Attached) -> None:
        """A heartbeat is due."""
        silence = self._reactor.loop.time() - attached.heard_at
        if silence >= SILENT_BEATS * self.limits.heartbeat_seconds:
            _, control = self._attached[attached.attachment]
            control.cut("silent")
            return
        was_spent = attached.is_spent
        attached.spend(self._now() // DAY_SECONDS)
        if attached.is_spent != was_spent:
            self.neighbours.changed(attached)
        attached.tend()
        attached.ping()
        if not attached.is_gone:  # it may have been cut just now: it does not read
            self._beats.add(attached)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_closed:
            work.close()
        else:
            self._tasks.spawn(work)


def features_of(hello: Hello, address: Address) -> tuple[str, ...]:
    """Return the features of an agent that this service uses; `address` is the agent's."""
    features = FEATURES.intersection(hello.features)
    if address.version == 6 and CALLS not in features:
        features -= UNJUDGED
    return tuple(sorted(features))


def limits_of(grant: ExitGrant) -> Limits:
    """Return what an exit is used for at most, as it is told."""
    limits = grant.limits
    return Limits(
        limits.connections,
        limits.bytes_per_second,
        limits.bytes_per_day,
        tuple(limits.ports),
        HELD_WORDS if grant.paused else "",
    )


def hello_size(data: bytes) -> int | None:
    """Return the size of the record that is a whole ClientHello (RFC 8446, section 4.1.2).

    Returns:
        0 while some of it is missing; None for other bytes, or for more than clients send.
    """
    if len(data) < _HELLO_HEAD.size:
        return 0
    kind, _, record, message, high, low = _HELLO_HEAD.unpack_from(data)
    size = _RECORD_HEAD_BYTES + record
    is_whole = _MESSAGE_HEAD_BYTES + (high << 16 | low) <= record
    if kind != _TLS[0] or message != _CLIENT_HELLO or not is_whole or size > HELLO_MAX_BYTES:
        return None
    return size if len(data) >= size else 0


@final
class Arrival(Watcher, Expiring):
    """A connection that has not said yet what it is.

    Args:
        listener: has accepted it.
        sock: owned from here on.
        address: where it comes from.
        network: what it is counted by.
    """

    __slots__ = ("_listener", "_read", "address", "network", "sock")

    def __init__(
        self, listener: ExitListener, sock: socket.SocketType, address: str, network: str
    ) -> None:
        self._listener = listener
        self._read = b""
        self.sock = sock
        self.address = address
        self.network = network

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if not events & READS:
            return
        try:
            if not self._read and self.sock.recv(1, _MSG_PEEK) == _TLS:
                self._greet(has_ended=bool(events & HUNG_UP))
                return
            self._read += self.sock.recv(_PREFACE_BYTES - len(self._read))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._listener.reject(self, "broken")
            return
        if self._read[:1] == CALL:
            self._call(has_ended=bool(events & HUNG_UP))
        elif self._read[:1] != WORK or (events & HUNG_UP):
            self._listener.reject(self, "garbage" if self._read[:1] else "broken")
        elif len(self._read) == _PREFACE_BYTES:
            try:
                preface = Preface.decode(self._read)
            except FrameError:
                self._listener.reject(self, "garbage")
            else:
                self._listener.admit(self, preface)

    def _greet(self, *, has_ended: bool) -> None:
        """It speaks TLS; until its ClientHello is there it makes room as silent ones do."""
        size = hello_size(self.sock.recv(HELLO_MAX_BYTES, _MSG_PEEK))
        if size is None or (not size and has_ended):
            self._listener.reject(self, "tls")
        elif size:
            self._listener.secure(self)

    def _call(self, *, has_ended: bool) -> None:
        """It calls through an exit."""
        if len(self._read) == CALL_BYTES:
            self._listener.called(self, self._read[len(CALL) :])
        elif has_ended or len(self._read) > CALL_BYTES:
            self._listener.reject(self, "garbage")

    def timed_out(self) -> None:
        """It took too long: see `Expiring.timed_out`."""
        self._listener.reject(self, "slow")

    def fail(self, error: Exception) -> None:
        """Close it because of a mistake of ours, which is logged with its traceback."""
        _logger.error("serving an exit failed; it is cut", exc_info=error)
        self._listener.reject(self, "error")
