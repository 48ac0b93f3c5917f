"""A wire between a daemon and its database that a test can freeze: connected, and silent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit


class Forwarder:
    """Passes bytes on to a PostgreSQL server; while frozen it takes and passes none."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        folder = query.get("host", [""])[0]
        port = parts.port or 5432
        self._server = (parts.hostname or "127.0.0.1", port)
        self._path = f"{folder}/.s.PGSQL.{port}" if folder else ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        user = f"{quote(parts.username or '')}:{quote(parts.password or '')}"
        self.url = f"postgresql://{user}@127.0.0.1:{self._listener.getsockname()[1]}{parts.path}"
        self._flows = threading.Event()
        self._flows.set()
        self._closing = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @classmethod
    @contextmanager
    def running(cls, url: str) -> Iterator[Self]:
        """Forward until the test is over."""
        forwarder = cls(url)
        try:
            yield forwarder
        finally:
            forwarder.close()

    def freeze(self) -> None:
        """Pass nothing on, and tell nobody."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass on what has been waiting, and what comes."""
        self._flows.set()

    def close(self) -> None:
        """Cut everything."""
        self._closing = True
        self._flows.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def _connect(self) -> socket.socket:
        if not self._path:
            return socket.create_connection(self._server)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self._path)
        return sock

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
