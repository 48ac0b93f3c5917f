"""Actions that a job must not be able to do, one line each, for every kind of sandbox.

`probe` runs once inside and reports; a test for each of `EXPECTED` judges its line by `judge`. The
judging test passes the differences of its kind in `also` (an image has an /etc of its own). `BOMBS`
are programs that misbehave, each for a test of its own.
"""

import ctypes
import json
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from proxyctl.worker.executors.base.base import WORK, Bounds, Ending, Executor, Launch, Task
from support.base.waiting import until_true
from support.workers import bombs, launching

SECRET = "secret-of-the-agent-cf2a"  # in the environment of the process that starts a sandbox
OTHER_SECRET = "secret-of-another-job-77e1"
OWN_SECRET = "secret-of-this-job-19b0"  # in its environment, where it belongs
BOUNDS = Bounds(cores=1.0, memory_bytes=256 << 20, disk_bytes=64 << 20, processes=64, seconds=60)
PROBE = Path(__file__).with_name("probe.py")
PYTHON = "/usr/bin/python3"  # the host's, in sandboxes that run the host's programs

# It does not exist, it is not for this user, or the address leads nowhere.
ABSENT = frozenset(("ENOENT", "EACCES", "EPERM", "ENXIO", "ENODEV"))
REFUSED = frozenset(("EPERM", "EACCES", "ENOSYS"))
UNWRITABLE = frozenset(("EROFS", "EACCES", "EPERM", "ENOENT"))
NO_FAMILY = frozenset(("EAFNOSUPPORT", "ENOTSUP", "EPERM", "EACCES", "EPROTONOSUPPORT"))
UNREACHABLE = frozenset(("ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "EPERM", "EACCES"))
NOTHING = frozenset(("0000000000000000",))

CALLS = (
    "ptrace",
    "init_module",
    "keyctl",
    "unshare",
    "perf_event_open",
    "name_to_handle_at",
    "open_by_handle_at",
    "setns",
    "process_vm_readv",
    "kcmp",
    "bpf",
    "userfaultfd",
    "io_uring_setup",
    "open_tree",
    "fsopen",
    "pidfd_getfd",
    "mount_setattr",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "sethostname",
    "kexec_load",
    "reboot",
    "swapon",
    "settimeofday",
    "syslog",
    "quotactl",
    "add_key",
    "personality",
    "vmsplice",
    "fanotify_init",
)

BOMBS = bombs.BOMBS
X86_ALONE = ("syscall iopl", "syscall modify_ldt", "syscall x32")

EXPECTED: dict[str, frozenset[str]] = {
    **{f"syscall {name}": REFUSED for name in CALLS},
    "syscall clone3": frozenset(("ENOSYS",)),  # so that libraries fall back to clone
    "syscall iopl": REFUSED,
    "syscall modify_ldt": REFUSED,
    "syscall x32": REFUSED | {"SIGSYS"},  # engines end the process that tries
    "clone new user": REFUSED,
    "clone new net, high bits set": REFUSED,
    "fork": frozenset(("ok",)),
    "TIOCSTI": REFUSED,
    "TIOCSTI, high bits set": REFUSED,
    "mknod of a disk": REFUSED,
    "mkfifo": frozenset(("ok",)),
    **{
        f"read {path}": ABSENT
        for path in (
            "/etc/shadow",
            "/root",
            "/home",
            "/var",
            "/run",
            "/sys/kernel",
            "/sys/fs/cgroup",
            "/proc/kcore",
            "/proc/kmsg",
            "/dev/mem",
            "/dev/kmsg",
            "/dev/vda",
            "/dev/sda",
            "/dev/kvm",
            "/dev/fuse",
            "/dev/net/tun",
            "/proc/1/root/root",
        )
    },
    **{
        f"write {folder}": UNWRITABLE
        for folder in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/inputs", "/proc", "/sys")
    },
    **{
        f"open for writing {path}": UNWRITABLE
        for path in (
            "/proc/sys/kernel/core_pattern",
            "/proc/sysrq-trigger",
            "/proc/sys/vm/overcommit_memory",
            "/sys/kernel/uevent_helper",
        )
    },
    **{f"write {path}": frozenset(("ok",)) for path in ("/work", "/tmp", "/dev/shm")},
    **{
        f"connect {path}": ABSENT
        for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock")
    },
    # A file could be opened anew by its name in /proc, and the logged text be changed.
    "kind of stdout": frozenset(("pipe",)),
    "kind of stderr": frozenset(("pipe",)),
    "descriptors": frozenset(("0,1,2",)),
    **{f"socket {name}": NO_FAMILY for name in ("netlink", "packet", "alg", "vsock", "raw")},
    "connect host's loopback": UNREACHABLE,
    "connect host's address": UNREACHABLE,
    "connect metadata": UNREACHABLE,
    "connect LAN": UNREACHABLE,
    "connect internet": UNREACHABLE,
    "open ports of the host": frozenset(("0",)),
    "connect abstract": frozenset(("ECONNREFUSED", "EPERM", "EACCES")),
    "abstract sockets": frozenset(("0",)),
    "processes": frozenset(("1", "2")),
    "environments and command lines": frozenset(("read",)),
    "kill process 1": frozenset(("ok", "EPERM")),  # the kernel does not deliver it
    "kill what is outside": frozenset(("ESRCH",)),
    **{
        f"{who} {name}": values
        for who in ("status", "status of process 1")
        for name, values in (
            ("CapInh", NOTHING),
            ("CapPrm", NOTHING),
            ("CapEff", NOTHING),
            ("CapBnd", NOTHING),
            ("CapAmb", NOTHING),
            ("NoNewPrivs", frozenset(("1",))),
            ("Seccomp", frozenset(("2",))),
        )
    },
    "user": frozenset(("65534",)),
    "groups": frozenset(("", "65534")),
    "core": frozenset(("0",)),
    "hostname": frozenset(("job",)),
    "a file of 1 TB": frozenset(("EFBIG", "ENOSPC", "EDQUOT")),
    "done": frozenset(("ok",)),
}


@dataclass(frozen=True)
class Outcome:
    """One line of the probe."""

    outcome: str
    detail: str


@dataclass(frozen=True)
class Result:
    """How a program ended in a sandbox."""

    status: int
    out: str
    err: str
    ending: Ending


def require(why_not: str) -> None:
    """Skip where no sandbox can be made, or fail where the environment requires one."""
    if why_not and os.environ.get("REQUIRE_SANDBOX") == "1":
        pytest.fail(f"REQUIRE_SANDBOX=1, and there is no sandbox: {why_not}")
    if why_not:
        pytest.skip(why_not)


def lacking(executor: Executor) -> str:
    """Return why an executor cannot be used here, or nothing."""
    return "; ".join(f"{each.id}: {each.actual}" for each in executor.check() if not each.is_met)


def task(folder: Path, *command: str, **changes: Any) -> Task:
    """Return a task with small bounds."""
    (folder / WORK).mkdir(parents=True, exist_ok=True)
    plain = Task(folder.name, folder, "script", command, BOUNDS, env={"OWN": OWN_SECRET})
    return replace(plain, **changes)


def python_task(folder: Path, program: str, python: str = PYTHON, **changes: Any) -> Task:
    """Return a task that runs a program of Python."""
    made = task(folder, python, "/work/program.py", **changes)
    (folder / WORK / "program.py").write_text(program)
    return made


def probe_source(port: int) -> str:
    """Return the probe as a script for a job; the test listens at a port of all hosts for it."""
    targets = [f"host's loopback=127.0.0.1={port}", f"host's address=127.0.0.1={port}"]
    arguments = ["probe", str(os.getpid()), "", *targets]
    return f"import sys\nsys.argv = {arguments!r}\n{PROBE.read_text()}"


def reported(out: str) -> dict[str, Outcome]:
    """Return the outcomes that the probe has printed, by the names of its lines."""
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {row["name"]: Outcome(str(row["outcome"]), row["detail"]) for row in rows}


def launch(executor: Executor, job: Task) -> launching.Started:
    """Start a task as the agent and its supervisor do, by way of the launch's JSON."""
    written = json.dumps(executor.prepare(job).as_fields())
    started = launching.start(job, Launch.of_fields(json.loads(written)))
    executor.attach(job, started.pid)
    return started


def run(executor: Executor, job: Task) -> Result:
    """Run a task to its end."""
    started = launch(executor, job)
    try:
        status = started.wait()
        return Result(
            status,
            started.out.decode(errors="replace"),
            started.err.decode(errors="replace"),
            executor.ended(job.attempt_id),
        )
    finally:
        executor.clean(job.attempt_id)


def probe(
    executor: Executor,
    folder: Path,
    *,
    python: str = PYTHON,
    targets: Mapping[str, tuple[str, int]] = {},
    abstract: str = "",
    **changes: Any,
) -> dict[str, Outcome]:
    """Run the probe once, and return its report.

    Args:
        executor: that is tried.
        folder: of the attempt.
        python: within the sandbox.
        targets: servers that run outside, by name: "host's loopback", "host's address".
        abstract: the name of a Unix socket without a file, outside.
        changes: of the task.
    """
    job = python_task(folder, PROBE.read_text(), python, **changes)
    named = [f"{name}={host}={port}" for name, (host, port) in targets.items()]
    job = replace(job, command=(*job.command, str(os.getpid()), abstract, *named))
    result = run(executor, job)
    outcomes = reported(result.out)
    assert "done" in outcomes, f"the probe broke off: {result}"
    return outcomes


def judge(
    name: str,
    outcomes: Mapping[str, Outcome],
    also: Mapping[str, frozenset[str]] = {},
) -> None:
    """Assert that one line has an allowed outcome."""
    if name in X86_ALONE and platform.machine() != "x86_64":
        pytest.skip("there is no such thing on this processor")
    assert name in outcomes, f"{name}: not reported"
    outcome = outcomes[name]
    allowed = EXPECTED[name] | also.get(name, frozenset())
    assert outcome.outcome in allowed, f"{name}: {outcome}"


def as_user(uid: int, function: Callable[[], Any]) -> Any:
    """Call a function in a process of an ordinary user. Return its result by way of JSON."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: it is short
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            # A process that changed its user is no longer its own to look into, until this.
            _become_dumpable()
            with os.fdopen(writer, "w") as file:
                json.dump(function(), file)
            status = 0
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            raise
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        told = file.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the user's process failed"
    return json.loads(told)


def _become_dumpable() -> None:
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE


def remove(folder: Path) -> None:
    """Remove a folder with everything that a job has left in it, at any depth."""
    until_true(lambda: _removed(folder), f"{folder} cannot be removed")


def _removed(folder: Path) -> bool:
    if shutil.which("rm"):  # knows no limit of depth
        os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", str(folder))
    return not folder.exists()
