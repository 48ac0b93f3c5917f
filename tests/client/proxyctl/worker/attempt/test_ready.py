"""Sandboxes that wait for jobs: each is whole, empty, and used for one attempt."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from support.base.waiting import until_true
from support.workers.market import Job, WorkerMarket, worker_market
from support.workers.process import WorkerAgent, require_sandbox, until, worker_agent

from proxyctl.worker.attempt import sandboxes
from proxyctl.worker.attempt.ready import Ready
from proxyctl.worker.attempt.supervisors import Supervisors
from proxyctl.worker.base import names
from proxyctl.worker.base.record import Lend, Sandbox
from proxyctl.worker.executors.base.base import INPUTS, LABEL, WORK, Task, TaskError
from proxyctl.worker.executors.base.family import family
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor
from proxyctl.worker.task.tasks import task_ahead

# All that a job finds, and something that it leaves wherever it can.
LOOK = """
import json, os, resource, sys
found = {
    "env": {name: text for name, text in os.environ.items() if name != "PROXYD_AGENT"},
    "argv": sys.argv,
    "files": sorted(
        os.path.join(top, each)
        for place in ("/work", "/inputs", "/tmp", "/dev/shm")
        for top, _, files in os.walk(place)
        for each in files
    ),
    "open": {each: os.readlink(f"/proc/self/fd/{each}").split(":")[0] for each in "012"},
    "descriptors": len(os.listdir("/proc/self/fd")),
    "processes": sorted(
        open(f"/proc/{each}/comm").read().strip()
        for each in os.listdir("/proc") if each.isdecimal()
    ),
    "ids": [os.getuid(), os.getgid(), os.getgroups(), os.getpid(), os.getsid(0), os.getppid()],
    "cwd": os.getcwd(),
    "umask": os.umask(0),
    "limits": [resource.getrlimit(each) for each in (1, 4, 7)],
    "status": [
        line for line in open("/proc/self/status")
        if line.startswith(("Cap", "NoNew", "Seccomp", "Sig", "Shd"))
    ],
}
print(json.dumps(found))
for place in ("/work", "/tmp", "/dev/shm"):
    open(f"{place}/left", "w").close()
"""
UNTIL_TOLD = """
import os, time
print("begun", flush=True)
while not os.path.exists("told"):
    time.sleep(0.05)
