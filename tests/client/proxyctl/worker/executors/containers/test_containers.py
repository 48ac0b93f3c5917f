"""Attempts as containers of real engines: their start, their results, and their end."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.base.waiting import until_true
from support.workers import engines, launching

from proxyctl.worker.executors.base import family
from proxyctl.worker.executors.base.base import CANNOT_BE_RUN, Bounds, Launch, Task, TaskError
from proxyctl.worker.executors.bwrap import netns
from proxyctl.worker.executors.containers import container_watch, guarded, trial
from proxyctl.worker.executors.containers.containers import Containers
from proxyctl.worker.executors.containers.engine import Engine, EngineError, call
from proxyctl.worker.executors.containers.podman import Podman

BOUNDS = Bounds(cores=1.0, memory_bytes=128 << 20, disk_bytes=1 << 30, processes=64, seconds=60)
KINDS = ("podman", "docker")
ALL_KINDS = (*KINDS, "gvisor")  # podman's storage, and a kernel of its own

# Starts the given command, and waits: the part of the supervisor that matters here.
SUPERVISOR = """
import json, subprocess, sys
launch = json.loads(sys.stdin.readline())
child = subprocess.Popen(launch["argv"], env=launch["env"], stdin=subprocess.DEVNULL)
sys.exit(child.wait())
"""


@pytest.fixture(params=brief(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An agent's."""
    made = tmp_path / "agent"
    made.mkdir()
    return made


@pytest.fixture
def containers(
    kind: str, folder: Path, make_containers: Callable[[str, Path], Containers]
) -> Containers:
    return make_containers(kind, folder)


@pytest.fixture
def task(folder: Path, containers: Containers, request: pytest.FixtureRequest) -> Iterator[Task]:
    made = task_of(folder, folder.parent.name.replace(".", "-")[:60])
    yield made
    containers.clean(made.attempt_id)


def task_of(folder: Path, name: str) -> Task:
    attempt_id = f"{name}-{os.getpid()}-1"
    attempt = folder / "attempts" / attempt_id
    (attempt / "work").mkdir(parents=True)
    (attempt / "inputs").mkdir()
    return Task(attempt_id, attempt, "docker", ("true",), BOUNDS, image=engines.IMAGE)


def sh(task: Task, script: str) -> Task:
    return replace(task, command=("sh", "-c", script))


def start(launch: Launch) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        launch.argv,
        env=dict(launch.env),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
    )


def run(containers: Containers, task: Task) -> tuple[int, str, str]:
    child = start(containers.prepare(task))
    out, errors = child.communicate(timeout=60)
    return child.returncode, out.decode(), errors.decode()


@pytest.mark.parametrize("kind", brief(ALL_KINDS))
def test_a_job_has_its_streams_its_variables_its_folder_and_its_status(
    containers: Containers, task: Task
) -> None:
    (task.folder / "inputs" / "data").write_text("given")
    job = "echo out $A; echo err >&2; cat /inputs/data; pwd; id -u; echo made > file; exit 7"
    status, out, errors = run(containers, replace(sh(task, job), env={"A": "a 'b' $c"}))
    assert (status, errors.strip()) == (7, "err")
    assert out == "out a 'b' $c\ngiven/work\n65534\n"
    assert (task.folder / "work" / "file").read_text() == "made\n"
    assert containers.ended(task.attempt_id).lost == ""
    assert not containers.ended(task.attempt_id).is_out_of_memory
    # Neither variables, which may be secrets, nor anything else of the engine's stays.
    assert sorted(each.name for each in task.folder.iterdir()) == ["inputs", "work"]
    containers.clean(task.attempt_id)
    left = call(containers.engine, "ps", "--all", "--format", "{{.Names}}")
    assert task.attempt_id not in left
    containers.clean(task.attempt_id)


@pytest.mark.long
def test_a_guard_is_given_the_time_that_it_takes(containers: Containers, task: Task) -> None:
    # The supervisor kills the rest of a program, and the guard is left on purpose.
    assert containers.prepare(task).sweep_seconds > guarded.GIVE_UP_SECONDS


def test_more_memory_than_it_may_have_ends_a_job(containers: Containers, task: Task) -> None:
    eater = "held = [bytearray(1 << 20) for _ in range(1000)]"
    status, _, _ = run(containers, replace(task, command=("python3", "-c", eater)))
    assert status != 0
    containers.stop(task.attempt_id, 0)  # as the agent does with every ended attempt
    assert containers.ended(task.attempt_id).is_out_of_memory


