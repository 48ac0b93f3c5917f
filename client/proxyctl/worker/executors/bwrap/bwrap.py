"""Jobs under bubblewrap: namespaces of their own, made by an ordinary user, on the host's programs.

A job has the host's `/usr` and its inputs to read, `/work` to write, an empty `/tmp`, a network
with only a loopback of its own, and no privileges. bubblewrap is its process 1, and once more
around that (`outer.py`). bubblewrap reads its arguments from a memory file, so that neither the job
nor others on the machine can read the job's secrets or the agent's folders in a command line.

Started by root, a job is an ordinary user all the same, another one for each attempt: a job that is
root in its own namespaces would be the owner of root's files outside of them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import (
    INPUTS,
    LABEL,
    PLACES,
    WORK,
    Ending,
    Finding,
    Launch,
    Task,
    TaskError,
)
from proxyctl.worker.executors.base.devices import gpu_nodes
from proxyctl.worker.executors.base.family import (
    BIRTH_SECONDS,
    STEP_SECONDS,
    family,
    first_process,
    is_first,
    is_inside,
    is_outside,
    user_of,
)
from proxyctl.worker.executors.base.gate import make_gate, open_gate
from proxyctl.worker.executors.base.outer import around
from proxyctl.worker.executors.base.ownership import FIRST_UID, UIDS, give_away, uid_of
from proxyctl.worker.executors.base.signals import send
from proxyctl.worker.executors.bwrap import seccomp
from proxyctl.worker.executors.bwrap.netns import Spaces
from proxyctl.worker.executors.bwrap.syscalls import ARCHITECTURES
from proxyctl.worker.executors.limits.base import NO_SCOPE, name_of, rlimits_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from proxyctl.worker.executors.bwrap.egress import Egress
    from proxyctl.worker.executors.limits.base import Admission, LimitHolder

PROGRAM: Final = "/usr/bin/bwrap"
NOBODY: Final = 65534  # within; outside it is the agent's user, or one of its own
SCOPE_LABEL: Final = "PROXYD_AGENT"  # beside the label: whose attempt it is

TMP_SHARE: Final = 4  # /tmp holds a quarter of the job's memory, which it is a part of
SHM_SHARE: Final = 2  # /dev/shm half: data loaders of training exchange data there
KILL_SECONDS: Final = 10.0  # until all processes are gone after SIGKILL; longer means a sick kernel

# Descriptors of a launch.
_ARGS, _SECCOMP, _GATE, _PASSWD, _GROUP, _STATUS = 10, 11, 12, 13, 14, 15
_PASSWD_FILE: Final = b"job:x:65534:65534::/work:/bin/sh\n"
_GROUP_FILE: Final = b"job:x:65534:\n"
# Of /etc, the files that programs need to start and to know certificates; nothing that tells of the
# owner.
_ETC: Final = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
)
# Of /usr, the administrator's configuration of the device: programs keep tokens there.
_HIDDEN: Final = "/usr/local/etc"
_OWN: Final = frozenset(("proc", "dev", "sys", "tmp", "work", "inputs", "run"))
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"

# The program of a sandbox that waits: a shell, which reads the job's program from its standard
# input and becomes it.
_WAITING: Final = ("/bin/sh",)
# Variables that mean something to a shell, so that it cannot pass each value on; of an unknown
# locale some shells warn.
_OF_SHELLS: Final = re.compile(
    "BASH.*|COMP_.*|DIRSTACK|EPOCH.*|E?UID|FUNCNAME|GROUPS|HISTCMD|IFS|LC_.*|LINENO|OLDPWD|OPT.*"
    "|PATH|POSIXLY_CORRECT|PPID|PS[0-9]|PWD|S?RANDOM|SECONDS|SHELLOPTS|SHLVL|_"
)

# Root's way, if systemd holds the limits: `PLACES`, which the job's user can reach, in spite of the
# agent's private folders. Otherwise the supervisor does the same, without a program for each step.
# The arguments are: folder, name, and so on, "--", the program.
_AS_ROOT: Final = """
set -e
/bin/mount -t tmpfs -o mode=0755,nosuid,nodev,size=64k none /mnt
while test "$1" != --; do
    /bin/mkdir "/mnt/$2"
    /bin/mount --bind "$1" "/mnt/$2"
    shift 2
