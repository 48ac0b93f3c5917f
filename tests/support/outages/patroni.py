"""PostgreSQL on three machines, with Patroni and etcd, as docs/how-to/postgresql.md sets it up.

Each machine has namespaces of its own for network, files and processes, and the addresses of the
configuration that the repository shows. A test changes in that configuration the name, the
machine's own address, the strict mode if it is wanted, and the watchdog: a named pipe stands in
for the device, and a thread for the hardware that resets the machine. Everything is gone with the
first process of each machine.

    db1 10.0.0.11 ---+
    db2 10.0.0.12 ---+--- the test's own namespace, 10.0.0.21: daemons and their clients
    db3 10.0.0.13 ---+
"""

import json
import os
import pwd
import re
import select
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from support.daemons.process import ROOT

CONFIG = ROOT / "config" / "patroni.example.yml"
ETCD = ROOT / "config" / "etcd.example"
ADDRESSES = {"db1": "10.0.0.11", "db2": "10.0.0.12", "db3": "10.0.0.13"}
CLIENTS = "10.0.0.21"
BRIDGE = "machines"
URL = f"postgresql://proxyd:secret@{','.join(ADDRESSES.values())}/proxyd"
TTL_SECONDS = 20
START_SECONDS = 120.0
# Files of a machine's own, empty at its start, and the owner of each.
FOLDERS = {
    "/var/lib/postgresql": "postgres",
    "/run/postgresql": "postgres",
    "/var/lib/etcd": "etcd",
    "/etc/patroni": "postgres",
}
_AS_POSTGRES = ("setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups")
# Without variables of the tests: a machine reads its own files.
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class Watchdog:
    """The hardware that resets a machine which Patroni has not fed in time.

    Args:
        pipe: stands in for the device.
        reset: resets the machine.
    """

    def __init__(self, pipe: Path, reset: Callable[[], None]) -> None:
        os.mkfifo(pipe)
        pipe.chmod(0o666)
        # Open for reading and writing: then it never ends, also when Patroni closes it.
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self._reset = reset
        self._timeout = 0.0
        self._deadline: float | None = None
        self._is_over = threading.Event()
        self.resets = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def disarm(self) -> None:
        """Stop the timer: the machine is switched off."""
        self._deadline = None

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        self._thread.join()
        os.close(self._pipe)

    def _watch(self) -> None:
        while not self._is_over.is_set():
            readable, _, _ = select.select([self._pipe], [], [], 0.1)
            if readable:
                self._take(os.read(self._pipe, 4096).decode())
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._deadline = None
                self.resets += 1
                self._reset()

    def _take(self, text: str) -> None:
        for command in re.findall(r"Ctimeout=(\d+)\n|([V1])", text):
            seconds, letter = command
            if seconds:
                self._timeout = float(seconds)
            self._deadline = None if letter == "V" else time.monotonic() + self._timeout


