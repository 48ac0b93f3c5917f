"""Jobs bounded by control groups of the second version, in a machine that has no others."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.machines import guest

# The first process of the machine is root there, as an agent may be.
PROGRAM = """
import json
from dataclasses import replace
from pathlib import Path
from proxyctl.worker.executors.base.base import WORK, Bounds, Launch, Task
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor
from proxyctl.worker.executors.limits.choose import choose
from support.workers import launching
from support.workers.bombs import BOMBS
from support.base.waiting import until_true
import support.base.waiting
support.base.waiting.PATIENCE_SECONDS = 120

limits, findings = choose()
print(json.dumps({"limits": limits and limits.name, "findings": [str(each) for each in findings]}))
executor = BwrapExecutor(limits)
print(json.dumps({"unmet": [str(each) for each in executor.check() if not each.is_met]}))
bounds = Bounds(cores=0.5, memory_bytes=64 << 20, disk_bytes=64 << 20, processes=24, seconds=60)

def start(name, program):
    folder = Path("/tmp") / name
    (folder / WORK).mkdir(parents=True)
    (folder / WORK / "program.py").write_text(program)
    job = Task(name, folder, "script", ("/usr/bin/python3", "/work/program.py"), bounds)
    started = launching.start(job, executor.prepare(job))
    executor.attach(job, started.pid)
    return started

def tell(name, started, **more):
    status = started.wait()
    ending = executor.ended(name)
    executor.clean(name)
    print(json.dumps({
        name: {
            "status": status, "out": started.out.decode(), "err": started.err.decode()[-500:],
            "oom": ending.is_out_of_memory, "cpu": ending.cpu_seconds,
            "memory": ending.max_memory_bytes, "left": sorted(executor.running()), **more,
        }
    }), flush=True)

tell("plain", start("plain", "print('hello')"))
tell("memory", start("memory", BOMBS["memory"]))
started = start("fork", BOMBS["fork"])
until_true(lambda: b"forks" in started.out)
group = Path("/sys/fs/cgroup/proxyctl-jobs/agent.fork")
names = ("cpu.max", "pids.max", "memory.max")
values = {name: (group / name).read_text().strip() for name in names}
executor.stop("fork", 0)
tell("fork", started, values=values)
started = start("polite", BOMBS["polite"])
until_true(lambda: b"ready" in started.out)
executor.stop("polite", 60)
tell("polite", started)
started = start("deaf", BOMBS["deaf"])
until_true(lambda: b"grandchild" in started.out)
limits.kill("deaf")
tell("deaf", started)
print(json.dumps({"groups": sorted(limits.attempts())}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Output of the program, from one start of the machine."""
    kernel = os.environ.get("PROXYD_KERNEL")
    if kernel is None:
        pytest.skip("`make vm` runs it: it starts a machine")
    if why := guest.lacking(kernel):
        pytest.fail(why)
    printed = guest.run(Path(kernel), tmp_path_factory.mktemp("guest"), PROGRAM)
    rows: dict[str, Any] = {}
    for line in printed.splitlines():
        if line.startswith("{"):
            rows.update(json.loads(line))
    assert "groups" in rows, printed
    return rows


def test_it_is_chosen_and_nothing_is_missing(told: dict[str, Any]) -> None:
    assert told["limits"] == "cgroup2", told["findings"]
    assert told["unmet"] == []


def test_a_job_runs_and_is_counted(told: dict[str, Any]) -> None:
    job = told["plain"]
    assert (job["status"], job["out"], job["oom"]) == (0, "hello\n", False), job
    assert job["cpu"] > 0


def test_memory_ends_at_its_bound(told: dict[str, Any]) -> None:
    job = told["memory"]
    assert job["status"] != 0
    assert job["oom"], job
    assert job["memory"] is None or job["memory"] <= 64 << 20


def test_processes_end_at_their_bound(told: dict[str, Any]) -> None:
    job = told["fork"]
    assert int(job["out"].split()[1]) < 24
    assert job["values"] == {
        "cpu.max": "50000 100000",
        "pids.max": "24",
        "memory.max": str(64 << 20),
    }
    assert job["left"] == []


def test_a_job_is_asked_to_end(told: dict[str, Any]) -> None:
    assert told["polite"]["status"] == 3, told["polite"]


def test_all_of_a_group_is_killed_at_once(told: dict[str, Any]) -> None:
    assert told["deaf"]["status"] != 0
    assert told["deaf"]["left"] == []


def test_nothing_is_left(told: dict[str, Any]) -> None:
    assert told["groups"] == []
