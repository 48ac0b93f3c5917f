"""Datagrams for tests: sockets that are waited for, and a client of UDP ASSOCIATE (RFC 1928)."""

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from typing import NamedTuple

from support.base.waiting import PATIENCE_SECONDS, until
from support.clients.socks import Client, request
from support.daemons.service import Bought, Service

STEP_SECONDS = 0.001
LARGEST = 65_535


class Received(NamedTuple):
    """A datagram that came through the proxy: the sender that its header names, and its payload."""

    host: str
    port: int
    payload: bytes


def wrapped(host: str, port: int, payload: bytes, *, fragment: int = 0) -> bytes:
    """Return a datagram for the proxy; the address is encoded as in a request."""
    return bytes((0, 0, fragment)) + request(host, port)[3:] + payload


def unwrapped(data: bytes) -> Received:
    """Return the contents of a datagram of the proxy."""
    assert data[:3] == b"\0\0\0"
    assert data[3] in (1, 4)
    end = 8 if data[3] == 1 else 20
    (port,) = struct.unpack_from(">H", data, end)
    return Received(str(ip_address(data[4:end])), port, data[end + 2 :])


class Peer:
    """A UDP socket."""

    def __init__(self, host: str, port: int = 0) -> None:
        self.sock = socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET,
            socket.SOCK_DGRAM | socket.SOCK_NONBLOCK,
        )
        if host == "::":
            self.sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.sock.bind((host, port))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.sock.getsockname()[:2]
        return host, port

    @property
    def port(self) -> int:
        return self.address[1]

    def send(self, payload: bytes, target: tuple) -> None:
        self.sock.sendto(payload, target)

    async def receive(self) -> tuple[bytes, tuple]:
        """Wait for a datagram, and return it with its sender."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return self.sock.recvfrom(LARGEST)
                except BlockingIOError:
                    await asyncio.sleep(STEP_SECONDS)


@contextmanager
def peer(host: str = "127.0.0.1", port: int = 0) -> Iterator[Peer]:
    """Keep a UDP socket at an address of this machine."""
    made = Peer(host, port)
    with made.sock:
        yield made


async def nobody_at(address: tuple) -> None:
    """Wait until the kernel reports that no socket is bound to a port (ICMP port unreachable)."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect(address)

        def is_refused() -> bool:
            asking.setblocking(False)
            try:
                asking.send(b"")
                asking.recv(1)
            except OSError as error:
                return error.errno == errno.ECONNREFUSED
            return False

        await until(is_refused, f"no socket is at {address}")


class Associated:
    """A client whose datagrams are relayed.

    Args:
        control: its TCP connection to the proxy.
        relay: where the proxy has said to send.
        own: where it sends from.
    """

    def __init__(self, control: Client, relay: tuple[str, int], own: Peer) -> None:
        self.control = control
        self.relay = relay
        self.own = own

    def send(self, target: tuple, payload: bytes) -> None:
        """Send a datagram to a target through the proxy."""
        self.own.send(wrapped(*target[:2], payload), self.relay)

    async def receive(self) -> Received:
        """Wait for a datagram of a target."""
        data, sender = await self.own.receive()
        assert sender[:2] == self.relay
        return unwrapped(data)

    async def reaches(self, target: Peer, payload: bytes = b"are you there?") -> tuple:
        """Send a datagram; check that it arrives next at the target; return its source address."""
        self.send(target.address, payload)
        data, sender = await target.receive()
        assert data == payload
        return sender

    async def exchange(self, target: Peer, up: bytes, down: bytes) -> None:
        """Send to a target, and have it answer."""
        target.send(down, await self.reaches(target, up))
        assert await self.receive() == (*target.address, down)

    async def ended(self) -> bytes:
        """Wait until the proxy ends the TCP connection in order. Return its last bytes there."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.control.rest()

    async def cut(self) -> None:
        """Wait until the proxy resets the TCP connection."""
        try:
            await self.ended()
        except ConnectionResetError:
            return
        raise AssertionError("ended in order, instead of with a reset")


async def logged_in(service: Service, bought: Bought, host: str = "127.0.0.1") -> Client:
    """Return a client that may make its request."""
    client = Client(*await asyncio.open_connection(host, service.proxy_port))
    assert await client.log_in(bought.username, bought.password) == 0
    return client


@asynccontextmanager
async def associated(
    service: Service,
    bought: Bought,
    *,
    host: str = "127.0.0.1",
    announced: tuple[str, int] | None = None,
) -> AsyncIterator[Associated]:
    """Yield a client with an association; `announced` is the source address that it announces."""
    control = await logged_in(service, bought, host)
    try:
        await control.send(request(*(announced or ("0.0.0.0", 0)), command=3))
        code, bound_host, bound_port = await control.reply()
        assert code == 0
        with peer(host) as own:
            yield Associated(control, (bound_host, bound_port), own)
    finally:
        await control.close()