class Machine:
    """One machine with etcd, Patroni and PostgreSQL.

    Args:
        name: its name in the configuration.
        folder: where its output and its watchdog are.
        is_strict: whether a commit needs a standby in any case.
    """

    def __init__(self, name: str, folder: Path, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self.name = name
        self.address = ADDRESSES[name]
        self._port = f"to-{name}"
        self._log = (folder / f"{name}.log").open("wb")
        self.log_path = folder / f"{name}.log"
        mounts = "".join(
            f"mount -t tmpfs -o mode=0755 tmpfs {each}; chown {owner}: {each}; "
            for each, owner in FOLDERS.items()
        )
        self._holder = subprocess.Popen(
            [
                *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", "/bin/sh", "-euc"),
                f"ip link set lo up; {mounts} echo made; while :; do sleep 3600; done",
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_ENVIRONMENT,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"made\n", self.log_path.read_text()
        [init] = psutil.Process(self._holder.pid).children()
        self._init = init.pid
        self._pids = Path(f"/proc/{self._init}/ns/pid").readlink()
        self._started: list[subprocess.Popen[bytes]] = []
        self._connect()
        self.watchdog = Watchdog(folder / f"{name}.watchdog", self.kill)
        self._install(folder / f"{name}.watchdog")

    # --- its services ----------------------------------------------------------------------------

    def start_etcd(self) -> None:
        """Start etcd, as the service of Debian does."""
        settings = dict(
            line.split("=", 1)
            for line in self._own(ETCD.read_text()).splitlines()
            if line.startswith("ETCD_")
        )
        as_etcd = ("setpriv", "--reuid", "etcd", "--regid", "etcd", "--clear-groups")
        self._start([*as_etcd, "etcd", "--log-level", "warn"], settings)

    def kill_etcd(self) -> None:
        """Kill etcd."""
        self._signal(signal.SIGKILL, "etcd")

    def start(self) -> None:
        """Start Patroni, as the service of Debian does."""
        self._start([*_AS_POSTGRES, "patroni", "/etc/patroni/config.yml"], {"HOME": "/tmp"})

    def kill(self) -> None:
        """Kill Patroni and PostgreSQL; the kernel closes their connections."""
        self._signal(signal.SIGKILL)
        self.watchdog.disarm()

    def freeze(self) -> None:
        """Stop Patroni and PostgreSQL, as a machine that stands still."""
        self._signal(signal.SIGSTOP)

    def is_running(self) -> bool:
        """Return whether a process of Patroni or PostgreSQL runs."""
        return bool(self._processes())

    # --- its network -----------------------------------------------------------------------------

    def cut_off(self) -> None:
        """Lose all packets from it and to it."""
        _run("ip", "link", "set", "dev", self._port, "down")

    def cut_from(self, addresses: Sequence[str]) -> None:
        """Lose all packets between it and some addresses."""
        for each in addresses:
            self.run("iptables", "-A", "INPUT", "-s", each, "-j", "DROP")
            self.run("iptables", "-A", "OUTPUT", "-d", each, "-j", "DROP")

    def reconnect(self) -> None:
        """Repair its network."""
        _run("ip", "link", "set", "dev", self._port, "up")
        self.run("iptables", "-F")

    # --- its answers -----------------------------------------------------------------------------

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask Patroni's own API."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}:8008{path}", data=data)
        try:
            with urllib.request.urlopen(request, timeout=5 if data is None else 60) as answer:
                return answer.status, _json(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _json(error)
        except (OSError, ValueError):
            return 0, None

    def run(self, *command: str, stdin: str = "") -> str:
        """Run a command there to its end, and return its output."""
        return _run(*self._enter(), *command, stdin=stdin)

    def sql(self, statements: str, database: str = "postgres") -> str:
        """Run statements there as the superuser."""
        psql = ("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-h", "/var/run/postgresql")
        return self.run(*_AS_POSTGRES, *psql, "-d", database, stdin=statements)

    def close(self) -> None:
        """End everything that runs there, and the machine."""
        self.watchdog.close()
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()
        for each in self._started:
            each.kill()  # nsenter stops itself when the program that it runs is stopped
            each.wait()
        self._log.close()

    def _connect(self) -> None:
        add = ("type", "veth", "peer", "name", "eth0", "netns", str(self._init))
        _run("ip", "link", "add", "name", self._port, *add)
        _run("ip", "link", "set", "dev", self._port, "master", BRIDGE, "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "dev", "eth0", "up")

    def _install(self, pipe: Path) -> None:
        text = self._own(CONFIG.read_text())
        text = text.replace("/dev/watchdog", f"{pipe}\n  driver: testing")
        if self._is_strict:
            text = text.replace("mode_strict: false", "mode_strict: true")
        self.run("tee", "/etc/patroni/config.yml", stdin=text)

    def _own(self, text: str) -> str:
        """Return a configuration of the first machine as this one has it."""
        listed = re.compile(r"^(  hosts:|ETCD_INITIAL_CLUSTER=).*$", re.MULTILINE)
        shared = listed.findall(text)
        assert len(shared) == 1, shared
        lines = [
            line
            if listed.match(line)
            else re.sub(r"\bdb1\b", self.name, line).replace(ADDRESSES["db1"], self.address)
            for line in text.splitlines()
        ]
        return "\n".join(lines) + "\n"

    def _start(self, command: Sequence[str], settings: dict[str, str]) -> None:
        self._started = [each for each in self._started if each.poll() is None]
        self._started.append(
            subprocess.Popen(
                [*self._enter(), *command],
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**_ENVIRONMENT, **settings},
                cwd="/",
            )
        )

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self._init), "--net", "--mount", "--pid"]

    def _processes(self, user: str = "postgres") -> list[int]:
        found = []
        owner = pwd.getpwnam(user).pw_uid
        for each in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                is_there = Path(f"/proc/{each.pid}/ns/pid").readlink() == self._pids
                if is_there and each.uids().real == owner and each.status() != "zombie":
                    found.append(each.pid)
        return found

    def _signal(self, number: int, user: str = "postgres") -> None:
        while pids := self._processes(user):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number != signal.SIGKILL:
                return


class Cluster:
    """The three machines.

    Args:
        machines: all of them; they run.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = {each.name: each for each in machines}

    def leader(self) -> Machine | None:
        """Return the machine whose PostgreSQL is the primary, according to Patroni."""
        for each in self.machines.values():
            if each.ask("/primary")[0] == 200:
                return each
        return None

    def others(self, machine: Machine) -> list[Machine]:
        """Return the other two."""
        return [each for each in self.machines.values() if each is not machine]

    def wait_healthy(self) -> Machine:
        """Wait until both standbys follow, one of them synchronously; return the leader."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            leader = self.leader()
            if leader is not None and self._is_healthy(leader):
                return leader
            assert time.monotonic() < deadline, self.report()
            time.sleep(0.5)

    def wait_led_by_another(self, machine: Machine) -> Machine:
        """Wait until the primary is on another machine, and return that one."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for each in self.others(machine):
                if each.ask("/primary")[0] == 200:
                    return each
            time.sleep(0.2)
        raise AssertionError(self.report())

    def switch_over(self, leader: Machine) -> None:
        """Switch over to another machine, by `patronictl switchover`."""
        status, answer = leader.ask("/switchover", {"leader": leader.name})
        assert status in (200, 202), (status, answer)

    def report(self) -> str:
        """Return the last lines of each machine's output."""
        return "\n".join(
            f"--- {each.name}\n{each.log_path.read_text(errors='replace')[-12000:]}"
            for each in self.machines.values()
        )

    def _is_healthy(self, leader: Machine) -> bool:
        status, found = leader.ask("/cluster")
        if status != 200 or len(found["members"]) != len(self.machines):
            return False
        roles = sorted(each["role"] for each in found["members"])
        states = {each["state"] for each in found["members"]}
        if roles != ["leader", "replica", "sync_standby"] or not states <= {"running", "streaming"}:
            return False
        rows = leader.sql("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
        return len(rows.split()) == 2 and "sync" in rows.split()


@contextmanager
def cluster(folder: Path, *, is_strict: bool = False) -> Iterator[Cluster]:
    """Run three machines with an empty database for proxyd, until the test is over."""
    with ExitStack() as stack:
        _run("ip", "link", "add", "name", BRIDGE, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", "dev", BRIDGE)
        _run("ip", "address", "add", f"{CLIENTS}/24", "dev", BRIDGE)
        _run("ip", "link", "set", "dev", BRIDGE, "up")
        machines = []
        for name in ADDRESSES:
            machines.append(Machine(name, folder, is_strict=is_strict))
            stack.callback(machines[-1].close)
        running = Cluster(machines)
        for each in machines:
            each.start_etcd()
        for each in machines:
            each.start()
        running.wait_healthy().sql(
            "CREATE ROLE proxyd LOGIN PASSWORD 'secret' CONNECTION LIMIT 60;\n"
            "CREATE DATABASE proxyd OWNER proxyd"
        )
        yield running


def _json(answer: IO[bytes]) -> Any:
    text = answer.read()
    try:
        return json.loads(text)
    except ValueError:
        return text.decode()


def _run(*command: str, stdin: str = "") -> str:
    done = subprocess.run(
        command,
        env=_ENVIRONMENT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout
