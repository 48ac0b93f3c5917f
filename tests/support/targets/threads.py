"""Targets for clients that have no event loop: servers in threads that count bytes."""

import io
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.targets.targets import PATTERN, pattern
from support.targets.tls import Count, TlsStream


class WebTarget(ThreadingHTTPServer):
    """An HTTP server: GET /bytes/N answers N bytes of the pattern, POST answers the posted body.

    `pages` are the other pages, by path. `received` and `sent` count every byte on its connections,
    heads included; of TLS, every byte as it travels.

    Args:
        context: the TLS context of the server, if it speaks TLS.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.context = context
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.received = 0
        self.sent = 0
        self.lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def count_received(self, size: int) -> None:
        with self.lock:
            self.received += size

    def count_sent(self, size: int) -> None:
        with self.lock:
            self.sent += size


class _Handler(BaseHTTPRequestHandler):
    server: WebTarget
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        server = self.server
        if server.context is None:
            self.rfile = _Counting(self.rfile, server.count_received)
            self.wfile = _Counting(self.wfile, server.count_sent)
            return
        self.rfile.close()
        stream = TlsStream(
            self.connection, server.context, server.count_received, server.count_sent
        )
        self.rfile, self.wfile = io.BufferedReader(stream), stream

    def finish(self) -> None:
        """Read the client to its end, so that its last bytes are counted."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.rfile.read()
        super().finish()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        if path in self.server.pages:
            self._answer(self.server.pages[path])
        elif path.startswith("/bytes/"):
            self._answer(pattern(int(path.rpartition("/")[2])))
        else:
            self._answer(b"", 404)

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.path.endswith(".html"):
            self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class _Counting:
    """A file that counts the bytes that pass."""

    def __init__(self, file: object, count: Count) -> None:
        self._file = file
        self._count = count

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def readline(self, *arguments: int) -> bytes:
        data = self._file.readline(*arguments)
        self._count(len(data))
        return data

    def read(self, *arguments: int) -> bytes:
        data = self._file.read(*arguments)
        self._count(len(data))
        return data

    def write(self, data: bytes) -> int:
        self._count(len(data))
        return self._file.write(data)


@contextmanager
def web(context: ssl.SSLContext | None = None) -> Iterator[WebTarget]:
    """Run an HTTP server, by TLS if there is a context for it."""
    server = WebTarget(context)
    yield from served(server)


# Bytes that a slow target sends, and seconds between them: 20 clients use 100 MB in a minute.
SLOW_BYTES = 8_000
SLOW_SECONDS = 0.1


class EndlessTarget(socketserver.ThreadingTCPServer):
    """Sends the pattern until the client is gone.

    Args:
        is_slow: whether it sends little until the test calls `hurry`, so that a quota lasts for a
            test of any length.
    """

    daemon_threads = True
    request_queue_size = 1024  # its threads may keep the one that accepts from its turn

    def __init__(self, *, is_slow: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Endless)
        self._is_fast = threading.Event()
        if not is_slow:
            self.hurry()

    def hurry(self) -> None:
        """Send as fast as the clients read."""
        self._is_fast.set()

    def is_slow(self) -> bool:
        """Wait a moment, and return whether the target is still slow."""
        return not self._is_fast.wait(SLOW_SECONDS)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Endless(socketserver.BaseRequestHandler):
    server: EndlessTarget

    def handle(self) -> None:
        try:
            while self.server.is_slow():
                self.request.sendall(PATTERN[:SLOW_BYTES])
            while True:
                self.request.sendall(PATTERN)
        except OSError:
            pass


@contextmanager
def endless(*, is_slow: bool = False) -> Iterator[EndlessTarget]:
    """Run a server that never stops sending."""
    yield from served(EndlessTarget(is_slow=is_slow))


class StuckTarget(socketserver.ThreadingTCPServer):
    """Sends until the client takes no more, and reads nothing until the test lets it drain."""

    daemon_threads = True
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Stuck)
        self._is_stuck = threading.Event()
        self._drain = threading.Event()
        self._is_drained = threading.Event()
        self._received = 0

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def is_stuck(self) -> bool:
        """Return whether the client has stopped reading."""
        return self._is_stuck.is_set()

    def drained(self) -> int:
        """Read until the connection is over, and return how much came."""
        self._drain.set()
        self._is_drained.wait(30)
        return self._received

    def serve(self, connection: socket.socket) -> None:
        """Get stuck, and wait to drain."""
        connection.settimeout(0.5)
        try:
            while True:
                connection.sendall(PATTERN)
        except TimeoutError:
            self._is_stuck.set()
        except OSError:
            pass
        self._drain.wait(60)
        try:
            while data := connection.recv(65_536):
                self._received += len(data)
        except OSError:
            pass
        self._is_drained.set()


class _Stuck(socketserver.BaseRequestHandler):
    server: StuckTarget

    def handle(self) -> None:
        self.server.serve(self.request)


@contextmanager
def stuck() -> Iterator[StuckTarget]:
    """Run a server that gets stuck."""
    yield from served(StuckTarget())


def served(server: socketserver.BaseServer) -> Iterator[socketserver.BaseServer]:
    """Run a server in a thread until the caller's block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
