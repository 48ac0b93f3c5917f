"""Wires between daemons and servers that a test can freeze: connected, and silent."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit


class Wire:
    """Passes the bytes of each connection on; while frozen it takes and passes none.

    Args:
        connect: connects to the server.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = int(self._listener.getsockname()[1])
        self._flows = threading.Event()
        self._flows.set()
        self._closing = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def freeze(self) -> None:
        """Pass nothing on, in either direction; connections stay open."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass on the waiting and the arriving bytes."""
        self._flows.set()

    def cut(self) -> None:
        """Cut every connection."""
        for sock in tuple(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut every connection, and accept no more."""
        self._closing = True
        self._flows.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def may_pass(self, data: bytes) -> bool:
        """Return whether a client's bytes may be answered; else the connection ends with them."""
        return True

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                client.close()  # as a server that does not run refuses
                continue
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink, source is client))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                if is_client and not self.may_pass(data):
                    source.shutdown(socket.SHUT_WR)  # no answer passes any more
                    source.shutdown(socket.SHUT_RD)
                    sink.sendall(data)
                    break
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class Forwarder(Wire):
    """A wire to the PostgreSQL server of a URL; `url` leads over the wire."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        folder = parse_qs(parts.query).get("host", [""])[0]
        port = parts.port or 5432

        def connect() -> socket.socket:
            if not folder:
                return socket.create_connection((parts.hostname or "127.0.0.1", port))
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(f"{folder}/.s.PGSQL.{port}")
            return sock

        super().__init__(connect)
        user = f"{quote(parts.username or '')}:{quote(parts.password or '')}"
        self.url = f"postgresql://{user}@127.0.0.1:{self.port}{parts.path}"

    @classmethod
    @contextmanager
    def running(cls, url: str) -> Iterator[Self]:
        """Forward until the test is over."""
        forwarder = cls(url)
        try:
            yield forwarder
        finally:
            forwarder.close()