print("done")
"""
SECRET = "secret-of-a-buyer-83c1"
FOR_EVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)"


@pytest.fixture(scope="module", autouse=True)
def _sandbox(tmp_path_factory: pytest.TempPathFactory) -> None:
    require_sandbox(tmp_path_factory.mktemp("ready"))


@pytest.fixture
def market() -> Iterator[WorkerMarket]:
    with worker_market() as made:
        yield made


@pytest.fixture
def agent(market: WorkerMarket, tmp_path: Path) -> Iterator[WorkerAgent]:
    with worker_agent(tmp_path / "agent", market) as made:
        made.start()
        yield made


def sandbox_of(agent: WorkerAgent, job: Job) -> str:
    """Return the sandbox of a job that runs; empty if it did not wait."""
    path = agent.folder / names.ATTEMPTS / f"{job.id}-1" / names.ENTRY
    return str(json.loads(path.read_text())["sandbox"])


def processes_of(name: str) -> list[int]:
    """Return the processes of a sandbox that waits."""
    mark = f"\0{LABEL}\0{name}\0".encode()
    outermost = []
    for pid in psutil.pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                outermost.append(pid)
    return sorted(set(family(outermost)))


def without_internal_signals(line: str) -> str:
    """Return a line of /proc/self/status without signals 32 and 33.

    They are the C library's own. It ignores them in a process started by one that has had threads.
    """
    name, _, mask = line.partition(":\t")
    return f"{name}:\t{int(mask, 16) & ~(3 << 31):016x}" if name.startswith("SigIgn") else line


def test_a_job_in_a_sandbox_that_waited_finds_what_any_job_finds(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    """Nothing of the job before is there, and no sandbox is used twice."""
    found, used, sizes = [], [], []
    for env in ({"A": "1\n'2'"}, {"A": "1\n'2'"}, {"A": "1\n'2'", "PS1": ""}):
        used.append(agent.wait_ready(after=used[-1] if used else ""))
        # The last variable means something to shells, so the job gets a sandbox of its own.
        job = agent.run(LOOK, env=env)
        [(_, fields)] = job.reports
        assert fields["exit_code"] == 0, job.logs
        look = json.loads(job.logs[1, "out"])
        assert look["env"].pop(LABEL) == f"{job.id}-1"
        assert look["env"].pop("PS1", "") == ""
        sizes.append(look["limits"].pop(0))
        look["status"] = [without_internal_signals(line) for line in look["status"]]
        found.append(look)
    assert len({*used}) == 3
    assert found[0] == found[1] == found[2]
    assert found[0]["files"] == [f"/inputs/{names.SCRIPT}"]
    # No file may be larger than the job's disk less its inputs.
    (first, hard), second, own = sizes
    assert [first, hard] == second
    assert first == hard
    assert 0 <= own[0] - first <= 64 << 10
    assert found[0]["env"]["A"] == "1\n'2'"


def test_a_job_takes_the_sandbox_that_waits_and_its_time_begins_then(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    waiting = agent.wait_ready()
    job = market.post(FOR_EVER, payload={"secrets": {"HF_TOKEN": SECRET}})
    until(lambda: job.logs.get((1, "out")), agent)
    assert sandbox_of(agent, job) == waiting
    for pid in psutil.pids():
        with suppress(OSError):
            assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    folder = agent.folder / names.ATTEMPTS / f"{job.id}-1"
    running = json.loads((folder / names.RUNNING).read_text())
    since_boot = running["begun_at"] - running["started"] / os.sysconf("SC_CLK_TCK")
    assert since_boot > 0, "its first process is older than the attempt"
    agent.wait_ready(after=waiting)
    market.take_back(job)
    agent.until_idle()
    assert not processes_of(waiting)


def test_a_job_with_more_disk_may_write_a_file_of_that_size(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    agent.wait_ready()
    script = "open('large', 'wb').truncate(700_000_000)"  # half a gigabyte is the usual part
    job = market.post(script, resources={"disk_gb": 0.9})
    until(lambda: job.outcome, agent)
    [(verb, fields)] = job.reports
    assert (verb, fields["exit_code"]) == ("complete", 0), job.logs


def test_a_job_does_not_learn_from_its_failure_which_files_a_device_has(
    agent: WorkerAgent, market: WorkerMarket, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    said = set()
    for name in ("program", "missing"):
        agent.wait_ready()
        job = market.post(payload={"command": [f"{tmp_path}/{name}"]})
        until(lambda: job.outcome, agent)  # noqa: B023 - called at once
        agent.until_idle()
        [(verb, fields)] = job.reports
        log = job.logs.get((1, "err"), b"").replace(name.encode(), b"NAME")
        said.add((verb, fields["kind"], fields.get("exit_code"), log))
    assert len(said) == 1, said


def test_a_job_is_adopted_in_a_sandbox_that_waited(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    waiting = agent.wait_ready()
    job = market.post(UNTIL_TOLD)
    until(lambda: job.logs.get((1, "out")), agent)
    agent.kill()
    agent.start()
    agent.wait_ready()
    assert sandbox_of(agent, job) == waiting
    (agent.folder / names.ATTEMPTS / f"{job.id}-1" / "work" / "told").touch()
    until(lambda: job.outcome, agent)
    assert job.logs[1, "out"] == b"begun\ndone\n"
    agent.until_idle()
    assert [each.name for each in agent.groups() if waiting in each.name] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_a_sandbox_that_waits_outlives_its_agent(
    agent: WorkerAgent, market: WorkerMarket, number: int
) -> None:
    waiting = agent.wait_ready()
    processes = processes_of(waiting)
    assert len(processes) >= 4, processes  # bubblewrap's three, and the shell
    agent.kill(number)
    until_true(lambda: not any(map(psutil.pid_exists, processes)), "all have ended")
    if number == signal.SIGKILL:
        agent.start()
        agent.wait_ready(after=waiting)
        agent.kill(signal.SIGTERM)
    assert list((agent.folder / names.READY).glob("*")) == []
    assert agent.groups() == []


def test_a_sandbox_that_is_killed_while_it_waits_costs_no_job(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    processes = processes_of(agent.wait_ready())
    os.kill(processes[-1], signal.SIGKILL)
    until_true(lambda: not any(map(psutil.pid_exists, processes)), "all have ended")
    assert agent.run("print(6 * 7)").logs[1, "out"] == b"42\n"


def test_a_supervisor_that_is_killed_with_its_sandbox_costs_no_job(
    agent: WorkerAgent, market: WorkerMarket
) -> None:
    """It is stopped first, so that the agent gives it the job in any case."""
    waiting = agent.wait_ready()
    [supervisor] = agent.supervising()
    os.kill(supervisor, signal.SIGSTOP)
    job = market.post("print(6 * 7)")
    entry = agent.folder / names.ATTEMPTS / f"{job.id}-1" / names.ENTRY
    until(lambda: entry.exists() and json.loads(entry.read_text())["sandbox"] == waiting, agent)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: job.outcome, agent)
    assert job.logs[1, "out"] == b"42\n"
    agent.until_idle()


def test_a_sandbox_that_has_waited_for_long_is_made_anew(tmp_path: Path) -> None:
    """It has files of the device as they were when it was made."""
    executor = executor_of(tmp_path)
    supervisors = Supervisors(tmp_path, partial(Ready, executor, Lend(), tmp_path), ready_seconds=0)
    supervisors.replenish()
    [first] = supervisors.places()
    until_true(lambda: processes_of(first), "it is there")
    supervisors.replenish()
    [second] = supervisors.places()
    assert second != first
    assert not processes_of(first)
    assert [each.name for each in (tmp_path / names.READY).iterdir()] == [second]
    assert executor.left() == {second}
    supervisors.close()
    assert supervisors.places() == executor.left() == set()
    executor.close()


def test_a_sandbox_is_settled_after_interruptions_and_leaves_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = executor_of(tmp_path)
    supervisors = Supervisors(tmp_path, partial(Ready, executor, Lend(), tmp_path))
    supervisors.replenish()
    [name] = supervisors.places()
    until_true((tmp_path / names.READY / name / names.MADE).exists, "it waits")
    bound = {each: (tmp_path / names.READY / name / each).stat().st_ino for each in (WORK, INPUTS)}
    folder = tmp_path / "attempt"
    for each in bound:
        (folder / each).mkdir(parents=True)
    (folder / INPUTS / "input").write_text("of the attempt")
    task = replace(task_ahead("attempt", folder, Lend()), command=("true",))
    taken = supervisors.take(folder, task, "attempt", lambda _: None)
    assert taken is not None
    ready, _ = taken
    rename, calls = Path.rename, 0

    def interrupted(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls % 2:  # each step fails once, and finished steps are not repeated
            raise OSError("interrupted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    while not ready.is_settled:
        with suppress(OSError):
            ready.settle(task)
    monkeypatch.undo()
    assert calls > 2 * len(bound)
    assert {each: (folder / each).stat().st_ino for each in bound} == bound
    assert (folder / INPUTS / "input").read_text() == "of the attempt"
    supervisors.give(folder, has_taken=True)  # it finds no launch, and ends
    until_true(lambda: supervisors.has_ended(folder), "it has ended")
    executor.clean(name)
    supervisors.replenish()
    assert {each.name for each in (tmp_path / names.READY).iterdir()} == supervisors.places()
    supervisors.close()
    executor.close()


def test_a_sandbox_whose_attempt_ended_before_it_was_settled_is_removed(tmp_path: Path) -> None:
    executor = executor_of(tmp_path)
    supervisors = Supervisors(tmp_path, partial(Ready, executor, Lend(), tmp_path))
    supervisors.replenish()
    [name] = supervisors.places()
    until_true((tmp_path / names.READY / name / names.MADE).exists, "it waits")
    folder = tmp_path / "attempt"
    folder.mkdir()
    task = replace(task_ahead("attempt", folder, Lend()), command=("true",))
    assert supervisors.take(folder, task, "attempt", lambda _: None) is not None
    supervisors.replenish()
    assert (tmp_path / names.READY / name).exists(), "the attempt may still settle it"
    folder.rmdir()
    supervisors.replenish()
    assert {each.name for each in (tmp_path / names.READY).iterdir()} == supervisors.places()
    until_true(lambda: not supervisors.reap(), "its supervisor has ended")
    supervisors.close()
    assert executor.left() == set()
    executor.close()


def test_sandboxes_that_cannot_be_removed_are_bounded_and_hold_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxyctl.worker.attempt.supervisors._LEFT_MAX", 2)
    executor = executor_of(tmp_path)
    made: list[Ready] = []
    stuck: set[Ready] = set()

    class Stuck(Ready):
        def prepare(self) -> bytes | None:
            made.append(self)
            return super().prepare()

        def remove(self) -> None:
            if self in stuck:
                raise OSError("busy")
            super().remove()

    make = partial(Stuck, executor, Lend(), tmp_path)
    supervisors = Supervisors(tmp_path, make, ready_seconds=0)
    supervisors.replenish()
    stuck.update(made)
    for _ in range(2):
        supervisors.replenish()
    left = {each.name for each in (tmp_path / names.READY).iterdir()}
    assert left == {made[0].name, made[2].name}, "the second one is removed"
    stuck.update(made)
    for _ in range(4):
        supervisors.replenish()
    assert len(made) == 3
    assert supervisors.places() == {made[0].name, made[2].name}
    stuck.clear()
    supervisors.close()
    assert list((tmp_path / names.READY).iterdir()) == []
    executor.close()


def test_a_round_ends_after_a_removal_that_fails_late_and_the_next_one_begins_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits ten seconds for processes that do not end; 64 of them stopped the agent."""
    monkeypatch.setattr("proxyctl.worker.attempt.supervisors._ROUND_SECONDS", 0, raising=False)
    executor = executor_of(tmp_path)
    tried: list[str] = []
    is_stuck = True

    class Stuck(Ready):
        def remove(self) -> None:
            tried.append(self.name)
            if is_stuck:
                raise TaskError("host", "its processes do not end")
            super().remove()

    make = partial(Stuck, executor, Lend(), tmp_path)
    supervisors = Supervisors(tmp_path, make, ready_seconds=0)
    for _ in range(4):
        supervisors.replenish()
    assert len(tried) == 3, "one in each round"
    tried.clear()
    for _ in range(3):
        supervisors.replenish()
    assert len(set(tried)) == len(tried) == 3, "each has its turn"
    is_stuck = False
    supervisors.close()
    assert list((tmp_path / names.READY).iterdir()) == []
    executor.close()