@pytest.mark.long
def test_a_job_is_asked_to_end_and_then_ended(containers: Containers, task: Task) -> None:
    polite = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    child = start(containers.prepare(sh(task, polite)))
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    until_true(lambda: containers.running() == {task.attempt_id})
    containers.stop(task.attempt_id, 20)
    assert containers.running() == set()
    assert child.communicate(timeout=20)[0] == b"asked\n"
    assert child.returncode == 3
    containers.stop(task.attempt_id, 0)  # again is harmless

    deaf = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    child = start(containers.prepare(sh(task, deaf)))
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    containers.stop(task.attempt_id, 0)
    assert containers.running() == set()
    child.communicate(timeout=20)
    assert child.returncode == 137


@pytest.mark.long
def test_a_container_whose_supervisor_was_killed_is_ended(
    containers: Containers, task: Task
) -> None:
    launch = containers.prepare(sh(task, "echo ready; sleep 600"))
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    supervisor.stdin.write(json.dumps(launch.as_fields()).encode() + b"\n")
    supervisor.stdin.flush()
    assert supervisor.stdout.readline() == b"ready\n"
    supervisor.kill()
    supervisor.wait()
    until_true(lambda: containers.running() == set(), "the container runs on")
    supervisor.communicate()


@pytest.mark.long
def test_a_container_whose_client_was_killed_is_ended_and_that_is_the_devices_fault(
    containers: Containers, task: Task
) -> None:
    child = start(containers.prepare(sh(task, "echo ready; sleep 600")))
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert containers.ended(task.attempt_id).lost
    until_true(lambda: containers.running() == set(), "the container runs on")
    assert containers.ended(task.attempt_id).lost


@pytest.mark.long
def test_an_agent_finds_its_containers_again_and_no_other_agents(
    containers: Containers,
    task: Task,
    kind: str,
    folder: Path,
    make_containers: Callable[[str, Path], Containers],
) -> None:
    child = start(containers.prepare(sh(task, "echo ready; sleep 600")))
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    # docker lists a container a moment after it has begun.
    until_true(lambda: make_containers(kind, folder).running() == {task.attempt_id})
    assert make_containers(kind, folder.parent).running() == set()
    make_containers(kind, folder).stop(task.attempt_id, 0)
    child.communicate(timeout=20)


@pytest.mark.long
def test_a_program_that_is_not_in_the_image_is_the_jobs_fault(
    containers: Containers, task: Task
) -> None:
    status, _, errors = run(containers, replace(task, command=("no-such-program",)))
    assert 125 <= status <= 128
    assert "no-such-program" in errors
    assert containers.ended(task.attempt_id).lost == ""


@pytest.mark.long
def test_a_job_that_cannot_be_run_is_refused_in_words(containers: Containers, task: Task) -> None:
    def refusal(**changes: object) -> TaskError:
        with pytest.raises(TaskError) as caught:
            containers.prepare(replace(task, **changes))  # type: ignore[arg-type]
        return caught.value

    assert refusal(image="").kind == "refused"
    missing = refusal(image="localhost/nothing-of-that-name:1")
    assert missing.kind == "image"
    assert "nothing-of-that-name" in missing.message
    lines = refusal(env={"KEY": "one\ntwo"})
    assert (lines.kind, "KEY" in lines.message, "two" in lines.message) == ("refused", True, False)
    assert refusal(env={"A=B": "c"}).kind == "refused"
    assert refusal(attempt_id="../x").kind == "refused"
    assert refusal(gpus=("GPU-none",)).kind == "refused"
    assert call(containers.engine, "ps", "--all", "--quiet").strip() == ""


@pytest.mark.parametrize("few", [{"cores": 0.001}, {"memory_bytes": 0}, {"memory_bytes": 1 << 20}])
def test_a_bound_that_an_engine_takes_for_none_is_refused(
    containers: Containers, task: Task, few: dict[str, int]
) -> None:
    """The job would have all cores, or all memory, of the device."""
    with pytest.raises(TaskError, match="a job needs at least") as refused:
        containers.prepare(replace(task, bounds=replace(BOUNDS, **few)))  # type: ignore[arg-type]
    assert refused.value.kind == "refused"


