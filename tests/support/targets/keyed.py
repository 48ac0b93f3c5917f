"""A target that tells whose bytes it saw, and a client of it: both ends count, by key."""

import random
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from support.base.waiting import until_true
from support.targets.targets import PATTERN
from support.targets.threads import served

CHUNK_BYTES = 65_536
STUCK_SECONDS = 0.3  # the peer has taken nothing for this time: all buffers on the way are full
ENDLESS = 1 << 62
QUIET_KEY = "quiet"  # for the bytes that `KeyedTarget.wait_quiet` itself sends


class Tally:
    """Bytes that both ends of many transfers saw, by key; threads share it."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, key: str, size: int) -> None:
        """Count bytes that have arrived at either end."""
        with self._lock:
            self.seen[key] += size

    def add_cut(self, line: str) -> None:
        """Count a line that was cut before it had said whose it is."""
        with self._lock:
            told = line.split(" ", maxsplit=1)[0]
            key = next((each for each in self.seen if each[::-1].startswith(told)), told)
            self.seen[key] += len(line)


class KeyedTarget(socketserver.ThreadingTCPServer):
    """Answers each line `YEK UP DOWN`, followed by UP bytes, with DOWN bytes of the pattern.

    The key is spelled backwards: identifiers differ at their ends, and a quota may cut the line.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, tally: Tally) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.tally = tally
        self._open = 0
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:
        with self._lock:
            self._open += 1
        super().process_request(request, client_address)

    def over(self) -> None:
        """Count a connection that has ended."""
        with self._lock:
            self._open -= 1

    def wait_quiet(self) -> None:
        """Wait until everything that has connected so far has been read to its end."""
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(
                f"{QUIET_KEY[::-1]} 0 1\n".encode()
            )  # earlier connections are accepted before it
            assert last.recv(1)
        until_true(lambda: self._open == 0, "the target has seen every end")


class _Conversation(socketserver.BaseRequestHandler):
    server: KeyedTarget

    def setup(self) -> None:
        self.key = ""
        self.line = b""

    def finish(self) -> None:
        if not self.key and self.line:
            self.server.tally.add_cut(self.line.decode())
        self.server.over()

    def handle(self) -> None:
        try:
            while (line := self._line()) is not None:
                up, down = int(line[1]), int(line[2])
                if not self.key:
                    self.key = line[0][::-1]
                    self.server.tally.add(self.key, len(self.line))
                while up:
                    data = self._receive(min(up, CHUNK_BYTES))
                    if not data:
                        return
                    up -= len(data)
                while down:
                    block = PATTERN[:down]
                    self.request.sendall(block)
                    down -= len(block)
        except OSError:
            self._rest()

    def _line(self) -> list[str] | None:
        self.line = b""
        while not self.line.endswith(b"\n"):
            data = self._receive(1)
            if not data:
                return None
            self.line += data
        return self.line.decode().split()

    def _receive(self, size: int) -> bytes:
        data: bytes = self.request.recv(size)
        if self.key:
            self.server.tally.add(self.key, len(data))
        return data

    def _rest(self) -> None:
        """Count the bytes that have arrived, although the client can no longer be answered."""
        try:
            while data := self._receive(CHUNK_BYTES):
                self.line += data
        except OSError:
            pass


@contextmanager
def keyed(tally: Tally) -> Iterator[KeyedTarget]:
    """Run a target that counts by key."""
    yield from served(KeyedTarget(tally))


def converse(
    connect: Callable[[], socket.socket], key: str, tally: Tally, random: random.Random, most: int
) -> None:
    """Transfer random sizes in both directions, to the end.

    Raises:
        OSError: it broke off; the bytes that had arrived are counted.
    """
    up, down = random.randrange(most), random.randrange(most)
    tally.add(key, 0)
    with connect() as sock:
        sock.settimeout(30)
        try:
            sock.sendall(f"{key[::-1]} {up} {down}\n".encode() + bytes(up))
        except OSError:
            down = ENDLESS  # the bytes that have come are read, and then the failure
        while down > 0:
            data = sock.recv(CHUNK_BYTES)
            tally.add(key, len(data))
            if not data:
                raise ConnectionError("the stream has ended early")
            down -= len(data)


def clog(
    connect: Callable[[], socket.socket], key: str, tally: Tally, wait: Callable[[], object]
) -> None:
    """Fill both directions with unread bytes, and wait; then read the bytes that have come.

    A process that dies with unread data resets its connections, and its unsent bytes are lost.

    Raises:
        OSError: there was no connection.
    """
    tally.add(key, 0)
    with connect() as sock, suppress(OSError):
        sock.settimeout(STUCK_SECONDS)
        try:
            sock.sendall(f"{key[::-1]} 0 {ENDLESS}\n".encode())
            while sock.send(bytes(CHUNK_BYTES)):
                pass
        except TimeoutError:
            wait()
        except OSError:
            pass  # it is used up before it is full
        sock.settimeout(30)
        while data := sock.recv(CHUNK_BYTES):
            tally.add(key, len(data))
