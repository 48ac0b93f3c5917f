"""A SOCKS5 client for tests, step by step, over asyncio streams."""

import asyncio
import socket
import struct
from ipaddress import ip_address

from support.daemons.service import Bought, Service

GREETING = b"\x05\x01\x02"


def credentials(username: str | bytes, password: str | bytes) -> bytes:
    """Return the RFC 1929 message with these credentials."""
    name = username.encode() if isinstance(username, str) else username
    secret = password.encode() if isinstance(password, str) else password
    return bytes([1, len(name)]) + name + bytes([len(secret)]) + secret


def request(host: str, port: int, *, command: int = 1) -> bytes:
    """Return a request for an address in text, or for a name."""
    try:
        address = ip_address(host)
    except ValueError:
        encoded = bytes([3, len(host)]) + host.encode()
    else:
        encoded = bytes([1 if address.version == 4 else 4]) + address.packed
    return bytes([5, command, 0]) + encoded + struct.pack(">H", port)


class Client:
    """A connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, host: str = "127.0.0.1", source: str = "") -> "Client":
        """Connect, from a `source` address of this machine if that matters."""
        local = (source, 0) if source else None
        reader, writer = await asyncio.open_connection(host, port, local_addr=local)
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Read until the proxy ends the stream."""
        return await self.reader.read()

    async def log_in(self, username: str | bytes, password: str | bytes) -> int:
        """Negotiate, and return the status of RFC 1929."""
        await self.send(GREETING)
        assert await self.receive(2) == b"\x05\x02"
        await self.send(credentials(username, password))
        answer = await self.receive(2)
        assert answer[0] == 1
        return answer[1]

    async def connect(self, host: str, port: int, *, command: int = 1) -> int:
        """Request a connection, and return the reply code of RFC 1928."""
        await self.send(request(host, port, command=command))
        return (await self.reply())[0]

    async def reply(self) -> tuple[int, str, int]:
        """Read a complete reply: its code, the bound address and port."""
        version, code, reserved, kind = await self.receive(4)
        assert (version, reserved) == (5, 0)
        assert kind in (1, 4)
        host = ip_address(await self.receive(4 if kind == 1 else 16))
        (port,) = struct.unpack(">H", await self.receive(2))
        return code, str(host), port

    def end(self) -> None:
        """End the stream towards the proxy, and continue reading."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Break the connection."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()


async def tunnel(port: int, username: str, password: str, host: str, target: int) -> Client:
    """Return a client whose bytes are relayed to a target."""
    client = await Client.open(port)
    assert await client.log_in(username, password) == 0
    assert await client.connect(host, target) == 0
    return client


async def plain_tunnel(
    service: Service, bought: Bought, port: int, *, receive_buffer: int | None = None
) -> socket.socket:
    """Return a client's socket, relayed to a port on loopback."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await loop.sock_connect(sock, ("127.0.0.1", service.proxy_port))
    handshake = GREETING + credentials(bought.username, bought.password)
    await loop.sock_sendall(sock, handshake + request("127.0.0.1", port))
    answer = b""
    while len(answer) < 14:
        answer += await loop.sock_recv(sock, 14 - len(answer))
    assert answer[:8] == b"\x05\x02\x01\x00\x05\x00\x00\x01"
    return sock
