"""Random bytes that a client of the proxy might send; the same number makes the same bytes.

Most of it is nearly right: the daemon refuses malformed input at its first byte.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from random import Random

METHODS = (b"GET",) * 6 + (b"HEAD", b"POST", b"POST", b"OPTIONS", b"TRACE", b"get", b"X!#$")
SCHEMES = (b"http://",) * 8 + (b"HTTP://u:p@", b"https://", b"")
VERSIONS = (b"HTTP/1.1",) * 20 + (b"HTTP/1.0",) * 3 + (b"HTTP/2.0", b"HTTP/1.10", b"http/1.1", b"")
ENDS = (b"\r\n",) * 100 + (b"\n", b"\r", b"\r\r\n", b"\n\n", b"\0\r\n")
FIELDS = (
    b"Accept: */*",
    b"Connection: close",
    b"Connection: keep-alive, X, Host, Content-Length",
    b"Connection: Upgrade",
    b"Connection: TE",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Expect: 100-continue",
    b"Keep-Alive: 5",
    b"Proxy-Connection: keep-alive",
    b"TE: trailers",
    b"Upgrade: websocket",
    b"Upgrade: h2c",
    b"X: \xff\xfe",
)
ODD_FIELDS = (
    b"Content-Length: 5, 5",
    b"Content-Length: +5",
    b"Content-Length: 99999999999999999999",
    b"Content-Length : 5",
    b"Host: other.invalid",
    b"Transfer-Encoding: chunked",
    b" folded",
    b"\tfolded: too",
    b":",
    b"no field",
)
NAMES = (b"nosuch.invalid", b"a.invalid.", b"[::1]", b"127.1", b"0", b".", b"%", b"x" * 256)
NOISE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x04\x01\x00\x50\x7f\x00\x00\x01user\x00",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\r\n\r\n",
    b"\0" * 600,
    b"\xff" * 600,
)
TOKENS = (
    *(b"\r\n", b"\r\n\r\n", b"\r", b"\n", b"\0", b" ", b":", b",", b"\t", b"\x05", b"\x01"),
    *(b"\xff", b"Host: ", b"Content-Length: 3\r\n", b"Proxy-Authorization: ", b"HTTP/1.1", b"%"),
    *(b"\x05\x01\x02", b"x" * 300, b"x" * 9_000),
)
SEGMENTS = ((1,), (1_000_000,), (2, 3), (7, 1, 64), (1_460,), (4_096,), (3, 1_000))


@dataclass(frozen=True, slots=True)
class Conversation:
    """Bytes that a client sends, their segments, and the owner's decisions about them."""

    data: bytes
    sizes: tuple[int, ...]
    accept: bool
    reach: bool
    password_required: bool

    def segments(self) -> Iterator[bytes]:
        """Return the sent bytes, in the segments in which they arrive."""
        start = turn = 0
        while start < len(self.data):
            size = self.sizes[turn % len(self.sizes)]
            yield self.data[start : start + size]
            start += size
            turn += 1