done
shift
unset PWD OLDPWD
exec "$@"
"""

_APPARMOR: Final = """\
sudo tee /etc/apparmor.d/bwrap >/dev/null <<'EOF'
abi <abi/4.0>,
include <tunables/global>
profile bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
}
EOF
sudo systemctl reload apparmor"""


class BwrapExecutor:
    """Jobs under bubblewrap.

    Args:
        network: gives jobs a way out; None if the owner does not want that.
        scope: of the agent: jobs of other agents are not touched.
    """

    name = "bwrap"

    def __init__(
        self,
        limits: LimitHolder,
        network: Egress | None = None,
        *,
        program: str = PROGRAM,
        scope: str = NO_SCOPE,
    ) -> None:
        self._scope = scope
        self._limits = limits
        self._network = network
        self._program = program
        self._spaces = Spaces()

    def check(self) -> list[Finding]:
        """Return whether a job could run, by running one that does nothing."""
        findings = [_check_processor(), self._check_program()]
        if all(each.is_met for each in findings):
            findings.append(self._check_namespaces())
        return findings + self._limits.check()

    def prepare(self, task: Task) -> Launch:
        """Make the folders and the limits, and return bubblewrap's command."""
        name_of(task.attempt_id)
        self._require_possible(task)
        machine = seccomp.architecture()
        is_root = os.geteuid() == 0
        places = _places(task, is_root=is_root)
        nodes = gpu_nodes(task.gpus)
        _make_folders(task, uid_of(task.attempt_id) if is_root else None)
        admission = self._limits.admit(task.attempt_id, task.bounds)
        arguments = [*_walls(), *_root(task, places), *_places_within(task, places)]
        arguments += _gpus(nodes)
        arguments += _environment({**self._env(task), **task.env, **_gpu_env(task.gpus)})
        gate = _GATE if task.network == "egress" else None
        arguments += ["--seccomp", str(_SECCOMP), "--chdir", "/work"]
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/"]
        arguments += ["--json-status-fd", str(_STATUS)]
        if gate is not None:
            arguments += ["--block-fd", str(gate)]
        # A program that makes the limits needs root's rights, so it comes first.
        is_within = is_root and not admission.prefix
        before = admission.prefix if not is_root or is_within else _before(task, admission)
        return Launch(
            argv=(*before, *self._command(task)),
            env=dict(admission.env),
            files={
                _ARGS: b"".join(each.encode() + b"\0" for each in arguments),
                _SECCOMP: seccomp.program(machine),
                _PASSWD: _PASSWD_FILE,
                _GROUP: _GROUP_FILE,
            },
            gate=gate,
            status=_STATUS,
            cgroups=admission.cgroups,
            rlimits=rlimits_of(task.bounds),
            places=_folders(task) if is_within else (),
            user=uid_of(task.attempt_id) if is_within else None,
            disk_bytes=task.bounds.disk_bytes,
            is_asked_inside=True,
        )

    def ahead(self, task: Task) -> Launch | None:
        """Prepare a sandbox that waits for its program, which `orders` names later.

        Returns:
            Its launch; None if the manager of the limits would count the seconds of its wait.

        Raises:
            TaskError: as `prepare`.
        """
        launch = self.prepare(replace(task, command=_WAITING))
        return launch if launch.argv[0] == self._program else None

    def orders(self, task: Task, attempt_id: str) -> str | None:
        """Return the orders for a sandbox of `ahead` to run a task; None if it cannot.

        Such a sandbox has no network, GPU or image, and a program that is missing would be the
        failure of its shell.

        Raises:
            TaskError: the task is impossible, as in `prepare`.
        """
        self._require_possible(task)
        is_plain = task.network == "none" and task.root is None and not task.gpus
        if not is_plain or not _is_in_path(task.command[0]):
            return None
        if any(map(_OF_SHELLS.fullmatch, task.env)):
            return None
        env = {**task.env, LABEL: attempt_id}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
        return "\n".join((*lines, f"exec {shlex.join(task.command)} </dev/null\n"))

    def attach(self, task: Task, pid: int) -> None:
        """Serve the network of a job, and let the job begin."""
        if task.network != "egress":
            return
        if self._network is None:
            raise TaskError("refused", "the owner of this device gives jobs no network")
        self._network.open(task.attempt_id, first_process(pid))
        open_gate(task.folder)

    def can_reach_ports(self) -> bool:
        """Return True."""
        return True

    def connect(self, attempt_id: str, port: int) -> socket.socket:
        """Connect from within the job's network namespace."""
        return self._spaces.connect(attempt_id, port, lambda: self._first(attempt_id))

    def stop(self, attempt_id: str, grace_s: float) -> None:
        """Send SIGTERM to all of the job, and SIGKILL to the rest after the grace."""
        if grace_s > 0:
            for pid in self._processes(attempt_id):
                if is_inside(pid):
                    send(pid, signal.SIGTERM, lambda each: each in self._processes(attempt_id))
            _until(lambda: not self._processes(attempt_id), grace_s)
        self._kill(attempt_id)
        if not _until(lambda: not self._processes(attempt_id), KILL_SECONDS):
            raise TaskError("host", f"attempt {attempt_id}: its processes do not end")
        self._spaces.forget(attempt_id)
        if self._network is not None:
            self._network.close(attempt_id)

    def running(self) -> set[str]:
        """Return the attempts that have a process."""
        return {
            *(each for each in self._limits.attempts() if self._limits.processes(each)),
            *self._sandboxes(),
        }

    def left(self) -> set[str]:
        """Return the attempts that have a process, or a control group."""
        return {*self._limits.attempts(), *self._sandboxes()}

    def ended(self, attempt_id: str) -> Ending:
        """Return the counts of the limits; the supervisor counts the disk."""
        return self._limits.ended(attempt_id)

    def clean(self, attempt_id: str) -> None:
        """Remove the limits; processes that still run are ended first."""
        self.stop(attempt_id, 0)
        self._limits.clean(attempt_id)

    def close(self) -> None:
        """Close the namespaces; the maker of the way out closes it, and the jobs run on."""
        self._spaces.close()

    def _command(self, task: Task) -> tuple[str, ...]:
        label = ("--setenv", SCOPE_LABEL, self._scope, "--setenv", LABEL, task.attempt_id)
        inner = (self._program, "--args", str(_ARGS), *label, "--", *task.command)
        return (*around(self._program), *inner)

    def _env(self, task: Task) -> dict[str, str]:
        env = {"PATH": _PATH, "HOME": "/work", "LANG": "C.UTF-8"}
        if task.network == "egress" and self._network is not None:
            env.update(self._network.env())
        return env

    def _require_possible(self, task: Task) -> None:
        if task.image and task.root is None:
            raise TaskError("refused", "bubblewrap runs no images; podman or docker does")
        if not task.command or not all(task.command):
            raise TaskError("job", "there is no program to run")
        if any("\0" in each for each in (*task.command, *task.env, *task.env.values())):
            raise TaskError("job", "a program, argument or variable with a NUL in it")
        for name in task.env:
            if not _NAME.fullmatch(name) or name in (LABEL, SCOPE_LABEL):
                raise TaskError("job", f"no name for a variable: {name!r}")
        if task.network not in ("none", "egress"):
            raise TaskError("refused", f"no such network: {task.network!r}")
        if task.network == "egress" and self._network is None:
            raise TaskError("refused", "the owner of this device gives jobs no network")

    def _kill(self, attempt_id: str) -> None:
        # When process 1 of a namespace ends, the kernel ends all its processes; the group has the
        # processes that are in none yet.
        for pid in self._processes(attempt_id):
            if not is_inside(pid):
                send(pid, signal.SIGKILL, lambda each: each in self._processes(attempt_id))
        self._limits.kill(attempt_id)

    def _processes(self, attempt_id: str) -> list[int]:
        known = self._limits.processes(attempt_id)
        return known or family(self._sandboxes().get(attempt_id, ()))

    def _first(self, attempt_id: str) -> int | None:
        """Return process 1 inside the job's sandbox."""
        processes = self._processes(attempt_id)
        return next((each for each in processes if is_first(Path("/proc", str(each)))), None)

    def _sandboxes(self) -> dict[str, list[int]]:
        """Return the outermost processes of sandboxes by attempt.

        The words of a job prove nothing, nor do those of another user: only processes of ours that
        are in no namespace but the machine's count.
        """
        sandboxes: dict[str, list[int]] = {}
        for folder in Path("/proc").iterdir():
            attempt_id = _label_of(folder, self._scope) if folder.name.isdecimal() else ""
            if attempt_id and _is_user_of_ours(user_of(folder)):
                pid = int(folder.name)
                if is_outside(pid):
                    sandboxes.setdefault(attempt_id, []).append(pid)
        return sandboxes

    def _check_program(self) -> Finding:
        path = shutil.which(self._program)
        options = _output(path, "--help") if path else ""
        is_new = "--disable-userns" in options
        actual = _output(path, "--version").strip() if path else "not installed"
        return Finding(
            id="bubblewrap",
            is_met=is_new,
            actual=actual,
            needed="bubblewrap 0.8 or newer",
            why="it builds the walls around a job",
            remedy="" if is_new else "sudo apt-get install bubblewrap",
        )

    def _check_namespaces(self) -> Finding:
        arguments = [*_walls(), "--ro-bind", "/usr", "/usr", *_host_links(Path("/"))]
        arguments += ["--proc", "/proc", "--dev", "/dev", "--", "/bin/true"]
        user = _as_user(FIRST_UID) if os.geteuid() == 0 else ()
        try:
            trial = subprocess.run(  # noqa: S603 - all of it is ours
                (*user, *around(self._program), self._program, *arguments),
                env={},
                capture_output=True,
                text=True,
                timeout=BIRTH_SECONDS,
                check=False,
            )
            said = trial.stderr.strip() if trial.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        return Finding(
            id="user-namespaces",
            is_met=not said,
            actual=said or "a sandbox starts",
            needed="user namespaces for ordinary users, and an unmasked /proc",
            why="bubblewrap makes its walls of them, without root",
            remedy=remedy_for_namespaces(said) if said else "",
        )


