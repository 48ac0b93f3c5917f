"""A device that carries connections as a test wants it, and the places where it attaches.

It speaks the frames over TLS as the real agent does, in the test's own event loop.
"""

import asyncio
import logging
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from proxyctl.attach.network.lan import make_guard
from proxyctl.attach.relay.relay_linux import EpollRelays
from proxyctl.attach.relay.relays import Relays
from proxyctl.exit.agent.agent import Agent
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.protocol.frames import (
    CALL,
    DENY,
    UDP,
    VERSION,
    Associate,
    Call,
    Dial,
    Dialled,
    DialOutcome,
    Drain,
    ExitStatus,
    For,
    Frame,
    FrameReader,
    Hello,
    Lend,
    Park,
    Ping,
    Pong,
    Preface,
    ServiceLimits,
    Sorry,
    Tickets,
    Welcome,
    decode_whole,
    encode,
)
from proxyctl.protocol.policy import Policy
from proxyd.acceptor import Acceptor
from proxyd.counters import ExitCounters
from proxyd.exits.attached.arrivals import prepare
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.attachments import Watch
from proxyd.exits.attached.certificate import own_certificate
from proxyd.exits.attached.listener import ExitBase, ExitListener, PortServices
from proxyd.exits.attached.neighbours import Alone
from proxyd.exits.attached.pool import ParkedBudget
from proxyd.exits.attached.seals import Workers
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.entries import Missing, Place, Region
from proxyd.exits.dialling.dial import Exits
from proxyd.exits.nodes.borrowing import Borrowing, BorrowingBounds
from proxyd.exits.nodes.lending import FEATURE, Lending
from proxyd.exits.nodes.loans import Loans
from proxyd.limits import ExitLimits
from proxyd.loop.reactor import Reactor
from proxyd.ops.processes.listening import bound_port
from proxyd.relay.closing import is_dead
from proxyd.wire.wants import Wants
from proxyd.wiring.bounds import EXITS as EXIT_BOUNDS
from proxyd.wiring.bounds import USUAL, Bounds, ExitBounds
from storage.engines.store import Transaction
from support.base.names import Localhost
from support.base.waiting import PATIENCE_SECONDS, until
from support.daemons.service import Person, Service, running_in
from support.exits.datagrams import carry_datagrams

RESET = struct.pack("ii", 1, 0)
MakeRelays = Callable[[asyncio.AbstractEventLoop], Relays]
# A device that is silent for three of them is gone: longer than a busy machine keeps a loop
# waiting.
BEAT_SECONDS = 0.3
NO_LIMITS = ServiceLimits(0, 0, 0, ())


def hello(token: str = "device", **changes: Any) -> Hello:
    """Return the first frame of a device."""
    return Hello(VERSION, token, "0.0", "test", (), "terms", "")._replace(**changes)


@dataclass(frozen=True)
class Granted:
    """Record of a device in the marketplace."""

    device_id: str
    user_id: str
    min_price_per_gb: int = 0
    limits: ServiceLimits = NO_LIMITS
    bytes_today: int = 0
    paused: bool = False


