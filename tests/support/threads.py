"""Targets for clients that have no event loop: servers in threads, counting what they see."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from support.targets import PATTERN, pattern


class WebTarget(ThreadingHTTPServer):
    """An HTTP server: GET /bytes/N answers N bytes of the pattern, POST answers what it got.

    `received` and `sent` count every byte on its connections, heads included.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received = 0
        self.sent = 0
        self.lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: WebTarget
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.rfile = _Counting(self.rfile, self.server, "received")
        self.wfile = _Counting(self.wfile, self.server, "sent")

    def do_GET(self) -> None:
        self._answer(pattern(int(self.path.rpartition("/")[2])))

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class _Counting:
    """A file that counts what passes."""

    def __init__(self, file: object, server: WebTarget, counter: str) -> None:
        self._file = file
        self._server = server
        self._counter = counter

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def _count(self, size: int) -> None:
        with self._server.lock:
            setattr(self._server, self._counter, getattr(self._server, self._counter) + size)

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
def web() -> Iterator[WebTarget]:
    """Run an HTTP server."""
    server = WebTarget()
    yield from _run(server)


class EndlessTarget(socketserver.ThreadingTCPServer):
    """Sends the pattern until the client is gone."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Endless)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Endless(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while True:
                self.request.sendall(PATTERN)
        except OSError:
            pass


@contextmanager
def endless() -> Iterator[EndlessTarget]:
    """Run a server that never stops sending."""
    server = EndlessTarget()
    yield from _run(server)


class StuckTarget(socketserver.ThreadingTCPServer):
    """Sends until the client takes no more, and reads nothing until it is asked to drain."""

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
        """Say whether the client takes no more."""
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
    yield from _run(StuckTarget())


def _run(server: socketserver.BaseServer) -> Iterator[socketserver.BaseServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
