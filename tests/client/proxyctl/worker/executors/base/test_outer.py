"""proxyctl.worker.executors.base.outer: a job's changes in its sandbox, and its use of limits."""

import array
import ctypes
import errno
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.workers import battery

from proxyctl.worker.base import names
from proxyctl.worker.executors.base import family
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor
from proxyctl.worker.executors.limits.base import scope_of
from proxyctl.worker.executors.limits.unbounded import Unbounded
from proxyctl.worker.task.processes import Identity

UID = 61_001  # an ordinary user without a name
ROOT = Path(__file__).parents[6]

# Code for process 1 of the sandbox: prctl(PR_SET_PDEATHSIG, 0), prctl(PR_SET_NAME, "changed"), and
# pause() without end.
CODE = bytes.fromhex(
    "b89d000000bf0100000031f631d24531d24531c00f05"
    "b89d000000bf0f000000488d350b0000000f05"
    "b8220000000f05ebf7"
)
CHANGES_PROCESS_1 = f"""
import os, time
at = int(open("/proc/1/syscall").read().split()[-1], 16)
with open("/proc/1/mem", "r+b", buffering=0) as memory:
    memory.seek(at)
    memory.write(bytes.fromhex("{CODE.hex()}") + b"changed\\0")
while open("/proc/1/comm").read() != "changed\\n":
    if os.fork() == 0:  # its child becomes one of process 1, which is woken by its end
        os.fork()
        os._exit(0)
    os.wait()
print("changed", flush=True)
time.sleep(600)
"""


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder that an ordinary user can reach, as that of tests is not."""
    folder = Path(tempfile.mkdtemp(prefix="proxyctl-outer-"))
    folder.chmod(0o711)
    yield folder
    battery.remove(folder)


@pytest.fixture
def executor(top: Path) -> Iterator[BwrapExecutor]:
    made = BwrapExecutor(Unbounded(), scope=scope_of(top))
    battery.require("; ".join(each.actual for each in made.check()[:3] if not each.is_met))
    yield made
    made.close()


def test_a_job_that_changes_process_1_of_its_sandbox_ends_with_its_supervisor(
    executor: BwrapExecutor, top: Path
) -> None:
    """No process is left to end it: the agent is gone as well, so the kernel ends it."""
    if platform.machine() != "x86_64":
        pytest.skip("the code is for x86_64")
    if Path("/proc/sys/kernel/yama/ptrace_scope").exists():
        pytest.skip("Yama keeps a job from the memory of process 1")
    job = battery.python_task(top / "one", CHANGES_PROCESS_1)
    launch = executor.prepare(job)
    fields = {"launch": launch.as_fields(), "seconds": 60, "grace_s": 0, "log_bytes": 1_000_000}
    (job.folder / names.LAUNCH).write_text(json.dumps(fields))
    agent = started_agent(top, job.folder)
    out = job.folder / names.LOGS["out"]
    try:
        until_true(
            lambda: out.exists() and out.read_text() == "changed\n", lambda: printed(job.folder)
        )
        supervisor = identity(job.folder / names.BEGUN)
        program = identity(job.folder / names.RUNNING)
        found = [Identity.of(pid) for pid in family.family((program.pid,))]
        members = [each for each in found if each is not None]  # others have ended
        assert len(members) == 4  # two of bubblewrap, process 1, and the job
        end(agent)
        supervisor.send(signal.SIGKILL)
        until_true(
            lambda: not any(each.is_alive() for each in members),
            "all of the sandbox is gone",
        )
    finally:
        end(agent)
        executor.clean(job.attempt_id)


def started_agent(top: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that hands an attempt over to a supervisor, and stays."""
    program = (
        "import signal, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from proxyctl.worker.attempt.supervisors import Supervisors\n"
        "Supervisors(Path(sys.argv[2])).give(Path(sys.argv[3])); signal.pause()"
    )
    words = (sys.executable, "-c", program, str(ROOT / "client"), str(top), str(folder))
    return subprocess.Popen(words)


def end(agent: subprocess.Popen[bytes]) -> None:
    """Kill a process, unless that was done."""
    agent.kill()
    agent.wait()


def printed(folder: Path) -> str:
    """Return the output of a job on its two streams."""
    return "".join(
        (folder / name).read_text() for name in names.LOGS.values() if (folder / name).exists()
    )


def identity(path: Path) -> Identity:
    """Return the process that a file of an attempt names."""
    return Identity.of_fields(json.loads(path.read_text()))


# Takes all it can get of the objects that the kernel counts per user, prints the numbers, and keeps
# them.
USES_UP = """
import array, ctypes, os, resource, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)
watchers = 0
while libc.inotify_init1(0) >= 0:
    watchers += 1
for each in range(3, 3 + watchers):
    os.close(each)
kept = []
try:
    while True:
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        passed = array.array("i", [0] * 200)
        one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        kept += one, two
except OSError as error:
    print(error.errno, flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
value, signals = ctypes.c_void_p(0), 0
while signals < 100_000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN, value) == 0:
    signals += 1
watching = [libc.inotify_init1(0) for _ in range(watchers)]
print("taken", watchers, signals, *resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
time.sleep(600)
"""


def test_a_job_leaves_the_owner_the_objects_that_the_kernel_counts_per_user(top: Path) -> None:
    """Where the agent is an ordinary user, programs of the owner go on as before beside a job."""
    if os.geteuid() != 0:
        pytest.skip("only root can become an ordinary user")
    folder = top / "two"
    folder.mkdir()
    os.chown(folder, UID, UID)

    def by_user() -> list[object]:
        executor = BwrapExecutor(Unbounded(), scope=scope_of(top))
        battery.require("; ".join(each.actual for each in executor.check()[:3] if not each.is_met))
        job = battery.python_task(folder, USES_UP)
        started = battery.launch(executor, job)
        try:
            until_true(lambda: b"taken" in started.out, lambda: str(started.err))
            return [started.out.decode().split(), *uses_of_the_owner()]
        finally:
            executor.clean(job.attempt_id)
            started.wait()

    said, watchers, descriptor, signals = battery.as_user(UID, by_user)
    assert said[:2] == [str(errno.ETOOMANYREFS), "taken"]
    assert [int(each) for each in said[4:]] == [512, 512]
    most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    assert int(said[2]) == most // 8
    assert watchers == most - most // 8
    assert descriptor == "passed"
    assert int(said[3]) <= signals // 8


def uses_of_the_owner() -> tuple[int, str, int]:
    """Return the free watchers of files, whether descriptors can be passed, the signals allowed."""
    libc = ctypes.CDLL(None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, 1_024))  # the kernel's usual one
    watchers = []
    while (watcher := libc.inotify_init1(0)) >= 0:
        watchers.append(watcher)
    for each in watchers:
        os.close(each)
    one, two = socket.socketpair()
    with one, two:
        passed = array.array("i", [0])
        one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    return len(watchers), "passed", resource.getrlimit(resource.RLIMIT_SIGPENDING)[0]
