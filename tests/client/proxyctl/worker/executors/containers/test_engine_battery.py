"""The battery in containers of each kind: one start serves all of its lines.

`make test` runs the probe in podman, and the whole battery in bubblewrap
(`executors/bwrap/test_bwrap.py`); `make sandboxes` runs all of it in each sandbox.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.base.waiting import until_true
from support.workers import battery, engines
from support.workers.around import outside
from support.workers.battery import BOMBS, EXPECTED, SECRET, Outcome

from proxyctl.worker.executors.containers import trial
from proxyctl.worker.executors.containers.containers import Containers
from proxyctl.worker.executors.containers.engine import call

KINDS = ("podman", "docker", "gvisor")

# Further allowed outcomes of a line, and the reasons why they are no way out.
OK = frozenset(("ok",))
IN_A_CONTAINER = {
    "read /run": OK,  # a file of podman's that says that it is a container
    "read /sys/fs/cgroup": OK,  # its own group, to read: programs look for their limits there
}
ALSO = {
    "podman": IN_A_CONTAINER,
    "docker": IN_A_CONTAINER,
    # The calls are answered by gVisor's own kernel, which shows less of itself.
    "gvisor": {
        **IN_A_CONTAINER,
        "read /dev/net/tun": frozenset(("EBADFD",)),
        "kind of stdout": frozenset(("host",)),
        "kind of stderr": frozenset(("host",)),
        **{
            f"{who} {name}": frozenset(("",))
            for who in ("status", "status of process 1")
            for name in ("CapAmb", "NoNewPrivs")
        },
    },
}


@pytest.fixture(scope="module", params=brief(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Path:
    return tmp_path_factory.mktemp(f"battery-{kind}")


@pytest.fixture(scope="module")
def executor(
    kind: str, top: Path, make_containers: Callable[[str, Path], Containers]
) -> Iterator[Containers]:
    made = make_containers(kind, top)
    battery.require(battery.lacking(made))
    yield made
    made.close()


@pytest.fixture(scope="module")
def outcomes(executor: Containers, top: Path, kind: str) -> dict[str, Outcome]:
    """Outcomes of the probe, from one run."""
    folder = top / "attempts" / f"probe-{kind}-1"
    (folder / "inputs").mkdir(parents=True, exist_ok=True)
    with outside() as around:
        return battery.probe(executor, folder, image=engines.IMAGE, job_type="docker", **around)


@cases("line", EXPECTED)
def test_nothing_gets_through(line: str, outcomes: dict[str, Outcome], kind: str) -> None:
    battery.judge(line, outcomes, ALSO[kind])


def test_every_line_of_the_probe_is_judged(outcomes: dict[str, Outcome]) -> None:
    assert set(outcomes) <= set(EXPECTED)


def test_no_secret_is_in_proc(outcomes: dict[str, Outcome]) -> None:
    told = outcomes["environments and command lines"].detail
    assert SECRET not in told
    assert str(Path.home()) not in told.split("\n")


def test_the_readable_parts_of_the_host_are_empty(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["read /run"].detail in ("", "[]", "['.containerenv']") or (
        outcomes["read /run"].outcome == "ENOENT"
    )


def program(top: Path, name: str) -> battery.Task:
    folder = top / "attempts" / f"bomb-{name}-1"
    made = battery.python_task(folder, BOMBS[name], image=engines.IMAGE, job_type="docker")
    (folder / "inputs").mkdir(exist_ok=True)
    return made


@pytest.mark.long
def test_forks_are_bounded(executor: Containers, top: Path, kind: str) -> None:
    job = program(top, "fork")
    started = battery.launch(executor, job)
    most = job.bounds.processes + executor.engine.spare_processes()
    if kind == "gvisor":  # its kernel has no words for a host that gives it no more threads
        name = f"proxyd-{job.attempt_id}"
        until_true(lambda: call(executor.engine, "inspect", name).count('"running"') > 0)
        pid = int(call(executor.engine, "inspect", "--format", "{{.State.Pid}}", name))
        until_true(lambda: (_processes(pid) or 0) > job.bounds.processes, "it does not fork")
        assert (_processes(pid) or 0) <= most
    else:
        until_true(lambda: b"forks" in started.out, "it forks without an end")
        assert int(started.out.split()[1]) < most
    executor.stop(job.attempt_id, 0)
    assert executor.running() == set()
    started.wait()
    executor.clean(job.attempt_id)


def _processes(pid: int) -> int | None:
    return trial.group_number(pid, "pids", "pids.current", "pids.current")


@pytest.mark.long
def test_files_in_memory_are_memory(executor: Containers, top: Path) -> None:
    result = battery.run(executor, program(top, "tmpfs"))
    assert result.ending.is_out_of_memory
    assert result.status != 0


@pytest.mark.long
def test_a_deaf_grandchild_ends_with_the_job(executor: Containers, top: Path) -> None:
    job = program(top, "deaf")
    started = battery.launch(executor, job)
    until_true(lambda: started.out.count(b"\n") == 2, "it does not start")
    executor.stop(job.attempt_id, 0.5)
    assert executor.running() == set()
    started.wait()
    executor.clean(job.attempt_id)