@pytest.mark.long
def test_a_program_that_is_not_in_the_image_is_the_jobs_failure(
    containers: Containers, task: Task
) -> None:
    """It never runs, as where the engine cannot start anything, which is the device's."""
    for program in ("no-such-program", "/etc"):
        containers.clean(task.attempt_id)
        child = start(containers.prepare(replace(task, command=(program,))))
        child.communicate(timeout=30)
        ending = containers.ended(task.attempt_id)
        assert child.returncode != 0
        is_devices = ending.is_unstarted and child.returncode not in CANNOT_BE_RUN
        assert not is_devices, (program, child.returncode, ending)
        assert not ending.lost


@cases(
    ("words", "is_gone"),
    [
        ("error during connect: Post http://docker/create: EOF", True),
        ("Cannot connect to the Docker daemon at unix:///run/docker.sock.", True),
        ("Error response from daemon: error during connect: x is no image", False),
    ],
)
def test_an_engine_that_ends_in_the_middle_is_told_from_one_that_refuses(
    words: str, *, is_gone: bool
) -> None:
    shell = SimpleNamespace(
        name="docker",
        command=lambda: ("/bin/sh", "-c", f"echo '{words}' >&2; exit 1"),
        environment=dict,
    )
    with pytest.raises(EngineError) as caught:
        call(cast(Engine, shell), "create")
    assert caught.value.is_gone == is_gone


@pytest.mark.long
@pytest.mark.parametrize("kind", ["podman"])
def test_a_container_whose_monitor_is_killed_is_lost_and_not_waited_for(
    containers: Containers, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_watch, "_GONE_LOOKS", 1)
    job = sh(task, "echo ready; sleep 2")
    child = start(containers.prepare(job))
    containers.attach(job, child.pid)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    name = f"proxyd-{task.attempt_id}"
    watch = containers._watches.find(task.attempt_id)
    assert watch is not None
    until_true(lambda: watch.usage.cpu_seconds is not None)
    text = call(containers.engine, "inspect", "--format", "{{.State.ConmonPid}}", name)
    os.kill(int(text), signal.SIGKILL)
    child.communicate(timeout=30)
    assert "went away" in containers.ended(task.attempt_id).lost


def test_a_container_that_has_ended_and_is_not_waited_for_is_gone() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        folder = Path("/proc", str(child.pid))
        assert family.is_alive(folder)
        child.kill()
        until_true(lambda: not family.is_alive(folder), "it has ended")
        assert folder.exists()
    assert not family.is_alive(folder)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["docker"])
def test_a_container_whose_monitor_docker_has_lost_has_not_used_up_its_memory(
    containers: Containers, task: Task
) -> None:
    child = start(containers.prepare(sh(task, "echo ready; sleep 600")))
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    name = f"proxyd-{task.attempt_id}"
    pid = call(containers.engine, "inspect", "--format", "{{.State.Pid}}", name).strip()
    monitor = int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
    assert b"containerd-shim" in Path(f"/proc/{monitor}/cmdline").read_bytes()
    os.kill(monitor, signal.SIGKILL)
    child.communicate(timeout=30)
    ending = containers.ended(task.attempt_id)
    assert (ending.is_out_of_memory, "went away" in ending.lost) == (False, True), ending


@pytest.mark.long
def test_a_start_that_podman_never_knew_of_is_removed_with_its_container(
    podman_storage: None, image_archive: Path, folder: Path
) -> None:
    """It is killed after its runtime has made the container, and before it learns of that."""
    engines.require_root()
    runtime, killed = folder / "runc", folder / "killed"
    kill = f"kill -9 $(cat {killed}) && rm {killed}"
    runtime.write_text(
        f'#!/bin/sh\nruns=\ncase "$*" in *" create "*) runs=1;; esac\n'
        f'runc "$@" || exit\n[ -z "$runs" ] || [ ! -e {killed} ] || {{ {kill}; }}\n'
    )
    runtime.chmod(0o755)
    containers = Containers(Podman(str(runtime)), folder=folder)
    engines.add_image(containers.engine, image_archive)
    job = task_of(folder, "unknown")
    launch = containers.prepare(job)
    name = f"proxyd-{job.attempt_id}"
    identifier = call(containers.engine, "inspect", "--format", "{{.Id}}", name).strip()
    read, write = os.pipe()
    client = subprocess.Popen(
        ["/bin/sh", "-c", 'read go; exec "$@"', "sh", *launch.argv[-6:]],
        env={**launch.env},
        stdin=read,
    )
    os.close(read)
    killed.write_text(str(client.pid))
    os.write(write, b"go\n")
    os.close(write)
    assert client.wait(20) == -signal.SIGKILL
    until_true(lambda: not killed.exists(), "its runtime is done")

    def known() -> str:
        return subprocess.check_output(["runc", "list", "--quiet"], text=True)

    state = call(containers.engine, "inspect", "--format", "{{.State.Status}}", name).strip()
    assert (state, identifier in known()) == ("created", True)
    assert (containers.running(), containers.left()) == (set(), {job.attempt_id})
    containers.clean(job.attempt_id)
    assert containers.left() == set()
    assert identifier not in known()
    until_true(lambda: not monitors(identifier), "its monitor waits for ever")


