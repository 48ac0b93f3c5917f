"""The agent of exits as processes of their own, as owners run it, beside a daemon that is one."""

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxyd.exits.attached.certificate import own_certificate
from support.base.waiting import PATIENCE_SECONDS, until_true
from support.daemons import forked_client, process
from support.daemons.process import Process
from support.exits.wire import ExitWire

OPEN = ("--allow", "127.0.0.0/8", "--allow", "::1/128")
UNBOUND = ("--bytes-per-day", "0", "--connections", "0")
LISTENS = re.compile(r"exits on \S+:(\d+)")
# An exit that was refused this often waits for up to eight seconds before it comes again.
LOSSES_MAX = 2


class ExitAgent:
    """`proxyctl exit run`, and its output; the files of the device outlive it.

    Args:
        folder: of the device.
        door: the port where it attaches.
    """

    def __init__(self, folder: Path, door: int) -> None:
        self.folder = folder
        self.door = door
        self.losses = 0
        self._process: forked_client.ClientProcess | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def agree(self, daemon: Process, token: str) -> None:
        """Consent, in the account and by the command at the device."""
        body = {"name": "box", "device_type": "mini_pc"}
        status, made = daemon.call("POST", "/api/worker/token/create", body, token)
        assert status == 200, made
        _, terms = daemon.call("GET", "/api/exits/terms")
        agreed = {"token_id": made["token_id"], "terms_hash": terms["terms_hash"]}
        status, answer = daemon.call("POST", "/api/worker/exit/consent", agreed, token)
        assert status == 200, answer
        self.folder.mkdir(mode=0o700)
        secret = self.folder / "token"
        secret.write_text(made["token"])
        done = forked_client.run(
            self._words("consent", "--api", daemon.api, "--token-file", str(secret), *UNBOUND),
            self._environment(),
            typed="yes\n",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        record = self.folder / "exit.json"
        fields: dict[str, Any] = json.loads(record.read_text())
        record.write_text(json.dumps({**fields, "port": self.door}))

    def start(self) -> None:
        """Start the exit again."""
        assert self._process is None
        self.losses = 0
        with (self.folder / "log").open("a") as log, Path(os.devnull).open("rb") as nothing:
            standard = [nothing.fileno(), log.fileno(), log.fileno()]
            self._process = forked_client.start(
                self._words("run", *OPEN), self._environment(), standard
            )

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it by a signal."""
        if self._process is None:
            return
        # One that ends by itself was refused.
        assert self._process.poll() is None, (self.folder / "log").read_text()
        self._process.send_signal(number)
        self._process.wait(timeout=PATIENCE_SECONDS)
        self._process = None

    def _words(self, command: str, *options: str) -> list[str]:
        return ["exit", command, "--folder", str(self.folder), *options]

    def _environment(self) -> dict[str, str]:
        return {**process.environment(""), "PYTHONPATH": os.fspath(process.ROOT / "client")}


class ExitAgents:
    """All exits of a daemon that is killed repeatedly, and their wire.

    Args:
        folder: where their files are.
        wire: carries all that they say.
        ports: of targets.
    """

    def __init__(self, folder: Path, wire: ExitWire, ports: Sequence[int]) -> None:
        self.wire = wire
        self.agents = [ExitAgent(folder / f"exit-{port}", port) for port in wire.ports]
        certificate = str(own_certificate(folder / "certificate", 1_700_000_000))
        self.settings = {
            "PROXYD_EXITS__HOST": "127.0.0.1",
            "PROXYD_EXITS__PORT": "0",
            "PROXYD_EXITS__PUBLIC_HOST": "127.0.0.1",
            "PROXYD_EXITS__PUBLIC_PORT": str(wire.ports[0]),
            "PROXYD_EXITS__TLS_CERT": certificate,
            "PROXYD_EXITS__TLS_KEY": certificate,
            "PROXYD_EXITS__PORTS": json.dumps(ports),
            "PROXYD_EXITS__CONNECTIONS": "1000",
            "PROXYD_EXITS__BYTES_PER_DAY": "0",
            "PROXYD_GEO__KNOWN": '{"127.0.0.0/8": "xx"}',
        }

    def serve(self, daemon: Process) -> None:
        """Connect the exits to a daemon; start killed exits, and wait for one exit."""
        listens = LISTENS.search(daemon.output)
        assert listens is not None, daemon.output
        self.wire.daemon_port = int(listens[1])
        self.start()
        self.wait_attached(daemon)

    def wait_attached(self, daemon: Process) -> None:
        """Wait until one of them carries connections."""
        until_true(lambda: self._is_any_attached(daemon), "an exit is attached")

    def start(self) -> None:
        """Start killed exits, and restart exits that would wait for long."""
        for agent in self.agents:
            if agent.losses >= LOSSES_MAX:
                agent.kill()
            if not agent.is_running:
                agent.start()

    def lose(self) -> None:
        """Wait until nothing of a daemon that was killed is on its way."""
        self.wire.wait_quiet()
        for agent in self.agents:
            agent.losses += 1

    def _is_any_attached(self, daemon: Process) -> bool:
        _, answer = daemon.call("GET", "/api/exits/coverage")
        return bool(answer["countries"])


@contextmanager
def exit_agents(folder: Path, wire: ExitWire, ports: Sequence[int]) -> Iterator[ExitAgents]:
    """Kill the exits that still run when the test is over."""
    agents = ExitAgents(folder, wire, ports)
    try:
        yield agents
    finally:
        for agent in agents.agents:
            agent.kill()