def _folders(task: Task) -> tuple[tuple[str, str], ...]:
    """Return the attempt's folders, and their names in `PLACES`."""
    folders = [(str(task.folder / WORK), WORK), (str(task.folder / INPUTS), INPUTS)]
    if task.root is not None:
        folders.append((str(task.root), "root"))
    return tuple(folders)


def _before(task: Task, admission: Admission) -> tuple[str, ...]:
    """Return the words before bubblewrap's command, for a start by root."""
    return (
        *admission.prefix,
        *("/usr/bin/unshare", "--mount", "--", "/bin/sh", "-c", _AS_ROOT, "sh"),
        *(each for folder in _folders(task) for each in folder),
        "--",
        *_as_user(uid_of(task.attempt_id)),
    )


def _as_user(uid: int) -> tuple[str, ...]:
    """Return the words before a program that root starts as another user."""
    name = str(uid)
    return ("/usr/bin/setpriv", "--reuid", name, "--regid", name, "--clear-groups", "--")


def _is_in_path(program: str) -> bool:
    """Return whether a program is in a folder that each sandbox shows.

    No other path is looked up: by its failure, a job would learn whether the device has that file.
    """
    folder, _, name = program.rpartition("/")
    return (not folder or folder in _PATH.split(":")) and (
        shutil.which(name, path=folder or _PATH) is not None
    )


