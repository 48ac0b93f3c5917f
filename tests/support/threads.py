"""Targets for clients that have no event loop: servers in threads, counting what they see."""

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


def _run(server: socketserver.BaseServer) -> Iterator[socketserver.BaseServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