class Sightings:
    """Keeps the notes about addresses of devices: the device, its address, and the word."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, str]] = []

    def saw(self, device_id: str, address: str) -> None:
        self.notes.append((device_id, address, "saw"))

    def left(self, device_id: str, address: str) -> None:
        self.notes.append((device_id, address, "left"))


@dataclass
class Devices:
    """Lets devices attach: each token is the name of one, and `owner` has them all.

    `refusal` is raised instead, `grants` say something else of some; `asked` counts questions.
    `price_floors` are by country.
    """

    owner: str = "owner"
    grants: dict[str, Granted] = field(default_factory=dict)
    refusal: Exception | None = None
    asked: int = 0
    price_floors: dict[str, int] = field(default_factory=dict)

    async def authorize(self, token: str, _terms: str) -> Granted:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        return self.grants.get(token, Granted(token, self.owner))

    async def current(self, device_id: str) -> Granted:
        return await self.authorize(device_id, "")

    def price_floor(self, country: str) -> int:
        return self.price_floors.get(country, 0)


Obey = Callable[["Device", Dial], Awaitable[None]]


class Device:
    """A device that is attached.

    `frames` are all that came; `welcome`, `sorry` and `drained` the last ones of these. `parked`
    are its work connections that wait, by number. `parks` says whether it opens any by itself, and
    `obey` carries out an order: `carry` by default. It attaches from `address`: two exits of one
    address are not both chosen. With `leaves_from` its connections to targets come from another
    one. Where it `lends`, it also carries for other nodes.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.port = port
        self.address = address
        self.frames: list[Frame] = []
        self.welcome: Welcome | None = None
        self.sorry: Sorry | None = None
        self.drained = False
        self.dials: list[Dial] = []
        self.calls: list[Call] = []
        self.tickets: dict[int, bytes] = {}
        self.wanted = 0
        self.parked: dict[int, socket.socket] = {}
        self.opening = 0
        self.parks = True
        self.answers_pings = True
        self.obey: Obey = carry
        self.obey_datagrams: Callable[[Device, Associate], Awaitable[None]] = carry_datagrams
        self.leaves_from = ""
        self.lends = False
        self.lent: dict[int, Device] = {}
        self.is_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None

    async def attach(self, first: Hello | None = None) -> "Device":
        """Connect, send the hello, and wait for the answer."""
        await self.connect()
        self.send(first or hello())
        await until(lambda: self.welcome is not None or self.sorry is not None or self.is_over)
        return self

    async def connect(self) -> None:
        """Connect, and send nothing."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, local_addr=(self.address, 0)
        )
        self.spawn(self._read(reader))

    def peer_fingerprint(self) -> str:
        """Return the SHA-256 of the certificate that the daemon has shown."""
        assert self._writer is not None
        shown = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return sha256(shown).hexdigest()

    def send(self, frame: Frame) -> None:
        assert self._writer is not None
        self._writer.write(encode(frame))

    def send_raw(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def work(self, number: int, ticket: bytes | None = None) -> socket.socket:
        """Open a work connection, with its own ticket or with another."""
        assert self.welcome is not None
        shown = self.tickets.pop(number, bytes(16)) if ticket is None else ticket
        preface = Preface(self.welcome.attachment, number, shown)
        return await raw(self.port, preface.encode(), self.address)

    async def park(self) -> None:
        """Open work connections until the wanted number waits."""
        while len(self.parked) + self.opening < self.wanted and self.tickets:
            number = next(iter(self.tickets))
            self.opening += 1
            try:
                self.parked[number] = await self.work(number)
            except ConnectionError:  # the daemon is gone
                return
            finally:
                self.opening -= 1
            fd = self.parked[number].fileno()
            asyncio.get_running_loop().add_reader(fd, self._ended, number)

    async def kill(self) -> None:
        """End as a killed process does: close every socket together."""
        for lent in self.lent.values():
            await lent.kill()
        for task in tuple(self._tasks):
            task.cancel()
        for number in tuple(self.parked):
            self.take(number).close()
        if self._writer is not None:
            self._writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65_536):
                for frame in frames.receive_data(data):
                    self.frames.append(frame)
                    self._act(frame)
        self.is_over = True

    def _act(self, frame: Frame) -> None:
        if isinstance(frame, Welcome):
            self.welcome = frame
        elif isinstance(frame, Sorry):
            self.sorry = frame
        elif isinstance(frame, Drain):
            self.drained = True
        elif isinstance(frame, Ping) and self.answers_pings:
            self.send(Pong(frame.payload))
        elif isinstance(frame, Tickets):
            first = frame.first
            numbers = range(first, first + len(frame.tickets))
            self.tickets.update(zip(numbers, frame.tickets, strict=True))
        elif isinstance(frame, Park):
            self.wanted = frame.connections
        elif isinstance(frame, Dial | Associate | Call):
            self._follow(frame)
        elif isinstance(frame, Lend | For) and self.lends:
            self._carry_elsewhere(frame)
        if self.parks and isinstance(frame, Park | Dial | Associate | Tickets):
            self.spawn(self.park())

    def _carry_elsewhere(self, frame: Lend | For) -> None:
        if isinstance(frame, Lend):
            self.lent[frame.number] = LentDevice(self, frame)
        else:
            said = decode_whole(frame.frame)
            assert said is not None
            self.lent[frame.number]._act(said)

    def _follow(self, frame: Dial | Associate | Call) -> None:
        if isinstance(frame, Dial):
            self.dials.append(frame)
            self.spawn(self.obey(self, frame))
        elif isinstance(frame, Associate):
            self.spawn(self.obey_datagrams(self, frame))
        else:
            self.spawn(self.call(frame))

    async def call(self, frame: Call) -> None:
        """Call the daemon, so that it sees the source address of connections to targets."""
        self.calls.append(frame)
        with await raw(frame.port, CALL + frame.number, self.leaves_from or self.address) as sock:
            await is_closed(sock)

    def take(self, number: int) -> socket.socket:
        """Return a work connection that waits, the caller's from here on."""
        sock = self.parked.pop(number)
        asyncio.get_running_loop().remove_reader(sock.fileno())
        return sock

    def _ended(self, number: int) -> None:
        """Replace a work connection that has ended while it waited."""
        self.take(number).close()
        if self.parks:
            self.spawn(self.park())


class LentDevice(Device):
    """A device towards a node that has borrowed it."""

    def __init__(self, home: Device, loan: Lend) -> None:
        super().__init__(loan.port, home.address)
        self.welcome = Welcome(loan.attachment, "", "", "", 0, NO_LIMITS, 15)
        self.dials = home.dials
        self._home, self._number = home, loan.number

    def send(self, frame: Frame) -> None:
        """Send a frame to the borrower, through the device's own node."""
        self._home.send(For(self._number, encode(frame)))


async def raw(port: int, data: bytes = b"", address: str = "127.0.0.1") -> socket.socket:
    """Connect to the exits' port from an address, send some bytes, and return the socket."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    try:
        sock.bind((address, 0))
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, data)
    except BaseException:
        sock.close()
        raise
    return sock


async def is_closed(sock: socket.socket) -> bool:
    """Read until the daemon closes a connection."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while await loop.sock_recv(sock, 4096):
            pass
    return True


async def carry(device: Device, dial: Dial) -> None:
    """Connect to the target, answer, and carry both streams to their ends."""
    loop = asyncio.get_running_loop()
    with device.take(dial.number) as work, socket.socket() as target:
        target.setblocking(False)
        for sock in (work, target):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        host = dial.host if isinstance(dial.host, str) else str(dial.host[0])
        if device.leaves_from:
            target.bind((device.leaves_from, 0))
        try:
            await loop.sock_connect(target, (host, dial.port))
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            outcome = DialOutcome.REFUSED if refused else DialOutcome.FAILED
            device.send(Dialled(dial.number, outcome, 0, None, 0))
            return
        device.send(Dialled(dial.number, DialOutcome.CONNECTED, 0, None, 0))
        ended: set[socket.socket] = set()
        ways = [
            loop.create_task(_copy(source, sink, ended))
            for source, sink in ((work, target), (target, work))
        ]
        try:
            await asyncio.gather(*ways)
        except OSError:
            for sock in (work, target):
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _copy(source: socket.socket, sink: socket.socket, ended: set[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, 65_536):
        await loop.sock_sendall(sink, data)
    if source not in ended and is_dead(source):  # a reset; the other way has been reset
        raise ConnectionResetError
    ended.add(sink)
    sink.shutdown(socket.SHUT_WR)


def answering(outcome: DialOutcome) -> Obey:
    """Obey every order by saying so."""

    async def obey(device: Device, dial: Dial) -> None:
        device.send(Dialled(dial.number, outcome, 100, None, 0))
        device.take(dial.number).close()

    return obey


async def has_closed(device: Device, dial: Dial) -> None:
    """Answer an order for a connection that the exit has closed before it came."""
    device.take(dial.number).close()
    device.send(Dialled(dial.number, DialOutcome.FAILED, 0, None, 0))


async def ignore(_device: Device, _dial: Dial) -> None:
    """Never answer an order."""


def paused(words: str) -> ExitStatus:
    """Return the state of a device that takes nothing now; "" for one that does again."""
    return ExitStatus(words)


class InOrder:
    """A directory that chooses who came first; a label keeps its exit."""

    def __init__(self) -> None:
        self.exits: dict[str, Attached] = {}
        self.bindings: dict[str, str] = {}
        self.noted: list[tuple[str, DialOutcome | None]] = []
        self.has_moved = False
        self.contradicted: list[str] = []
        self.suspected: list[str] = []
        self.proven: list[str] = []
        self.is_doubtful = False

    def add(self, entry: Attached) -> None:
        self.exits[entry.device_id] = entry

    def remove(self, entry: Attached) -> None:
        del self.exits[entry.device_id]

    def pick(self, wants: Wants, **about: Any) -> Attached | Missing:
        bound = self.bindings.get(wants.session)
        features = about.get("features", frozenset())
        if bound in self.exits and bound not in about["tried"]:
            is_allowed = self.exits[bound].allows(about["port"])
            return self.exits[bound] if is_allowed else Missing.NOT_ALLOWED
        if bound is not None and wants.strict:
            return Missing.EXIT_LOST
        missing = Missing.NO_EXIT
        for each in self.exits.values():
            if (
                each.device_id not in about["tried"]
                and each.owner_id != about["owner_id"]
                and each.has_place_for(about["owner_id"], datagrams=UDP in features)
                and features.issubset(each.features)
            ):
                if not each.allows(about["port"]):
                    missing = Missing.NOT_ALLOWED
                    continue
                if wants.session:
                    self.bindings[wants.session] = each.device_id
                return each
        return missing

    def note(
        self, entry: Attached, outcome: DialOutcome | None, _now: float, **_about: Any
    ) -> None:
        self.noted.append((entry.device_id, outcome))

    def contradict(self, entry: Attached, _now: float, **_about: str) -> None:
        self.contradicted.append(entry.device_id)

    def suspect(self, entry: Attached, _now: float, **_about: str) -> None:
        self.suspected.append(entry.device_id)

    def prove(self, entry: Attached, _now: float, **_about: str) -> None:
        self.proven.append(entry.device_id)

    def doubts(self, _entry: Attached) -> bool:
        return self.is_doubtful

    def take_move(self, _wants: Wants, _session_id: str) -> bool:
        return self.has_moved

    def is_standby(self, _entry: Attached) -> bool:
        return False

    def coverage(self) -> dict[Region, int]:
        return Counter(Region(each.place.country, "", "") for each in self.exits.values())

    def expire(self, now: float) -> None: ...


def borrowing_of(
    base: ExitBase,
    reached_at: Callable[[], tuple[str, int]],
    bounds: BorrowingBounds = EXIT_BOUNDS.borrowing,
) -> Borrowing:
    """Return a port's borrowing of exits of other nodes."""
    services = base.services
    return Borrowing(
        services.reactor,
        services.budget,
        services.counters,
        reached_at,
        base.detached.keep,
        base.limits.heartbeat_seconds,
        bounds,
    )


class Port:
    """The exits' port without the rest of a daemon: a test may choose the devices there.

    `devices` says which may attach, `exits` dials through them. Without a `directory` who came
    first is chosen.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seconds: float = PATIENCE_SECONDS,
        directory: Directory[Attached] | None = None,
        watch: Watch | None = None,
        make_workers: Callable[[Reactor], Workers] = lambda _: None,
        bounds: ExitBounds = EXIT_BOUNDS,
        **limits: Any,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.reactor = Reactor(loop, 100)
        self.devices = Devices()
        self.directory = InOrder()
        book = directory if directory is not None else self.directory
        self.counters = ExitCounters()
        self.sightings = Sightings()
        usual = {
            "exits_total": 100,
            "exits_per_network": 50,
            "parked": 100,
            "arrivals": 100,
            "heartbeat_seconds": 15.0,
        }
        exit_limits = ExitLimits(**{**usual, **limits})
        services = PortServices(
            self.reactor,
            self.devices,
            book,
            lambda _: Place(country="xx"),
            self.counters,
            lambda: 0,
            Alone(lambda: 0),
            ParkedBudget(exit_limits.parked),
            self.sightings,
        )
        base = ExitBase(services, exit_limits)
        self.borrowing = borrowing_of(base, self.reached_at, bounds.borrowing)
        self.lending = Lending(base.roster, bounds.lending)
        self.loans = Loans(self.borrowing, self.lending)
        self.workers = make_workers(self.reactor)
        self.base = base
        self.listener = ExitListener(
            base,
            context_of(own_certificate(folder, 1_700_000_000)),
            self.loans,
            watch,
            self.workers,
            bounds.port,
        )
        self.policy = Policy(allow=["127.0.0.0/8"], blocked_ports=[25])
        self.resolver = Localhost("127.0.0.1")
        self.exits = Exits(
            self.reactor,
            book,
            self.resolver,
            self.policy,
            seconds,
            self.counters,
            borrower=self.loans,
            times=bounds.dials,
        )
        sock = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.port: int = sock.getsockname()[1]
        prepare(sock)
        self.acceptor = Acceptor(
            loop,
            sock,
            self.listener.arrivals.welcome,
            self.listener.arrivals.shed,
            logging.getLogger("exits"),
            socket.SocketType,
        )
        self._devices: list[Device] = []

    def reached_at(self) -> tuple[str, int]:
        """Return the address that this node announces for work connections."""
        return "127.0.0.1", self.port

    async def device(
        self, token: str = "device", address: str = "127.0.0.1", **changes: Any
    ) -> Device:
        """Return a device that has attached."""
        device = await Device(self.port, address).attach(hello(token, **changes))
        self._devices.append(device)
        return device

    async def parked(
        self, token: str = "device", count: int = 1, address: str = "127.0.0.1"
    ) -> Device:
        """Return a device whose work connections wait here."""
        before = self.counters.parked
        device = await self.device(token, address)
        await until(lambda: self.counters.parked >= before + count, "its connections wait")
        return device

    def unattached(self) -> Device:
        """Return a device that is not connected."""
        device = Device(self.port)
        self._devices.append(device)
        return device

    async def close(self) -> None:
        for device in self._devices:
            await device.kill()
        self.acceptor.close()
        self.exits.close()
        self.listener.close()
        await self.listener.wait_closed()
        await until(lambda: len(self.listener.arrivals) == 0)
        self.reactor.close()


def context_of(certificate: Path) -> ssl.SSLContext:
    """Return a TLS context with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate)
    return context


