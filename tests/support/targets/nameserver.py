"""A name server on loopback, over UDP and TCP, that answers as a test wants."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address

from dnslib import AAAA, CNAME, QTYPE, RCODE, RR, A, DNSError, DNSRecord


@dataclass
class Zone:
    """Answers about one name; `cname` leads to another name, whose answers are included."""

    addresses: Sequence[str] = ()
    ttl: int = 0
    cname: str = ""
    rcode: int = RCODE.NOERROR
    truncated: bool = False
    mute: bool = False
    held: asyncio.Event = field(default_factory=asyncio.Event)


class NameServer:
    """Name server with the names of `zones`; no other name exists.

    `asked` lists the questions, name and type, as they came over UDP; `asked_tcp` over TCP.
    """

    def __init__(self) -> None:
        self.zones: dict[str, Zone] = {}
        self.asked: list[tuple[str, str]] = []
        self.asked_tcp: list[tuple[str, str]] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def has(
        self,
        name: str,
        *addresses: str,
        ttl: int = 0,
        cname: str = "",
        rcode: int = RCODE.NOERROR,
        truncated: bool = False,
        mute: bool = False,
        held: bool = False,
    ) -> Zone:
        """Set the answers about a name. A name that is `held` waits for its event first."""
        zone = Zone(addresses, ttl, cname, rcode, truncated, mute)
        if not held:
            zone.held.set()
        self.zones[name] = zone
        return zone

    def times(self, name: str) -> int:
        """Count the questions for the IPv4 addresses of a name."""
        return self.asked.count((name, "A"))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["NameServer"]:
        loop = asyncio.get_running_loop()
        stream = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self.port = stream.sockets[0].getsockname()[1]
        datagrams, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self), ("127.0.0.1", self.port)
        )
        try:
            yield self
        finally:
            datagrams.close()
            stream.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @asynccontextmanager
    async def answering(self, sock: socket.socket) -> AsyncIterator["NameServer"]:
        """Serve over UDP alone, on a socket that a test has bound."""
        loop = asyncio.get_running_loop()
        datagrams, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=sock)
        try:
            yield self
        finally:
            datagrams.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(
        self, data: bytes, transport: asyncio.DatagramTransport, peer: tuple[str, int]
    ) -> None:
        try:
            question = DNSRecord.parse(data)
        except DNSError:  # tests also send other data to this port
            return

        async def answer() -> None:
            reply = await self._reply(question, self.asked)
            if reply is not None:
                transport.sendto(reply, peer)

        self._own(asyncio.get_running_loop().create_task(answer()))

    def _own(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._own(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    question = DNSRecord.parse(await reader.readexactly(size))
                    reply = await self._reply(question, self.asked_tcp)
                    if reply is not None:
                        writer.write(len(reply).to_bytes(2, "big") + reply)
        finally:
            writer.close()

    async def _reply(self, question: DNSRecord, asked: list[tuple[str, str]]) -> bytes | None:
        name = str(question.q.qname).removesuffix(".")
        kind = QTYPE[question.q.qtype]
        asked.append((name, kind))
        reply = question.reply()
        zone = self.zones.get(name.lower())
        if zone is None:
            reply.header.rcode = RCODE.NXDOMAIN
            return bytes(reply.pack())
        await zone.held.wait()
        if zone.mute:
            return None
        reply.header.rcode = zone.rcode
        if zone.truncated and asked is self.asked:
            reply.header.tc = 1
        else:
            self._add(reply, name, zone, kind)
        return bytes(reply.pack())

    def _add(self, reply: DNSRecord, name: str, zone: Zone, kind: str) -> None:
        if zone.cname:
            reply.add_answer(RR(name, QTYPE.CNAME, rdata=CNAME(zone.cname), ttl=zone.ttl))
            self._add(reply, zone.cname, self.zones[zone.cname], kind)
        for text in zone.addresses:
            if ip_address(text).version == 4 and kind == "A":
                reply.add_answer(RR(name, QTYPE.A, rdata=A(text), ttl=zone.ttl))
            elif ip_address(text).version == 6 and kind == "AAAA":
                reply.add_answer(
                    RR(name, QTYPE.AAAA, rdata=AAAA(tuple(ip_address(text).packed)), ttl=zone.ttl)
                )


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.server.take(data, self.transport, addr)


@asynccontextmanager
async def nameserver() -> AsyncIterator[NameServer]:
    """Serve names; none exists until a test adds it."""
    async with NameServer().serving() as serving:
        yield serving