class Conversations:
    """Makes conversations up.

    Args:
        username: whose credentials most of them show.
        password: theirs.
        host: the address that most of them ask for.
        port: its port.
    """

    def __init__(
        self,
        username: bytes = b"user",
        password: bytes = b"pass",
        host: str = "127.0.0.1",
        port: int = 80,
    ) -> None:
        self._username = username
        self._password = password
        self._host = host
        self._packed = ip_address(host).packed
        self._port = port
        self._shown = b"Proxy-Authorization: Basic " + b64encode(username + b":" + password)

    def number(self, number: int) -> Conversation:
        """Return one of them."""
        random = Random(number)
        data = b"".join(self._begin(random))
        if random.random() < 0.6:
            for _ in range(random.choice((1, 1, 1, 2, 3))):
                data = random.choice(MUTATIONS)(random, data)
        return Conversation(
            data=data,
            sizes=random.choice(SEGMENTS),
            accept=random.random() < 0.9,
            reach=random.random() < 0.8,
            password_required=random.random() < 0.8,
        )

    def _begin(self, random: Random) -> Iterator[bytes]:
        chance = random.random()
        if chance < 0.5:
            yield from self._socks5(random)
        elif chance < 0.95:
            for _ in range(random.choice((1, 1, 1, 2, 4))):
                yield from self._http(random)
        else:
            yield random.choice(NOISE)
        if random.random() < 0.3:
            yield random.choice((b"x", random.randbytes(50), bytes(5_000), random.choice(NOISE)))

    def _socks5(self, random: Random) -> Iterator[bytes]:
        methods = random.choice((b"\x02", b"\x02", b"\x00\x02", b"\x00", b"", bytes(range(255))))
        yield bytes((5, len(methods))) + methods
        if methods != b"\x00":
            yield self._credentials(random)
        version, command = random.choice((5, 5, 5, 5, 4)), random.choice((1, 1, 1, 1, 3, 2, 255))
        yield bytes((version, command, random.choice((0, 0, 9))))
        yield from self._address(random)
        port = self._port if random.random() < 0.8 else random.choice((0, 25, 65_535))
        yield port.to_bytes(2, "big")

    def _credentials(self, random: Random) -> bytes:
        if random.random() < 0.75:
            name, secret = self._username, self._password
        else:
            sizes = (0, 1, 16, 255)
            name = random.randbytes(random.choice(sizes))
            secret = random.randbytes(random.choice(sizes))
        version = random.choice((1, 1, 1, 1, 1, 5))
        return bytes((version, len(name))) + name + bytes((len(secret),)) + secret

    def _address(self, random: Random) -> Iterator[bytes]:
        kind = random.choice((1, 1, 3, 3, 4, 4, 0))
        if kind == 1:
            yield b"\x01" + (self._packed if random.random() < 0.8 else random.randbytes(4))
        elif kind == 4:
            mapped = bytes(10) + b"\xff\xff" + self._packed
            yield b"\x04" + (mapped if random.random() < 0.6 else random.randbytes(16))
        else:
            name = self._name(random)[:255]
            yield bytes((kind, len(name))) + name

    def _name(self, random: Random) -> bytes:
        if random.random() < 0.6:
            return self._host.encode()
        if random.random() < 0.8:
            return random.choice(NAMES)
        return random.randbytes(random.choice((0, 1, 30, 255)))

    def _http(self, random: Random) -> Iterator[bytes]:
        method = random.choice(METHODS) if random.random() < 0.7 else b"CONNECT"
        name = self._name(random)
        place = b"%b:%d" % (name, self._port)
        target = place
        if method != b"CONNECT":
            target = (
                random.choice(SCHEMES)
                + place
                + random.choice((b"/", b"", b"?q", b"/a#b", b"/%00", b"/\xff"))
            )
        yield b"%b %b %b" % (method, target, random.choice(VERSIONS)) + random.choice(ENDS)
        if random.random() < 0.9:
            yield b"Host: " + random.choice((place, name)) + random.choice(ENDS)
        if random.random() < 0.8:
            yield self._shown + random.choice(ENDS)
        for _ in range(random.choice((0, 0, 1, 2, 5, 101))):
            yield random.choice(FIELDS if random.random() < 0.95 else ODD_FIELDS)
            yield random.choice(ENDS)
        yield b"\r\n"
        if random.random() < 0.3:
            yield b"hello"


def _flip(random: Random, data: bytes) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def _insert(random: Random, data: bytes) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(TOKENS) + data[at:]


def _slice(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(start + random.choice((1, 2, 8, 64)), len(data))


def _leave_out(random: Random, data: bytes) -> bytes:
    start, end = _slice(random, data)
    return data[:start] + data[end:]


def _repeat(random: Random, data: bytes) -> bytes:
    start, end = _slice(random, data)
    return data[:start] + data[start:end] * random.choice((2, 3, 200)) + data[end:]


def _cut_short(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))]


MUTATIONS: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flip,
    _flip,
    _insert,
    _insert,
    _leave_out,
    _repeat,
    _cut_short,
)
