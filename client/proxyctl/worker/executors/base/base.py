"""What the agent asks of a sandbox, and what the two tell each other.

An executor makes ready and cleans up; it starts nothing. What it has made ready is a `Launch`,
which the supervisor of the attempt starts: so a job outlives the agent, and its executor, too.

Every method blocks, and is called from a thread. All of them may be called again after the agent
was killed at any point: what an attempt has left behind is found by its identifier alone.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from pathlib import Path

# The folder of an attempt holds these, and the supervisor's own files, which no job ever sees.
WORK = "work"  # the job's /work, the only place it can write to that is kept
INPUTS = "inputs"  # the job's /inputs, which it can only read
GATE = "gate"  # a named pipe, where a launch waits until `attach` has been called
STATUS = "status"  # a file, where a sandbox writes down how it got on
# Where a program of another user finds folders that are below one which only root may enter.
PLACES = "/mnt"

# What engines end with, like shells, where the program is not there, or cannot be run: it is its
# buyer who has named it.
CANNOT_BE_RUN = frozenset((126, 127))
# How bubblewrap begins the line that tells of that; its status is 1 as for all else.
CANNOT_BE_RUN_LINE = b"bwrap: execvp "

_FIRST_BYTES = 4096  # of what bubblewrap says before it has started anything: a line or two

# How a job learns which attempt it is, and how an executor finds again what it has started.
LABEL = "PROXYD_ATTEMPT"


class TaskError(Exception):
    """An attempt cannot be run here.

    Args:
        kind: what the daemon is told: "host", "image", "input", "refused" or "job".
        message: for the person who reads it.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class Bounds:
    """What one attempt may use.

    Attributes:
        cores: of processor time, in parts of a core.
        memory_bytes: of all its processes together, swap and temporary files among them.
        disk_bytes: of all it writes into its folder.
        processes: and threads, at once.
        seconds: from its start to its end.
    """

    cores: float
    memory_bytes: int
    disk_bytes: int
    processes: int
    seconds: int


@dataclass(frozen=True)
class Task:
    """An attempt, as an executor has to know it.

    Attributes:
        attempt_id: "<job_id>-<attempt>", of letters, digits, "-" and "_".
        folder: the attempt's own; `WORK` and `INPUTS` are below it.
        job_type: "script", "docker", "training" or "inference".
        image: its reference, by digest if the agent has resolved one; empty for the host's own
            programs.
        command: the program and its arguments, as seen from within.
        env: of the job alone, with its secrets.
        network: "none" or "egress".
        gpus: identifiers (UUIDs) of those granted, to this attempt alone.
        bounds: what it may use.
        ports: that it says it listens on.
        root: an unpacked image to run on instead of the host's programs, if there is one.
    """

    attempt_id: str
    folder: Path
    job_type: str
    command: tuple[str, ...]
    bounds: Bounds
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    network: str = "none"
    gpus: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    root: Path | None = None


@dataclass(frozen=True)
class Launch:
    """What the supervisor starts.

    In this order: files, gate, control groups, limits, places, user, program. The program gets
    descriptors 0 (/dev/null), 1 and 2 (pipes), those of `files` and that of `gate`, and no others:
    what else is open would be the job's.

    Attributes:
        argv: the program and its arguments.
        env: all of its environment; nothing of the agent's is added to it.
        cwd: where it starts.
        files: descriptors by number, each to be opened on a memory file (`memfd_create`) with these
            bytes, read from the start.
        gate: a descriptor by number, to be opened for reading and writing on the named pipe
            `GATE` in the attempt's folder; the program waits there until `Executor.attach`. None
            for no gate.
        status: a descriptor by number, to be opened for writing on the file `STATUS` in the
            attempt's folder: the program writes "exit-code" there once what it was to start has
            run. If it never does, the sandbox could not be started, or that program not be run
            (`CANNOT_BE_RUN_LINE`). None for a program that says nothing of the kind.
        cgroups: files into which the process writes "0" before it becomes the program; if one of
            them cannot be written the attempt must not start.
        rlimits: (resource, soft, hard), set before it becomes the program.
        places: (folder, name), each laid to `PLACES`/name, which nobody but the program sees.
        user: that the program is, and its group, if root starts it as somebody else.
        disk_bytes: that may be in `WORK`; the supervisor adds them up and ends the job. 0 where
            the executor sees to it by itself.
        is_asked_inside: the program would end with the job at a SIGTERM of its own, so that whoever
            asks the job to end calls `family.ask` instead.
        sweep_seconds: how long what the program leaves behind may take to end by itself, before the
            supervisor kills it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    files: Mapping[int, bytes] = field(default_factory=dict)
    gate: int | None = None
    status: int | None = None
    cgroups: tuple[str, ...] = ()
    rlimits: tuple[tuple[int, int, int], ...] = ()
    places: tuple[tuple[str, str], ...] = ()
    user: int | None = None
    disk_bytes: int = 0
    is_asked_inside: bool = False
    sweep_seconds: float = 5.0

    def as_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it; there may be secrets in it."""
        fields = asdict(self)
        fields["files"] = {
            str(number): base64.b64encode(content).decode()
            for number, content in self.files.items()
        }
        return fields

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Launch:
        """Return what `as_fields` had been made of."""
        return cls(
            argv=tuple(fields["argv"]),
            env=dict(fields["env"]),
            cwd=fields["cwd"],
            files={
                int(number): base64.b64decode(content)
                for number, content in fields["files"].items()
            },
            gate=fields["gate"],
            status=fields.get("status"),  # none by an agent before this one
            cgroups=tuple(fields["cgroups"]),
            rlimits=tuple((each[0], each[1], each[2]) for each in fields["rlimits"]),
            places=tuple((each[0], each[1]) for each in fields["places"]),
            user=fields["user"],
            disk_bytes=fields["disk_bytes"],
            is_asked_inside=fields["is_asked_inside"],
            sweep_seconds=fields["sweep_seconds"],
        )