@pytest.mark.parametrize("failure", [OSError("no space"), TaskError("host", "no group"), None])
def test_an_agent_works_without_sandboxes_that_wait(
    tmp_path: Path, failure: Exception | None
) -> None:
    """One cannot be made where the disk is full, or systemd would count the seconds of its wait."""
    executor = executor_of(tmp_path)
    made: list[Ready] = []

    class Never(Ready):
        def prepare(self) -> None:
            made.append(self)
            if failure is not None:
                raise failure

    supervisors = Supervisors(tmp_path, partial(Never, executor, Lend(), tmp_path))
    for _ in range(2):
        supervisors.replenish()
    assert len(made) == 1, "it is not tried all the time"
    assert supervisors.places() == set()
    supervisors.close()
    executor.close()


def executor_of(folder: Path) -> BwrapExecutor:
    executors, _ = sandboxes.usable(Sandbox(executor="bwrap"), Lend(), folder)
    executor = executors["bwrap"]
    assert isinstance(executor, BwrapExecutor)
    return executor


def test_what_a_sandbox_that_waits_cannot_do_needs_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.touch(0o755)
    monkeypatch.chdir(tmp_path)
    executor = executor_of(tmp_path)
    task: Task = replace(task_ahead("sandbox-1", tmp_path, Lend()), command=("python3", "/x y"))
    orders = executor.orders(task, "job-1")
    assert orders == f"export {LABEL}=job-1\nexec python3 '/x y' </dev/null\n"
    for changes in (
        {"command": ("no-such-program",)},
        {"command": ("/inputs/program",)},
        *({"command": (each,)} for each in (str(program), f"/usr/bin/../..{program}", "./program")),
        {"root": tmp_path},
        {"gpus": ("GPU-1",)},
        *({"env": {name: "1"}} for name in ("PATH", "UID", "RANDOM", "BASH_ENV", "_", "LC_ALL")),
    ):
        assert executor.orders(replace(task, **changes), "job-1") is None  # type: ignore[arg-type]
    executor.close()
