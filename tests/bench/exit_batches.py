"""The cost of a connection at the agent of an exit, without daemon, client and the machine's load.

The daemon's side is a program that orders connections in batches and waits for each batch, so the
agent has the same work in each turn of its loop, however busy the machine is.

`python -m bench.exit_batches ROUNDS` prints the cost in µs, one line for each round, for the agent
of this checkout. Its owner has opened no network (`--allow`), and the target is behind the default
route, as in a home. It needs root, and runs in network namespaces of its own.
"""

import hashlib
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from ipaddress import ip_address
from pathlib import Path

from support.base.ports import free_port
from support.targets.tls import make_certificate

from bench import usage
from bench.exit_ways import UNBOUND
from bench.native import compiled
from bench.servers import LOOPBACK, PATIENCE_SECONDS, ROOT
from proxyctl.protocol.frames import (
    PREFACE,
    TICKET_BYTES,
    Dial,
    Dialled,
    DialOutcome,
    Frame,
    FrameReader,
    Hello,
    Over,
    Park,
    Preface,
    ServiceLimits,
    Tickets,
    Welcome,
    encode,
)

AT_ONCE = 32
BATCHES = 60
ECHO_BYTES = 64
FAR = "45.33.32.156"  # a public address: nothing is sent outside of the namespaces
PUBLIC = "93.184.220.2"
TICKETS_AHEAD = 64
APART = "PROXYD_BENCH_APART"  # set in the namespace

_FURNITURE = """\
ip link add near0 type veth peer name far0 netns {pid}
ip address add 192.168.77.2/24 dev near0
ip link set near0 up
nsenter -t {pid} -n ip link set lo up
nsenter -t {pid} -n ip address add {far}/32 dev lo
nsenter -t {pid} -n ip address add 192.168.77.1/24 dev far0
nsenter -t {pid} -n ip link set far0 up
ip route add default via 192.168.77.1
"""


