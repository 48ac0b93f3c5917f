"""The daemons of two checkouts, measured alternately: the cost of a connection.

    PYTHONPATH=.:tests .venv/bin/python -m bench.exit_daemons CHECKOUT [rounds]

CHECKOUT has its compiled files (`make setup`); PROXYD_INTERPRETED=1 measures both interpreted.

This program is the clients, the agent and the target of each daemon. A daemon stands still while
this program acts, and runs until it waits for more: so it has the same work in each turn of its
loop, however busy the machine is. A ratio is the median of the rounds' ratios. It needs root, and
runs in a network namespace of its own.
"""

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from support.base.ports import free_port

from bench import usage
from bench.exit_ways import UNBOUND, WISH, ExitWay, exit_way
from bench.report import Samples, progress
from bench.servers import LOOPBACK, PATIENCE_SECONDS, ROOT, Server, started
from proxyctl.protocol.frames import (
    VERSION,
    Capacity,
    Dial,
    Dialled,
    DialOutcome,
    Frame,
    FrameReader,
    Hello,
    Over,
    Park,
    Ping,
    Pong,
    Preface,
    Tickets,
    Welcome,
    encode,
)

APART = "PROXYD_BENCH_APART"  # set in the namespace
ROUNDS = 8
BATCHES = 16
AT_ONCE = (8, 32)
ECHO_BYTES = 64
TURN_SECONDS = 5.0
BEFORE, AFTER = "before", "after"
DIRECT, THROUGH = "direct", "exit"
GREETING = b"\5\1\2"


class Client:
    """One client of the proxy: a handshake, and bytes to the target and back."""

    def __init__(self, server: Server, port: int, user: str) -> None:
        name, word = user.encode(), server.password.encode()
        password = bytes([1, len(name)]) + name + bytes([len(word)]) + word
        request = b"\5\1\0\1" + socket.inet_aton(LOOPBACK) + struct.pack("!H", port)
        self._messages = [GREETING, password, request, bytes(ECHO_BYTES)]
        self._sizes = [2, 2, 10, ECHO_BYTES]
        self.sock = socket.create_connection((server.host, server.port))
        self.sock.setblocking(False)
        self._say()

    @property
    def is_served(self) -> bool:
        """Whether its bytes are back."""
        return not self._sizes

    def act(self) -> None:
        """Take an answer, and send what follows."""
        if self._sizes and (got := _received(self.sock)) is not None:
            assert len(got) == self._sizes.pop(0), got
            assert len(got) == ECHO_BYTES or got[1] in {0, GREETING[2]}, got
            if self._sizes:
                self._say()

    def _say(self) -> None:
        self.sock.send(self._messages.pop(0))


class Agent:
    """The agent of the exit of one daemon."""

    def __init__(self, way: ExitWay) -> None:
        consent = json.loads((way.device / "exit.json").read_text())
        self._address = LOOPBACK, way.exits_port
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        control = socket.create_connection(self._address)
        # As asyncio does for the agent: otherwise an answer may wait 40 ms for an acknowledgement.
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._control = context.wrap_socket(control)
        self._control.setblocking(False)
        self._frames = FrameReader()
        self._attachment = self._wanted = 0
        self._tickets: list[tuple[int, bytes]] = []
        self._parked: dict[int, socket.socket] = {}
        self.carried: dict[int, socket.socket] = {}
        capacity = Capacity(0, 0, (), UNBOUND["dials_per_second"])
        hello = Hello(VERSION, consent["token"], "0", "bench", (), consent["terms"], "", capacity)
        self._control.send(encode(hello))

    @property
    def is_attached(self) -> bool:
        return self._attachment > 0

    def act(self) -> None:
        """Obey the daemon, and be the targets of the connections."""
        answers: list[Frame] = []
        with suppress(ssl.SSLWantReadError):
            while data := self._control.recv(65_536):
                for frame in self._frames.receive_data(data):
                    self._obey(frame, answers)
        for number, sock in tuple(self.carried.items()):
            if _echo(sock):
                del self.carried[number]
                answers.append(Over(number))
        if answers:
            self._control.send(b"".join(map(encode, answers)))
        while self._tickets and len(self._parked) < self._wanted:
            number, ticket = self._tickets.pop(0)
            self._parked[number] = sock = socket.create_connection(self._address)
            sock.send(Preface(self._attachment, number, ticket).encode())
            sock.setblocking(False)

    def _obey(self, frame: Frame, answers: list[Frame]) -> None:
        if isinstance(frame, Dial):
            self.carried[frame.number] = self._parked.pop(frame.number)
            answers.append(Dialled(frame.number, DialOutcome.CONNECTED, 100, None, 0))
        elif isinstance(frame, Tickets):
            self._tickets += enumerate(frame.tickets, frame.first)
        elif isinstance(frame, Park):
            self._wanted = frame.connections
        elif isinstance(frame, Ping):
            answers.append(Pong(frame.payload))
        elif isinstance(frame, Welcome):
            self._attachment = frame.attachment


class Driver:
    """The other ends of one daemon."""

    def __init__(self, server: Server, way: ExitWay, port: int, listener: socket.socket) -> None:
        assert server.process is not None
        self._server = server
        self._port = port
        self._listener = listener
        self._targets: list[socket.socket] = []
        [self._daemon] = server.daemon()
        self._agent = Agent(way)
        self._clients: list[Client] = []
        self._until(lambda: self._agent.is_attached)

    def cost(self, way: str, at_once: int, batches: int = BATCHES) -> float:
        """Return the µs of processor time that one connection costs the daemon."""
        before = usage.cpu_seconds([self._daemon])
        for _ in range(batches):
            self._batch(way, at_once)
        return (usage.cpu_seconds([self._daemon]) - before) * 1e6 / (batches * at_once)

    def _batch(self, way: str, at_once: int) -> None:
        server = self._server
        user = server.user if way == THROUGH else server.user.removesuffix(WISH)
        self._clients = [Client(server, self._port, user) for _ in range(at_once)]
        self._until(lambda: all(each.is_served for each in self._clients))
        for each in self._clients:
            each.sock.close()
        self._until(lambda: not self._agent.carried and not self._targets)

    def _until(self, is_over) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._turn()
            self._agent.act()
            with suppress(BlockingIOError):
                while True:
                    accepted, _ = self._listener.accept()
                    accepted.setblocking(False)
                    self._targets.append(accepted)
            self._targets = [each for each in self._targets if not _echo(each)]
            for each in self._clients:
                each.act()
            if is_over():
                return
            assert time.monotonic() < deadline, "the daemon is stuck"

    def _turn(self) -> None:
        """Let the daemon run until it waits for more."""
        os.kill(self._daemon, signal.SIGCONT)
        deadline = time.monotonic() + TURN_SECONDS
        while _state(self._daemon) != "S" and time.monotonic() < deadline:
            time.sleep(0.0002)
        os.kill(self._daemon, signal.SIGSTOP)

    def close(self) -> None:
        os.kill(self._daemon, signal.SIGCONT)


def _received(sock: socket.socket) -> bytes | None:
    """Return the bytes that have come, empty at the end of the stream; None if there are none."""
    try:
        return sock.recv(4096)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""


def _echo(sock: socket.socket) -> bool:
    """Send back the bytes that have come. Return whether the other end has closed the socket."""
    got = _received(sock)
    if got:
        sock.send(got)
    elif got is not None:
        sock.close()
    return got == b""


def _state(pid: int) -> str:
    """Return whether the main thread of a process runs (R), waits (S) or is stopped (T)."""
    return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def main(checkout: Path, rounds: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        ways = {
            each: replace(exit_way(folder / each, each, [port]), checkout=place)
            for each, place in ((BEFORE, checkout), (AFTER, ROOT))
        }
        report(measure(ways, port, rounds))


def measure(ways: dict[str, ExitWay], port: int, rounds: int) -> Samples:
    """Measure the daemons of both ways in turn."""
    samples = Samples()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((LOOPBACK, port), backlog=1024))
        listener.setblocking(False)
        drivers = {}
        for name, way in ways.items():
            server = stack.enter_context(started(replace(way, has_agent=False).kind_at()))
            drivers[name] = Driver(server, way, port, listener)
            stack.callback(drivers[name].close)
        for number in range(-1, rounds):
            progress(f"round {number + 1}")
            for at_once in AT_ONCE:
                for wish in (DIRECT, THROUGH):
                    for name in (BEFORE, AFTER) if number % 2 else (AFTER, BEFORE):
                        cost = drivers[name].cost(wish, at_once)
                        if number >= 0:  # or it was a round to warm up
                            samples.add(f"{at_once} at once, {wish}: CPU µs", name, cost)
    return samples


def report(samples: Samples) -> None:
    """Print the medians, and the ratios."""
    for measure in samples.measures():
        before, after = (samples.median(measure, each) for each in (BEFORE, AFTER))
        ratio = samples.ratio(measure, AFTER, BEFORE)
        print(f"{measure:32} {before:10.4g} {after:10.4g} {ratio:8.3f}x", flush=True)
    for at_once in AT_ONCE:
        for name in (BEFORE, AFTER):
            both = Samples()
            for way in (DIRECT, THROUGH):
                for value in samples.values(f"{at_once} at once, {way}: CPU µs", name):
                    both.add("", way, value)
            ratio = both.ratio("", DIRECT, THROUGH)
            print(f"{at_once} at once, {name}: CPU of direct, of exit's: {ratio:.3f}", flush=True)


if __name__ == "__main__":
    if APART not in os.environ:
        command = ["unshare", "--net", sys.executable, "-m", "bench.exit_daemons", *sys.argv[1:]]
        os.execvpe(command[0], command, {**os.environ, APART: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
