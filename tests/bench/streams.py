"""The ends of a bulk transfer, as programs of their own, which do not touch the payload.

The source sends the same pages again and again with sendfile; the sink has the kernel discard the
bytes (MSG_TRUNC, tcp(7)), and adds their number to a counter in memory that it shares with the
measuring process.
"""

import json
import mmap
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.base.ports import free_port

from bench.servers import HERE, ROOT, Place, Server

FILE_BYTES = 4 * 1024 * 1024
CALL_BYTES = 1024 * 1024
CALLS_PER_TURN = 4


class Counter:
    """A number of bytes in shared memory; one process adds to it."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("counter", 0) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, mmap.PAGESIZE)
        self._cells = memoryview(mmap.mmap(self.fd, mmap.PAGESIZE)).cast("q")

    @property
    def value(self) -> int:
        return self._cells[0]

    def add(self, size: int) -> None:
        self._cells[0] += size


class End:
    """Either end of streams: accepts them, or is given them, and moves bytes for ever."""

    def __init__(self, counter: Counter | None) -> None:
        self._counter = counter
        self._selector = selectors.EpollSelector()
        self._buffer = bytearray(CALL_BYTES)
        self._file = os.memfd_create("payload")
        os.write(self._file, bytes(range(256)) * (FILE_BYTES // 256))

    def listen(self, host: str, port: int) -> None:
        listener = socket.create_server((host, port), backlog=1024)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def add(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if self._counter is None:
            self._selector.register(sock, selectors.EVENT_WRITE, self._send)
        else:
            self._selector.register(sock, selectors.EVENT_READ, self._receive)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                try:
                    key.data(key.fileobj)
                except BlockingIOError:
                    continue
                except OSError:
                    self._close(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        self.add(listener.accept()[0])

    def _send(self, sock: socket.socket) -> None:
        for _ in range(CALLS_PER_TURN):
            os.sendfile(sock.fileno(), self._file, 0, CALL_BYTES)

    def _receive(self, sock: socket.socket) -> None:
        assert self._counter is not None
        size = sock.recv_into(self._buffer, CALL_BYTES, socket.MSG_TRUNC)
        self._counter.add(size)
        if not size:
            self._close(sock)

    def _close(self, sock: Any) -> None:
        self._selector.unregister(sock)
        sock.close()


class Target:
    """A source and a sink that listen in some place."""

    def __init__(self, place: Place, ports: tuple[int, int] | None) -> None:
        self.host = place.host
        self.source_port, self.sink_port = ports or (free_port(), free_port())
        self.received = Counter()
        source: dict[str, object] = {"listen": [place.host, self.source_port]}
        sink = {"listen": [place.host, self.sink_port], "counter": self.received.fd}
        self._processes = [_run(place, source), _run(place, sink)]

    def close(self) -> None:
        for each in self._processes:
            _end(each)
        os.close(self.received.fd)


class Client:
    """The other end of streams, which go through a server; `counter` is the sink's, either way."""

    def __init__(
        self, server: Server, end: Target, streams: int, *, up: bool, place: Place
    ) -> None:
        self._own = None if up else Counter()
        self.counter = self._own or end.received
        port = end.sink_port if up else end.source_port
        order: dict[str, object] = {"connect": [end.host, port], "streams": streams}
        order["server"] = [server.host, server.port, server.user, server.password]
        if self._own is not None:
            order["counter"] = self._own.fd
        self._process = _run(place, order)

    def pause(self) -> None:
        """Move nothing for a while."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        _end(self._process)
        if self._own is not None:
            os.close(self._own.fd)


@contextmanager
def target(place: Place = HERE, ports: tuple[int, int] | None = None) -> Iterator[Target]:
    """Run a source and a sink, on two ports if these are given."""
    running = Target(place, ports)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def client(
    server: Server, end: Target, streams: int, *, up: bool, place: Place = HERE
) -> Iterator[Client]:
    """Run `streams` streams through a server."""
    running = Client(server, end, streams, up=up, place=place)
    try:
        yield running
    finally:
        running.close()


def _run(place: Place, order: dict[str, object]) -> "subprocess.Popen[bytes]":
    """Start one end, and wait until it listens or is connected."""
    fd = order.get("counter")
    running = subprocess.Popen(
        [*place.prefix, sys.executable, "-m", "bench.streams", json.dumps(order)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        pass_fds=[fd] if isinstance(fd, int) else [],
    )
    assert running.stdout is not None
    if running.stdout.readline() != b"ready\n":
        _end(running)
        raise RuntimeError(f"an end of the streams failed: {order}")
    return running


def _end(running: "subprocess.Popen[bytes]") -> None:
    running.kill()
    running.wait()
    assert running.stdout is not None
    running.stdout.close()


def main(order: dict[str, Any]) -> None:
    end = End(Counter(order["counter"]) if "counter" in order else None)
    if "listen" in order:
        end.listen(*order["listen"])
    else:
        server = Server("", *order["server"])
        for _ in range(order["streams"]):
            end.add(server.connect(*order["connect"]))
    print("ready", flush=True)
    end.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