class Driver:
    """The daemon's side of one agent.

    Args:
        client: the folder of the agent's program.
        allows: whether the agent opens the target's network to strangers.
        limits: of the device.
    """

    def __init__(
        self, client: Path, folder: Path, target: tuple[str, int], *, allows: bool, limits: dict
    ) -> None:
        self._target = ip_address(target[0]), target[1]
        folder.mkdir()
        certificate = make_certificate(folder)
        der = ssl.PEM_cert_to_DER_cert(certificate.path.read_text())
        self._listener = socket.create_server((LOOPBACK, 0), backlog=1024)
        consent = {
            "api": "https://market.example",
            "host": LOOPBACK,
            "port": self._listener.getsockname()[1],
            "pin": hashlib.sha256(der).hexdigest(),
            "token": "a token",
            "terms": "0" * 64,
            "agreed_at": "2026-01-01T00:00:00+00:00",
            "limits": {"ports": [target[1]], **limits},
        }
        record = folder / "exit.json"
        record.touch(0o600)
        record.write_text(json.dumps(consent))
        opened = ("--allow", f"{target[0]}/32") if allows else ()
        self._agent = subprocess.Popen(
            [*(sys.executable, "-m", "proxyctl", "exit", "run"), "--folder", folder, *opened],
            env={**os.environ, "PYTHONPATH": os.fspath(client), "PYTHONDONTWRITEBYTECODE": "1"},
            stderr=subprocess.DEVNULL,
        )
        self._frames = FrameReader()
        self._tickets: dict[int, bytes] = {}
        self._next = 1
        self._parked: dict[int, socket.socket] = {}
        self._control = self._attach(certificate.server)
        self._tend()

    def close(self) -> None:
        self._agent.kill()
        self._agent.wait()
        for sock in (*self._parked.values(), self._control, self._listener):
            sock.close()

    @property
    def memory_bytes(self) -> int:
        return usage.memory_bytes([self._agent.pid])

    def cost(self, batches: int = BATCHES) -> float:
        """Return the µs of processor time that one connection costs the agent."""
        before = usage.cpu_seconds([self._agent.pid])
        for _ in range(batches):
            self._batch()
        return (usage.cpu_seconds([self._agent.pid]) - before) * 1e6 / (batches * AT_ONCE)

    def _attach(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        self._listener.settimeout(PATIENCE_SECONDS)
        accepted, _ = self._listener.accept()
        control = context.wrap_socket(accepted, server_side=True)
        self._control = control
        assert isinstance(self._receive()[0], Hello)
        limits = ServiceLimits(0, 0, 0, ())
        self._send(Welcome(1, PUBLIC, "xx", "", 0, limits, 30))
        return control

    def _send(self, *frames: Frame) -> None:
        self._control.sendall(b"".join(map(encode, frames)))

    def _receive(self) -> list[Frame]:
        return list(self._frames.receive_data(self._control.recv(65_536)))

    def _tend(self) -> None:
        """Wait until the connections of the next batch are there."""
        frames: list[Frame] = []
        while len(self._tickets) < TICKETS_AHEAD:
            tickets = tuple(secrets.token_bytes(TICKET_BYTES) for _ in range(TICKETS_AHEAD))
            self._tickets.update(enumerate(tickets, self._next))
            frames.append(Tickets(self._next, tickets))
            self._next += len(tickets)
        self._send(*frames, Park(AT_ONCE))
        while len(self._parked) < AT_ONCE:
            sock, _ = self._listener.accept()
            preface = Preface.decode(sock.recv(PREFACE.size, socket.MSG_WAITALL))
            assert self._tickets.pop(preface.number) == preface.ticket
            self._parked[preface.number] = sock

    def _batch(self) -> None:
        """Order a target for each waiting connection, exchange bytes once, and close it."""
        taken, self._parked = self._parked, {}
        self._send(*(Dial(number, (self._target[0],), self._target[1]) for number in taken))
        answered: set[int] = set()
        while len(answered) < len(taken):
            for frame in self._receive():
                if isinstance(frame, Dialled):
                    assert frame.outcome is DialOutcome.CONNECTED, frame
                    answered.add(frame.number)
        for sock in taken.values():
            sock.sendall(bytes(ECHO_BYTES))
        for sock in taken.values():
            assert len(sock.recv(ECHO_BYTES, socket.MSG_WAITALL)) == ECHO_BYTES
            sock.close()
        over: set[int] = set()
        while len(over) < len(taken):
            over.update(each.number for each in self._receive() if isinstance(each, Over))
        self._tend()


@contextmanager
def target(folder: Path, *, is_far: bool) -> Iterator[tuple[str, int]]:
    """Run a target here, or in a namespace that only the default route leads to."""
    port = free_port()
    apart = ("unshare", "--net") if is_far else ()
    running = subprocess.Popen([*apart, compiled("echo", folder), str(port)])
    try:
        if is_far:
            time.sleep(0.2)  # `unshare` has no way to say that the namespace is there
            for line in _FURNITURE.format(pid=running.pid, far=FAR).splitlines():
                subprocess.run(line.split(), check=True)
        yield FAR if is_far else LOOPBACK, port
    finally:
        running.kill()
        running.wait()


def drivers(
    stack: ExitStack, clients: dict[str, Path], folder: Path, *, is_far: bool, limits: dict
) -> dict[str, Driver]:
    """Start an agent of each program, with a target that its owner has opened or that is far."""
    folder.mkdir()
    place = stack.enter_context(target(folder, is_far=is_far))
    return {
        name: stack.enter_context(
            closing(Driver(client, folder / name, place, allows=not is_far, limits=limits))
        )
        for name, client in clients.items()
    }


def main(rounds: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, clients = Path(name) / "home", {"agent": ROOT / "client"}
        driver = drivers(stack, clients, folder, is_far=True, limits=UNBOUND)["agent"]
        driver.cost()
        for _ in range(rounds):
            print(driver.cost(), flush=True)


if __name__ == "__main__":
    if APART not in os.environ:
        command = ["unshare", "--net", sys.executable, "-m", "bench.exit_batches", *sys.argv[1:]]
        os.execvpe(command[0], command, {**os.environ, APART: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    main(int(sys.argv[1]))
