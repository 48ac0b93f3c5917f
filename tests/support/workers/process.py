"""The agent of `proxyctl worker` as a process of its own, beside a marketplace of the test's."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.base import names
from proxyctl.worker.base.record import Consent, Lend, Sandbox, save
from proxyctl.worker.executors.base.base import LABEL, TaskError
from proxyctl.worker.executors.limits.base import scope_of
from proxyctl.worker.executors.limits.cgroup1 import find_parents
from support.base.waiting import PATIENCE_SECONDS, until_true
from support.daemons import forked_client
from support.daemons.process import ROOT
from support.workers import battery
from support.workers.market import TOKEN, Job, WorkerMarket

BWRAP = Sandbox("bwrap")
_SUPERVISOR = b"proxyctl.worker.attempt.supervisor"


def require_sandbox(folder: Path) -> None:
    """Skip a test where nothing can be walled in."""
    try:
        executors, findings = sandboxes.usable(Sandbox(executor="bwrap"), Lend(), folder)
    except TaskError as error:
        battery.require(error.message)
        return
    missing = [each for some in findings.values() for each in some if not each.is_met]
    for executor in executors.values():
        executor.close()
    battery.require("" if executors else "; ".join(f"{each.id}: {each.actual}" for each in missing))


class WorkerAgent:
    """`proxyctl worker run`, started repeatedly in one folder.

    Args:
        folder: of the agent.
        market: that it works for.
        python: that runs it.
    """

    def __init__(
        self, folder: Path, market: WorkerMarket, *, python: str = sys.executable, jobs: int = 2
    ) -> None:
        self.folder = folder
        self.market = market
        self.python = python
        self._process: forked_client.ClientProcess | None = None
        self.agree(market.url, Lend(cores=1, ram_gb=0.5, disk_gb=1, max_jobs=jobs))

    def agree(self, api: str, lend: Lend, token: str = TOKEN, sandbox: Sandbox = BWRAP) -> None:
        """Write a consent down, as `setup` does after a `yes`."""
        consent = Consent(api, token, "2026-01-01T00:00:00+00:00", lend, sandbox=sandbox)
        save(self.folder / names.CONSENT, consent)

    def start(self, die_at: str = "") -> None:
        """Start it; with `die_at`, it kills itself when an attempt has come to that state."""
        assert self._process is None
        program = "support.workers.agent" if die_at else forked_client.PROGRAM
        words = [*([die_at] if die_at else []), "worker", "run", "--folder", str(self.folder)]
        with (self.folder / "log").open("ab") as log, Path(os.devnull).open("rb") as nothing:
            standard = [nothing.fileno(), log.fileno(), log.fileno()]
            self._process = forked_client.start(
                words, environment(), standard, program=program, python=self.python
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def lose_power(self) -> None:
        """Kill the agent and all its processes, like a machine that loses power."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=PATIENCE_SECONDS)
        self._process = None
        for pid in self.processes():
            with suppress(ProcessLookupError):  # one of them ends with another one
                os.kill(pid, signal.SIGKILL)
        until_true(lambda: not self.processes(), "nothing runs")
        for path in (self.folder / names.ATTEMPTS).glob(f"*/{names.ENTRY}"):
            entry = json.loads(path.read_text())
            path.write_text(json.dumps({**entry, "boot": "another"}))

    def command(self, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run another command on the same folder."""
        line = ("worker", *words, "--folder", str(self.folder))
        return forked_client.run(line, environment(), typed=typed, python=self.python)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8")

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        assert self._process is not None
        status = self._process.wait(timeout=PATIENCE_SECONDS)
        self._process = None
        return status

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and `wait` was not called for it."""
        return self._process is not None and self._process.poll() is not None

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send it a signal, and wait for its end."""
        self.send(number)
        return self.wait()

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill_if_started(self) -> None:
        """Kill only it, if it was started and not waited for."""
        if self._process is not None:
            self.kill()

    def close(self) -> None:
        """End it, and everything that is left of it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=PATIENCE_SECONDS)
        for pid in self.processes():
            with suppress(ProcessLookupError):  # one of them ends with another one
                os.kill(pid, signal.SIGKILL)
        for group in self.groups():  # the next agent in this folder would remove them
            until_true(partial(_is_removed, group), "nothing is in it")

    def groups(self) -> list[Path]:
        """Return its control groups."""
        start = f"{scope_of(self.folder)}.*"
        return [each for parent in find_parents().values() for each in parent.glob(start)]

    def supervisors(self) -> list[int]:
        """Return the supervisors of attempts that run now."""
        begun = (self.folder / names.ATTEMPTS).glob(f"*/{names.BEGUN}")
        pids = [json.loads(each.read_text()).get("pid") for each in begun]
        return [pid for pid in pids if pid and pid in self.processes()]

    def supervising(self) -> list[int]:
        """Return all supervisors, also those that wait for an attempt.

        A child of one that has not become its job yet looks like another: killing it would be the
        job's end by a signal, and no supervisor's.
        """
        pids = [pid for pid in self.processes() if _is_supervisor(pid)]
        return [pid for pid in pids if _parent(pid) not in pids]

    def processes(self) -> list[int]:
        """Return everything of this folder that runs: supervisors, sandboxes and jobs."""
        attempts = {job.id for job in self.market.jobs.values()}
        pids = []
        label = LABEL.encode()
        for path in filter(lambda each: each.name.isdigit(), Path("/proc").iterdir()):
            try:
                variables = (path / "environ").read_bytes()
                is_ours = _SUPERVISOR in (path / "cmdline").read_bytes() and (
                    str((path / "cwd").readlink()) == str(self.folder)
                )
            except OSError:
                continue
            if label in variables:  # of all processes of the machine, a few have one
                labels = [each for each in variables.split(b"\0") if each.startswith(label)]
                is_ours |= any(each.decode().split("=")[1][:36] in attempts for each in labels)
            if is_ours:
                pids.append(int(path.name))
        return pids

    def wait_ready(self, *, after: str = "") -> str:
        """Wait until a sandbox waits for a job, another one than `after`; return its name."""

        def waiting() -> list[str]:
            made = (self.folder / names.READY).glob(f"*/{names.MADE}")
            return [each.parent.name for each in made if each.parent.name != after]

        until_true(lambda: bool(waiting()), lambda: f"a sandbox waits: {self.log}")
        return waiting()[0]

    def run(self, script: str, **payload: object) -> Job:
        """Run a script with the agent to its end; then nothing of it is left."""
        job = self.market.post(script, payload=payload)
        until(lambda: job.outcome, self)
        self.until_idle()
        return job

    def probed(self, secret: str) -> dict[str, battery.Outcome]:
        """Run the probe with the agent, as a job with a secret. Return the outcomes."""
        with socket.create_server(("0.0.0.0", 0)) as listening:
            source = battery.probe_source(listening.getsockname()[1])
            job = self.run(source, secrets={"HF_TOKEN": secret})
        outcomes = battery.reported(job.logs[1, "out"].decode())
        assert "done" in outcomes, (job.reports, job.logs)
        return outcomes

    def until_idle(self) -> None:
        """Wait until nothing is left of any attempt, and only the next supervisor waits."""
        attempts = self.folder / names.ATTEMPTS
        until_true(lambda: not list(attempts.iterdir()), lambda: f"all is removed: {self.log}")
        until_true(lambda: len(self.processes()) <= 1, "nothing runs")


def _is_removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _is_supervisor(pid: int) -> bool:
    try:
        return _SUPERVISOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return False


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return 0
    return int(stat.rpartition(")")[2].split()[1])


@contextmanager
def worker_agent(folder: Path, market: WorkerMarket, **options: int) -> Iterator[WorkerAgent]:
    """Make an agent that ends with the test."""
    folder.mkdir(mode=0o700, exist_ok=True)
    agent = WorkerAgent(folder, market, **options)
    try:
        yield agent
    finally:
        agent.close()


def environment() -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / each) for each in ("client", "tests", ""))
    engines = ("CONTAINERS_STORAGE_CONF", "DOCKER_HOST")  # set by the tests
    kept = {name: os.environ[name] for name in ("PATH", *engines) if name in os.environ}
    return {**kept, "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": paths}


def until(condition: Callable[[], object], agent: WorkerAgent) -> None:
    """Wait for an effect of an agent; fail with the agent's log."""
    until_true(lambda: bool(condition()), lambda: agent.log)
