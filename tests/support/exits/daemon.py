"""The daemon's side of exits, as small as a test of the agent needs it: TLS, frames, tickets.

It judges nothing: the agent dials each target that a test orders.
"""

import asyncio
import hashlib
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import cast

from proxyctl.protocol.frames import (
    CALL,
    CALL_NUMBER_BYTES,
    PREFACE,
    TICKET_BYTES,
    Associate,
    Dial,
    Dialled,
    ExitStatus,
    For,
    Frame,
    FrameReader,
    Hello,
    Lend,
    Lent,
    Over,
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
from support.base.ports import free_port
from support.base.waiting import until
from support.targets.tls import make_certificate

Address = IPv4Address | IPv6Address
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

NO_LIMITS = ServiceLimits(connections=0, bytes_per_second=0, bytes_per_day=0, ports=())
TICKETS = 64


class Control(asyncio.Protocol):
    """One control connection of an exit."""

    def __init__(self, daemon: "ExitDaemon") -> None:
        self.daemon = daemon
        self.reader = FrameReader()
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop has another one for TLS

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.daemon.is_mute:
            for frame in self.reader.receive_data(data):
                self.daemon.receive(self, frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def send(self, frame: Frame) -> None:
        assert self.transport is not None
        self.transport.write(encode(frame))


class Loan(Control):
    """A borrower's substitute for a control connection: the home node passes the frames on."""

    def __init__(self, borrower: "ExitDaemon", home: Control, number: int) -> None:
        super().__init__(borrower)
        self.home = home
        self.number = number

    def send(self, frame: Frame) -> None:
        self.home.send(For(self.number, encode(frame)))


class ExitDaemon:
    """Daemon side of the attached exits.

    `reply` is the answer to a Hello. `parked` are the work connections that showed a ticket, by
    number; `refused` counts those that did not. `lent` is the exit's report of loans.
    """

    def __init__(self, folder: Path, public: str = "198.18.0.1") -> None:
        certificate = make_certificate(folder)
        self.context = certificate.server
        der = ssl.PEM_cert_to_DER_cert(certificate.path.read_text())
        self.pin = hashlib.sha256(der).hexdigest()
        self.host = "127.0.0.1"
        self.port = free_port()  # no other program gets it while this one is away
        self.reply: Welcome | Sorry = Welcome(7, public, "xx", "", 0, NO_LIMITS, 30)
        self.is_mute = False
        self.controls: list[Control] = []
        self.hellos: list[Hello] = []
        self.states: list[str] = []
        self.pongs: list[bytes] = []
        self.dialled: dict[int, Dialled] = {}
        self.overs: list[int] = []
        self.parked: dict[int, Streams] = {}
        self.loans: dict[int, Loan] = {}
        self.lent: dict[int, str] = {}
        self.calls: list[bytes] = []
        self.accepted = 0
        self.refused = 0
        self._tickets: dict[int, bytes] = {}
        self._next = 100
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self, listener: socket.socket | None = None) -> AsyncIterator["ExitDaemon"]:
        sock = listener or socket.create_server(("127.0.0.1", self.port))
        sock.setblocking(False)
        self.host, self.port = sock.getsockname()[:2]
        accepting = asyncio.create_task(self._accept(sock))
        try:
            yield self
        finally:
            accepting.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(accepting, *self._tasks, return_exceptions=True)
            sock.close()
            for control in self.controls:
                if control.transport is not None:
                    control.transport.abort()
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.gather(
                *(each.wait_closed() for each in self._writers), return_exceptions=True
            )

    @property
    def control(self) -> Control:
        """The control connection of the exit that attached last."""
        return self.controls[-1]

    def receive(self, control: Control, frame: Frame) -> None:
        if isinstance(frame, Hello):
            self.hellos.append(frame)
            control.send(self.reply)
        elif isinstance(frame, ExitStatus):
            self.states.append(frame.paused)
        elif isinstance(frame, Dialled):
            self.dialled[frame.number] = frame
        elif isinstance(frame, Over):
            self.overs.append(frame.number)
        elif isinstance(frame, Ping):
            control.send(Pong(frame.payload))
        elif isinstance(frame, Pong):
            self.pongs.append(frame.payload)
        elif isinstance(frame, Lent):
            self.lent[frame.number] = frame.code
        elif isinstance(frame, For):
            loan, said = self.loans[frame.number], decode_whole(frame.frame)
            assert said is not None
            loan.daemon.receive(loan, said)

    async def lend(self, number: int, borrower: "ExitDaemon", host: str = "", port: int = 0) -> str:
        """Lend the exit to another daemon, at another address if given. Return the answer."""
        self.loans[number] = Loan(borrower, self.control, number)
        borrower.controls.append(self.loans[number])
        self.control.send(Lend(number, host or borrower.host, port or borrower.port, number))
        await until(lambda: number in self.lent, "the exit answers")
        return self.lent[number]

    async def attached(self, times: int = 1) -> None:
        """Wait until an exit has been let in `times` times."""
        await until(lambda: len(self.states) >= times, "the exit is attached")

    async def park(self, connections: int, tickets: int = TICKETS) -> None:
        """Ask for work connections, and wait until they are there."""
        self.give_tickets(tickets)
        self.control.send(Park(connections))
        await until(lambda: len(self.parked) >= connections, "work connections are parked")

    def give_tickets(self, count: int) -> None:
        tickets = tuple(secrets.token_bytes(TICKET_BYTES) for _ in range(count))
        self._tickets.update(enumerate(tickets, self._next))
        self.control.send(Tickets(self._next, tickets))
        self._next += count

    def order(self, host: tuple[Address, ...] | str, port: int) -> tuple[int, Streams]:
        """Order the exit to dial, by the work connection that has waited longest."""
        number = next(iter(self.parked))
        streams = self.parked.pop(number)
        self.control.send(Dial(number, host, port))
        return number, streams

    async def result(self, number: int) -> Dialled:
        """Wait for how a dial went."""
        await until(lambda: number in self.dialled, "the dial is reported")
        return self.dialled[number]

    async def dial(self, host: tuple[Address, ...] | str, port: int) -> tuple[Dialled, Streams]:
        """Dial, and wait for how that went."""
        await until(lambda: bool(self.parked), "a work connection is parked")
        number, streams = self.order(host, port)
        return await self.result(number), streams

    async def associate(self) -> tuple[Dialled, Streams]:
        """Order the exit to carry datagrams, and wait for its answer."""
        await until(lambda: bool(self.parked), "a work connection is parked")
        number = next(iter(self.parked))
        streams = self.parked.pop(number)
        self.control.send(Associate(number))
        return await self.result(number), streams

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            self.accepted += 1
            task = asyncio.create_task(self._serve(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        loop.add_reader(sock, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
        except asyncio.CancelledError:
            loop.remove_reader(sock)
            sock.close()
            raise
        loop.remove_reader(sock)
        with suppress(OSError):
            first = sock.recv(1, socket.MSG_PEEK)
            if first == CALL:
                self.calls.append(sock.recv(len(CALL) + CALL_NUMBER_BYTES)[len(CALL) :])
                sock.close()
                return
            if first != b"W":
                control = Control(self)
                self.controls.append(control)
                try:
                    await loop.connect_accepted_socket(lambda: control, sock, ssl=self.context)
                except asyncio.CancelledError:  # in the middle of the handshake
                    sock.close()
                    raise
                return
            streams = await asyncio.open_connection(sock=sock)
            self._writers.append(streams[1])
            preface = Preface.decode(await streams[0].readexactly(PREFACE.size))
            if self._tickets.pop(preface.number, None) == preface.ticket:
                self.parked[preface.number] = streams
                return
        self.refused += 1
        sock.close()
