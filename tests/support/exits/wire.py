"""A wire between exits and their daemon that counts, by key, the bytes handed to an exit.

It outlives both: all bytes that a killed daemon had sent have arrived here or nowhere.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from support.base.waiting import until_true
from support.targets.keyed import CHUNK_BYTES, Tally

RESET = struct.pack("ii", 1, 0)
WORK = b"W"


class ExitWire:
    """Passes bytes on, and streams' ends.

    Each door is a port for one exit, which the daemon sees at an address of its own. `daemon_port`
    is where the daemon takes exits in; 0 while no daemon runs. The death of an exit is passed on as
    an end, and the bytes that the daemon still sends are counted. If it `passes_resets` the death
    is passed on as a reset, and the bytes then under way have left the daemon and are counted
    nowhere. `handed_over` are all bytes that were passed on for buyers, under every key.

    Args:
        tally: counts the bytes that the daemon hands to exits; the key is as `KeyedTarget` wants
            it.
        doors: how many exits there are.
    """

    def __init__(self, tally: Tally, doors: int) -> None:
        self.tally = tally
        self.daemon_port = 0
        self.passes_resets = False
        self.handed_over = 0
        self._open = 0
        self._lock = threading.Lock()
        self._doors = [socket.create_server(("127.0.0.1", 0), backlog=256) for _ in range(doors)]
        self.ports: list[int] = [each.getsockname()[1] for each in self._doors]
        self._threads = [
            threading.Thread(target=self._accept, args=(door, f"127.0.1.{number}"))
            for number, door in enumerate(self._doors, 1)
        ]
        for thread in self._threads:
            thread.start()

    def wait_quiet(self) -> None:
        """Wait until all bytes that were passed on have been read; no daemon runs now."""
        self.daemon_port = 0
        until_true(lambda: self._open == 0, "the wire has seen every end")

    def close(self) -> None:
        """Take nothing more."""
        for door in self._doors:
            with suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)
            door.close()
        for thread in self._threads:
            thread.join()

    def _accept(self, door: socket.socket, address: str) -> None:
        while True:
            try:
                exit_side, _ = door.accept()
            except OSError:
                return
            with self._lock:
                self._open += 1
            threading.Thread(target=self._carry, args=(exit_side, address), daemon=True).start()

    def _carry(self, exit_side: socket.socket, address: str) -> None:
        try:
            with exit_side:
                port = self.daemon_port
                if port:
                    with suppress(OSError):
                        self._join(exit_side, port, address)
        finally:
            with self._lock:
                self._open -= 1

    def _join(self, exit_side: socket.socket, port: int, address: str) -> None:
        first = exit_side.recv(1, socket.MSG_PEEK)
        with socket.create_connection(("127.0.0.1", port), source_address=(address, 0)) as daemon:
            counts = _Counts(self.tally) if first == WORK else None
            up = threading.Thread(target=self._pass_up, args=(exit_side, daemon))
            up.start()
            self._pass_down(daemon, exit_side, counts)
            up.join()
            if counts is not None:
                counts.end()

    def _pass_up(self, exit_side: socket.socket, daemon: socket.socket) -> None:
        try:
            while data := exit_side.recv(CHUNK_BYTES):
                try:
                    daemon.sendall(data)
                except (
                    OSError
                ):  # it is gone: the other thread may be stuck in bytes that the daemon had sent
                    exit_side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    exit_side.shutdown(socket.SHUT_RDWR)
        except OSError:
            if self.passes_resets:
                with suppress(OSError):
                    daemon.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    daemon.shutdown(socket.SHUT_RD)  # the other thread closes it
        with suppress(OSError):
            daemon.shutdown(socket.SHUT_WR)

    def _pass_down(
        self, daemon: socket.socket, exit_side: socket.socket, counts: "_Counts | None"
    ) -> None:
        """Pass on the bytes of the daemon; read it to its end, even if the exit is gone."""
        is_there = True
        try:
            while data := daemon.recv(CHUNK_BYTES):
                if counts is not None:
                    counts.add(data)
                    with self._lock:
                        self.handed_over += len(data)
                if is_there:
                    try:
                        exit_side.sendall(data)
                    except OSError:
                        is_there = False
        except OSError:
            with suppress(OSError):  # it learns that the stream is cut, not finished
                exit_side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                exit_side.shutdown(socket.SHUT_RD)
        else:
            with suppress(OSError):
                exit_side.shutdown(socket.SHUT_WR)


class _Counts:
    """Counts of one connection, whose owner its first line names."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._key = ""
        self._line = b""

    def add(self, data: bytes) -> None:
        if self._key:
            self._tally.add(self._key, len(data))
            return
        self._line += data
        key, space, _ = self._line.partition(b" ")
        if space:
            self._key = key.decode()[::-1]
            self._tally.add(self._key, len(self._line))

    def end(self) -> None:
        if not self._key and self._line:
            self._tally.add_cut(self._line.decode())


@contextmanager
def wired(tally: Tally, doors: int) -> Iterator[ExitWire]:
    """Run a wire until the test is over."""
    wire = ExitWire(tally, doors)
    try:
        yield wire
    finally:
        wire.close()
