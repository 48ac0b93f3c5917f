"""Real clients of UDP ASSOCIATE: PySocks, a DNS query, and QUIC, every byte of them counted."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import socks
from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from dnslib import QTYPE, RCODE, RR, DNSRecord
from dnslib.server import BaseResolver, DNSLogger, DNSServer
from support.base.waiting import until_true
from support.clients.datagrams import Associated, associated, unwrapped, wrapped
from support.daemons.process import Process, assert_audit, funded, serving
from support.daemons.service import Service
from support.targets.targets import pattern

SIZE = 1_000_001


# --- PySocks, against a daemon as a process of its own -------------------------------------------


class Zone(BaseResolver):
    """Knows one name, and counts the bytes of its questions and answers."""

    def __init__(self) -> None:
        self.bytes = 0

    def resolve(self, request: DNSRecord, handler: object) -> DNSRecord:
        reply = request.reply()
        if request.q.qname == "proxyd.example.":
            reply.add_answer(*RR.fromZone("proxyd.example. 60 IN A 203.0.113.7"))
        else:
            reply.header.rcode = RCODE.NXDOMAIN
        self.bytes += len(request.pack()) + len(reply.pack())
        return reply


@contextmanager
def name_server() -> Iterator[tuple[Zone, int]]:
    """Run a DNS server on UDP."""
    zone = Zone()
    server = DNSServer(zone, address="127.0.0.1", port=0, logger=DNSLogger(log=""))
    server.start_thread()
    try:
        yield zone, server.server.server_address[1]
    finally:
        server.stop()
        server.server.server_close()
        server.thread.join()


@contextmanager
def pysocks(daemon: Process, proxy: dict[str, str]) -> Iterator[socks.socksocket]:
    """Give a UDP socket of PySocks."""
    with socks.socksocket(type=socks.socket.SOCK_DGRAM) as sock:
        sock.set_proxy(
            socks.SOCKS5,
            "127.0.0.1",
            daemon.proxy_port,
            username=proxy["username"],
            password=proxy["password"],
        )
        sock.settimeout(20)
        yield sock


def test_names_are_asked_for_through_pysocks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    email, password = funded(url)
    with serving(url) as daemon, name_server() as (zone, port):
        token = daemon.log_in(email, password)
        bought = daemon.buy(token)
        with pysocks(daemon, bought["proxy"]) as sock:
            for server in ("127.0.0.1", "localhost"):
                question = DNSRecord.question("proxyd.example")
                sock.sendto(question.pack(), (server, port))
                data, sender = sock.recvfrom(65_535)
                answer = DNSRecord.parse(data)
                assert sender == ("127.0.0.1", port)
                assert answer.header.id == question.header.id
                assert [str(each.rdata) for each in answer.rr] == ["203.0.113.7"]
            sock.sendto(DNSRecord.question("unknown.example").pack(), ("127.0.0.1", port))
            answer = DNSRecord.parse(sock.recv(65_535))
            assert RCODE[answer.header.rcode] == "NXDOMAIN"
            assert QTYPE[answer.q.qtype] == "A"
        until_true(lambda: daemon.used(token, bought["session_id"]) == zone.bytes, "all is counted")
    assert_audit(url)


# --- QUIC ----------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """The files of a certificate for localhost, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


class Counted(QuicConnectionProtocol):
    """One side of a QUIC connection; counts the payload of its datagrams."""

    total = 0

    def datagram_received(self, data: bytes, addr: tuple) -> None:
        type(self).total += len(data)
        super().datagram_received(data, addr)


class Through(Counted):
    """A client's side, through an association."""

    relay: tuple[str, int]

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        super().connection_made(Wrapping(transport, self.relay))

    def datagram_received(self, data: bytes, addr: tuple) -> None:
        assert addr == self.relay
        host, port, payload = unwrapped(data)
        super().datagram_received(payload, (host, port))


class Wrapping:
    """A transport that puts the header in front of every datagram."""

    def __init__(self, transport: asyncio.DatagramTransport, relay: tuple[str, int]) -> None:
        self._transport = transport
        self._relay = relay

    def sendto(self, data: bytes, addr: tuple) -> None:
        self._transport.sendto(wrapped(*addr[:2], data), self._relay)


@asynccontextmanager
async def quic(
    client: Associated, port: int, certificate: Path
) -> AsyncIterator[QuicConnectionProtocol]:
    """Give a QUIC connection to a server on loopback, through an association."""
    configuration = QuicConfiguration(is_client=True, server_name="localhost")
    configuration.load_verify_locations(str(certificate))
    Through.relay, Through.total, Counted.total = client.relay, 0, 0
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Through(QuicConnection(configuration=configuration)),
        sock=client.own.sock.dup(),
    )
    try:
        protocol.connect(("127.0.0.1", port))
        await protocol.wait_connected()
        yield protocol
        protocol.close()
        await protocol.wait_closed()
    finally:
        transport.close()


async def test_a_megabyte_over_quic_there_and_back(
    service: Service, certificate: tuple[Path, Path]
) -> None:
    tasks = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.write_eof()

    configuration = QuicConfiguration(is_client=False)
    configuration.load_cert_chain(*certificate)
    server = await serve(
        "127.0.0.1",
        0,
        configuration=configuration,
        create_protocol=Counted,
        stream_handler=lambda *streams: tasks.append(asyncio.create_task(echo(*streams))),
    )
    port = server._transport.get_extra_info("sockname")[1]
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer)
    async with associated(service, bought) as client:
        async with quic(client, port, certificate[0]) as connection:
            reader, writer = await connection.create_stream()
            writer.write(pattern(SIZE))
            writer.write_eof()
            async with asyncio.timeout(60):
                assert await reader.read() == pattern(SIZE)
        await asyncio.gather(*tasks)
    server.close()
    used = (await service.session(buyer, bought))["bytes_used"]
    assert used >= 2 * SIZE
    assert used >= Counted.total + Through.total