EXITS = {
    "exits": {"host": "127.0.0.1", "port": 0, "exits_per_network": 100},
    "geo": {"known": {"127.0.0.0/8": "xx"}},
}


@dataclass(frozen=True)
class Consented:
    """A device whose owner has agreed that it is an exit, in the account and at the device."""

    owner: Person
    device_id: str
    first: Hello

    async def attach(self, service: Service, address: str = "127.0.0.1") -> Device:
        """Attach it to a daemon; it carries every stream that the daemon orders."""
        listener = listener_of(service)
        port = bound_port(service.daemon.listeners.exits)
        device = Device(port, address)
        device.lends = True
        await device.attach(self.first)
        assert device.welcome is not None, device.sorry
        # Targets of tests are at any port, and more than a household would allow.
        attached = listener.roster.by_device[self.device_id]
        attached.grant(NO_LIMITS._replace(paused=attached.granted.paused))
        return device


async def consented(service: Service, owner: Person | None = None) -> Consented:
    """Return a device that may attach. Its owner is a new user if none is given."""
    owner = owner or await service.person()
    body = {"name": "box", "device_type": "mini_pc"}
    made = await service.call("POST", "/api/worker/token/create", body, token=owner.token)
    terms = await service.call("GET", "/api/exits/terms")
    listed = await service.call("GET", "/api/worker/tokens", token=owner.token)
    token_id = listed.body["tokens"][0]["token_id"]
    agreed = {"token_id": token_id, "terms_hash": terms.body["terms_hash"]}
    answer = await service.call("POST", "/api/worker/exit/consent", agreed, token=owner.token)
    assert answer.status == 200, answer.body
    first = hello(made.body["token"], terms=terms.body["terms_hash"], features=(DENY, UDP, FEATURE))
    return Consented(owner, token_id, first)