def monitors(identifier: str) -> list[Path]:
    processes = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            words = (each / "cmdline").read_bytes()
            if b"conmon" in words and identifier.encode() in words:
                processes.append(each)
    return processes


@pytest.mark.long
@pytest.mark.parametrize("kind", ["podman"])
def test_a_container_that_another_process_tries_out_is_not_swept(containers: Containers) -> None:
    """`worker check` beside a running agent also makes one; its remains are swept."""
    containers.check()
    with subprocess.Popen(["sleep", "1000"]) as other:
        attempt_id = f"trial-{other.pid}-1"
        containers._creation.create_idle(f"proxyd-{attempt_id}", trial.BOUNDS)
        try:
            assert containers.left() == set()
            other.kill()
            other.wait()
            assert containers.left() == {attempt_id}
        finally:
            other.kill()
            containers.clean(attempt_id)
    assert containers.left() == set()


def test_a_trial_that_is_ended_while_it_cleans_up_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's first signal to end may come in the middle of that."""
    signals = [SystemExit(0)]
    there: set[str] = set()

    def remove(engine: Engine, name: str) -> None:
        if signals:
            raise signals.pop()
        there.discard(name)

    monkeypatch.setattr(trial, "_problems", lambda engine, name, create: there.add(name) or [])
    monkeypatch.setattr(trial, "remove", remove)
    with pytest.raises(SystemExit):
        trial.run(Podman(), folder, lambda name, bounds: None)
    assert not there


def test_an_image_cannot_choose_its_walls(containers: Containers, task: Task, kind: str) -> None:
    """It may declare volumes, a user, a check of its health, labels, and signals."""
    name = "localhost/hostile:1"
    signals = ["STOPSIGNAL SIGUSR1"] if kind == "podman" else []  # docker imports no such line
    engines.add_image(
        containers.engine,
        engines.small_image(),
        *signals,
        *("VOLUME /data", "VOLUME /work", "USER 0", "LABEL proxyd.agent=other"),
        *('ENTRYPOINT ["/bin/sh"]', "WORKDIR /nowhere"),
        name=name,
    )
    script = 'id -u; pwd; while read line; do case $line in *" /data "*) echo $line; esac; done'
    script += " < /proc/mounts; sleep 600"
    launch = containers.prepare(replace(task, image=name, command=("-c", script)))
    child = start(launch)
    assert child.stdout is not None
    lines = [child.stdout.readline().split() for _ in range(3)]
    assert lines[:2] == [[b"65534"], [b"/work"]]
    assert lines[2][:2] == [b"tmpfs", b"/data"]
    # docker lists a container a moment after it has begun.
    until_true(lambda: containers.running() == {task.attempt_id})
    containers.stop(task.attempt_id, 0)
    child.communicate(timeout=20)
    containers.clean(task.attempt_id)
    assert call(containers.engine, "volume", "ls", "--quiet").strip() == ""


@pytest.mark.long
@pytest.mark.parametrize("volume", ["/work/x", "/inputs/x/y"])
def test_an_image_makes_no_folder_in_those_of_the_job(
    containers: Containers, task: Task, volume: str
) -> None:
    """An engine would make it as root on the disk, where an ordinary agent cannot remove it."""
    name = "localhost/hostile:2"
    engines.add_image(containers.engine, engines.small_image(), f"VOLUME {volume}", name=name)
    with pytest.raises(TaskError, match="volumes at places where none can be made") as caught:
        containers.prepare(replace(task, image=name, command=("/bin/true",)))
    assert caught.value.kind == "image"
    assert list((task.folder / "work").iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["docker"])