def _is_user_of_ours(uid: int) -> bool:
    own = os.geteuid()
    return uid == own or (own == 0 and FIRST_UID <= uid < FIRST_UID + UIDS)


def _walls() -> list[str]:
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns"),
        *("--die-with-parent", "--new-session", "--clearenv"),
        *("--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "job"),
    ]


def _places(task: Task, *, is_root: bool) -> dict[str, str]:
    """Return where bubblewrap finds the attempt's folders."""
    top = Path(PLACES) if is_root else task.folder
    root = "" if task.root is None else f"{PLACES}/root" if is_root else str(task.root)
    return {WORK: str(top / WORK), INPUTS: str(top / INPUTS), "root": root}


def _root(task: Task, places: dict[str, str]) -> list[str]:
    """Return the programs that the job sees: the host's, or those of an image."""
    files = ["--ro-bind-data", str(_PASSWD), "/etc/passwd", "--ro-bind-data", str(_GROUP)]
    files += ["/etc/group"]
    if task.root is None:
        shared = [each for path in _ETC for each in ("--ro-bind-try", path, path)]
        return [
            *("--ro-bind", "/usr", "/usr"),
            *_without(_HIDDEN),
            *_host_links(Path("/")),
            "--dir",
            "/etc",
            *shared,
            *files,
        ]
    arguments: list[str] = []
    for entry in sorted(task.root.iterdir()):
        if entry.name in _OWN:
            continue
        if entry.is_symlink():
            arguments += ["--symlink", str(entry.readlink()), f"/{entry.name}"]
        else:
            arguments += ["--ro-bind", f"{places['root']}/{entry.name}", f"/{entry.name}"]
    return arguments