def listener_of(service: Service) -> ExitListener:
    """Return the exits' port of a daemon."""
    assert service.daemon.exit_port is not None
    return service.daemon.exit_port.listener


async def all_is_shared(service: Service) -> None:
    """Wait until exits have carried all that was used, to the byte, session by session."""

    async def differences(tx: Transaction) -> list[tuple[str, int, int]]:
        return await tx.all(
            lambda *row: row,
            """
            SELECT s.id, s.bytes_used,
                (SELECT COALESCE(SUM(u.used_bytes), 0) FROM exit_usage AS u
                    WHERE u.session_id = s.id) AS carried
            FROM bandwidth_sessions AS s
            WHERE s.bytes_used <> (
                SELECT COALESCE(SUM(u.used_bytes), 0) FROM exit_usage AS u WHERE u.session_id = s.id
            )
            """,
        )

    async def are_none() -> bool:
        return not await service.daemon.store.read(differences)

    await until(are_none, "exits have carried what was used")


@asynccontextmanager
async def running_with_exit(
    folder: Path, *, all_leave: bool = True, bounds: Bounds = USUAL, **sections: dict[str, Any]
) -> AsyncIterator[Service]:
    """Run a daemon with an exit; every session that is bought leaves through it, if `all_leave`."""
    async with running_in(folder, bounds=bounds, **EXITS, **sections) as service:
        device = await (await consented(service)).attach(service)
        service.wishes = "-country-xx" if all_leave else ""
        try:
            await until(lambda: listener_of(service).counters.parked > 0, "a connection waits")
            yield service
            if all_leave:
                await all_is_shared(service)
        finally:
            await device.kill()