def test_a_job_whose_engine_crashed_is_lost_and_nothing_of_it_runs_on(
    containers: Containers, task: Task, docker_daemon: engines.DockerDaemon
) -> None:
    child = start(containers.prepare(sh(task, "echo ready; sleep 600")))
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    name = f"proxyd-{task.attempt_id}"
    pid = call(containers.engine, "inspect", "--format", "{{.State.Pid}}", name).strip()
    assert Path("/proc", pid).exists()
    docker_daemon.kill()
    child.communicate(timeout=20)
    assert containers.ended(task.attempt_id).lost
    with pytest.raises(TaskError) as caught:
        containers.running()
    assert caught.value.kind == "host"
    docker_daemon.start()
    until_true(lambda: containers.running() == set(), "the container runs on")
    assert not Path("/proc", pid).exists()
    assert containers.ended(task.attempt_id).lost
    containers.clean(task.attempt_id)


@pytest.mark.long
def test_the_resources_that_a_job_uses_are_known(containers: Containers, task: Task) -> None:
    child = start(containers.prepare(sh(task, "while :; do :; done")))
    containers.attach(task, child.pid)
    until_true(lambda: (containers.ended(task.attempt_id).cpu_seconds or 0) > 0.1, "no use of it")
    ending = containers.ended(task.attempt_id)
    assert 0 < (ending.max_memory_bytes or 0) <= BOUNDS.memory_bytes
    assert ending.lost == ""
    containers.stop(task.attempt_id, 0)
    child.communicate(timeout=20)
    assert not containers.ended(task.attempt_id).is_out_of_memory


@pytest.mark.parametrize("kind", brief(ALL_KINDS))
def test_a_check_is_met_where_the_engine_works(containers: Containers, kind: str) -> None:
    findings = containers.check()
    assert [each for each in findings if not each.is_met] == []
    assert f"{kind}-trial" in [each.id for each in findings]
    assert call(containers.engine, "ps", "--all", "--quiet").strip() == ""


class Way:
    """A way out that a test sees through: a listener in there answers a word."""

    def __init__(self) -> None:
        self.open_for: dict[str, socket.socket] = {}

    def env(self) -> dict[str, str]:
        return {"WAY": "1080"}

    def open(self, attempt_id: str, pid: int) -> None:
        listening = netns.listen_inside(pid, 1080)
        self.open_for[attempt_id] = listening
        threading.Thread(target=self._answer, args=(listening,), daemon=True).start()

    def _answer(self, listening: socket.socket) -> None:
        with listening.accept()[0] as sock:
            sock.sendall(b"a way out\n")

    def close(self, attempt_id: str) -> None:
        if attempt_id in self.open_for:
            self.open_for.pop(attempt_id).close()


@pytest.mark.long
def test_a_way_out_is_there_before_the_job_is(
    containers: Containers, task: Task, folder: Path
) -> None:
    way = Way()
    served = Containers(containers.engine, folder=folder, network=way)
    program = (
        "import os, socket; sock = socket.create_connection(('127.0.0.1', int(os.environ['WAY'])));"
        "print(sock.recv(100).decode(), socket.gethostname());"
        "print(open('/proc/net/dev').read().count(':'))"
    )
    job = replace(task, network="egress", command=("python3", "-c", program))
    started = launching.start(job, served.prepare(job))
    served.attach(job, started.pid)
    assert started.wait() == 0, started.err
    assert bytes(started.out) == b"a way out\n job\n1\n"
    served.clean(job.attempt_id)
    served.close()
    assert call(served.engine, "ps", "--all", "--quiet").strip() == ""
    assert way.open_for == {}
    with pytest.raises(TaskError, match="no network"):
        containers.prepare(job)


LISTENING = (
    "import socket; s=socket.create_server(('127.0.0.1', 80 + 8000)); s.accept()[0].sendall(b'hi')"
)


@pytest.mark.long
def test_a_port_of_a_job_is_reached_from_outside(containers: Containers, task: Task) -> None:
    job = replace(task, command=("python3", "-c", LISTENING), ports=(8080,))
    child = start(containers.prepare(job))
    containers.attach(job, child.pid)
    assert launching.reached(lambda: containers.connect(job.attempt_id, 8080)) == b"hi"
    child.communicate(timeout=20)
    assert child.returncode == 0
    containers.clean(job.attempt_id)
    with pytest.raises(ProcessLookupError):
        containers.connect(job.attempt_id, 8080)


@pytest.mark.parametrize("kind", ["gvisor"])
def test_a_kernel_of_its_own_has_unreachable_ports(containers: Containers, task: Task) -> None:
    with pytest.raises(TaskError, match="ports"):
        containers.prepare(replace(task, ports=(8080,)))
    with pytest.raises(TaskError, match="ports"):
        containers.connect(task.attempt_id, 8080)