def _without(folder: str) -> tuple[str, ...]:
    """Return the arguments that show a job an empty folder in the place of the host's."""
    if not Path(folder).is_dir():
        return ()
    return ("--perms", "0755", "--size", "4096", "--tmpfs", folder, "--remount-ro", folder)


def _host_links(top: Path) -> list[str]:
    """Return /bin, /lib and so on as the host has them: links into /usr, or folders."""
    arguments: list[str] = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = top / name
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), f"/{name}"]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), f"/{name}"]
    return arguments


def _places_within(task: Task, places: dict[str, str]) -> list[str]:
    memory = task.bounds.memory_bytes
    return [
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", str(memory // SHM_SHARE), "--tmpfs", "/dev/shm"),  # noqa: S108 - the job's own
        *("--perms", "1777", "--size", str(memory // TMP_SHARE), "--tmpfs", "/tmp"),  # noqa: S108 - the job's own
        *("--bind", places[WORK], "/work", "--ro-bind", places[INPUTS], "/inputs"),
    ]


def _gpus(nodes: Iterable[str]) -> list[str]:
    arguments = [each for node in nodes for each in ("--dev-bind", node, node)]
    # The driver finds its cards there; without it CUDA does not begin.
    return [*arguments, "--ro-bind", "/sys", "/sys"] if arguments else []


def _gpu_env(uuids: tuple[str, ...]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)} if uuids else {}


def _environment(env: dict[str, str]) -> list[str]:
    return [each for name, value in env.items() for each in ("--setenv", name, value)]


def _make_folders(task: Task, uid: int | None) -> None:
    try:
        for name in (WORK, INPUTS):
            (task.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if task.network == "egress":
            make_gate(task.folder)
    except OSError as error:
        raise TaskError("host", f"the folder of an attempt could not be made: {error}") from None
    if uid is not None:
        for name in (WORK, INPUTS):  # in which no job has run yet
            give_away(task.folder / name, uid, uid)


def _label_of(folder: Path, scope: str) -> str:
    """Return the agent's attempt that a command line of bubblewrap names, or nothing."""
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
        index = words.index(LABEL.encode())
        is_ours = words[words.index(SCOPE_LABEL.encode()) + 1] == scope.encode()
    except (OSError, ValueError, IndexError):
        return ""
    return words[index + 1].decode(errors="replace") if is_ours else ""


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(STEP_SECONDS)
    return True


def _check_processor() -> Finding:
    try:
        actual, is_met = seccomp.architecture(), True
    except TaskError as error:
        actual, is_met = error.message, False
    return Finding(
        id="processor",
        is_met=is_met,
        actual=actual,
        needed=" or ".join(ARCHITECTURES),
        why="the filter of system calls is written for these",
        remedy="" if is_met else "none: jobs of others cannot be walled in on this processor",
    )


def _output(*command: str) -> str:
    try:
        return subprocess.run(  # noqa: S603 - a program that was found, and ours to ask
            command, env={}, capture_output=True, text=True, timeout=BIRTH_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def remedy_for_namespaces(said: str) -> str:
    """Return the command that gives ordinary users namespaces, or other advice.

    Args:
        said: the error without them.
    """
    with suppress(OSError):
        path = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
        if path.read_text().strip() == "1":
            return _APPARMOR
    if "mount proc" in said:
        return "run the agent outside of containers, and in a unit that does not mask /proc"
    return "sudo sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