@asynccontextmanager
async def running_with_agent(
    folder: Path,
    relays: MakeRelays = EpollRelays,
    *,
    bounds: Bounds = USUAL,
    **sections: dict[str, Any],
) -> AsyncIterator[Service]:
    """Run a daemon with the agent of devices as its exit; every session leaves through it."""
    async with (
        running_in(folder, bounds=bounds, **{**EXITS, **sections}) as service,
        agent_at(service, folder, relays),
    ):
        service.wishes = "-country-xx"
        yield service
        await all_is_shared(service)


@asynccontextmanager
async def agent_at(
    service: Service, folder: Path, relays: MakeRelays = EpollRelays
) -> AsyncIterator[Attached]:
    """Run the agent of a new device, attached to a daemon; a connection of it waits."""
    device, listener = await consented(service), listener_of(service)
    door = service.daemon.exit_port.door()
    agreement = Consent(
        api=service.url,
        host=door.host,
        port=door.port,
        pin=door.certificate_sha256,
        token=device.first.token,
        terms=device.first.terms,
        agreed_at="2026-01-01T00:00:00+00:00",
        limits=DeviceLimits(bytes_per_day=0, connections=1000, dials_per_second=1000, udp=True),
    )
    guard, routes = make_guard([ip_network("127.0.0.0/8"), ip_network("::1/128")])
    agent = Agent(
        agreement,
        folder,
        guard=guard,
        now=lambda: datetime.now(UTC),
        read_power=lambda: "",
        relays=relays,
    )
    task = asyncio.get_running_loop().create_task(agent.run())
    try:
        await until(lambda: len(listener) == 1, "it is attached")
        attached = listener.roster.by_device[device.device_id]
        attached.grant(NO_LIMITS)
        listener.roster.control_of(attached).send(NO_LIMITS)
        await until(lambda: listener.counters.parked > 0, "a connection waits")
        yield attached
    finally:
        agent.stop("the test is over")
        await task
        if routes is not None:
            routes.close()