@dataclass(frozen=True)
class Finding:
    """One line of the check list: something that an executor needs, and whether it is there.

    Attributes:
        id: a short name that does not change, such as "user-namespaces".
        is_met: whether it is there.
        actual: what is there.
        needed: what must be there.
        why: what it is needed for.
        remedy: what the owner can do, as a command where there is one; empty when it is met.
    """

    id: str
    is_met: bool
    actual: str
    needed: str
    why: str
    remedy: str = ""


@dataclass(frozen=True)
class Ending:
    """What is known of an attempt's end or use beside its exit status; None for what is not known.

    Attributes:
        is_out_of_memory: a process of it was killed because it had used up its memory.
        is_out_of_disk: it was ended because it had written more than it may.
        cpu_seconds: of processor time that it has used.
        max_memory_bytes: the most that it has used at once.
        is_unstarted: an engine has its container, or a node its walls, and has never started the
            program in it; why not, the exit status tells.
        message: for the person who reads it, if there is something to say.
        client: of which engine the supervisor had started a client, which ends by no signal of the
            job's: one that has ended it says nothing of the job. Empty if it was the job itself.
        lost: what ran it went away (the engine, or the client that was attached to it), in words:
            its exit status says nothing then, and the device is to blame, not the job. Empty if
            that did not happen.
    """

    is_out_of_memory: bool = False
    is_out_of_disk: bool = False
    is_unstarted: bool = False
    cpu_seconds: float | None = None
    max_memory_bytes: int | None = None
    message: str = ""
    client: str = ""
    lost: str = ""


def names_no_program(log: Path) -> bool:
    """Say whether a sandbox tells that the program is not there, in what it has printed to stderr.

    To be asked of one that has started nothing: all of the lines are its own then.
    """
    try:
        with log.open("rb") as file:
            lines = file.read(_FIRST_BYTES).splitlines()
    except OSError:
        return False
    return any(each.startswith(CANNOT_BE_RUN_LINE) for each in lines)


class Executor(Protocol):
    """One kind of sandbox."""

    name: str

    def check(self) -> list[Finding]:
        """Say what it needs, and whether that is there; it can be used when all of it is."""

    def prepare(self, task: Task) -> Launch:
        """Make everything ready, and return what is to be started.

        Raises:
            TaskError: it cannot be run here; nothing is left behind.
        """

    def attach(self, task: Task, pid: int) -> None:
        """Take up an attempt whose program has just been started, or runs since before this agent.

        What must be watched or served beside the job starts here, and the gate is opened.

        Args:
            task: the one that was prepared.
            pid: of the program (`Launch.argv`), which the supervisor has started.

        Raises:
            TaskError: it cannot go on; whoever called ends it by `stop`.
        """

    def can_reach_ports(self) -> bool:
        """Say whether `connect` works here; else `prepare` refuses a task with ports."""

    def connect(self, attempt_id: str, port: int) -> socket.socket:
        """Return a socket to a port on which a job listens, on its own 127.0.0.1.

        It does not block, and its connect is done or still under way. Which ports may be reached is
        for the caller to have looked up.

        Raises:
            OSError: nobody listens there (ConnectionRefusedError), or nothing of the job runs.
            TaskError: this executor cannot do that (`can_reach_ports`).
        """

    def stop(self, attempt_id: str, grace_s: float) -> None:
        """Ask the job to end, and end all of it after so many seconds; return when nothing runs."""

    def running(self) -> set[str]:
        """Return the attempts of which anything runs, whoever has started them."""

    def left(self) -> set[str]:
        """Return the attempts of which there is anything that `clean` removes, run or not.

        Raises:
            TaskError: nobody knows.
        """

    def ended(self, attempt_id: str) -> Ending:
        """Say what is known of an attempt, while it runs or after it, until it is cleaned."""

    def clean(self, attempt_id: str) -> None:
        """Remove all that `prepare` and the job have left outside the attempt's folder."""

    def close(self) -> None:
        """Let go of all that this agent holds of attempts, which run on; the agent ends."""
