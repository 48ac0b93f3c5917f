"""The interface between the agent and a sandbox, and their records.

An executor makes ready and cleans up; it starts nothing. The result of the preparation is a
`Launch`, which the supervisor of the attempt starts: so a job outlives the agent and its executor.

Every method blocks, and is called from a thread. All of them may be called again after the agent
was killed at any point: the identifier of an attempt is enough to find everything that it has left
behind.
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

# Status of engines and shells for a program that is not there, or cannot be run: the buyer has
# named it.
CANNOT_BE_RUN = frozenset((126, 127))
# Beginning of bubblewrap's error line for that; its status is 1, as for any other failure.
CANNOT_BE_RUN_LINE = b"bwrap: execvp "

_FIRST_BYTES = 4096  # of bubblewrap's output before it has started anything: a line or two

# The variable with the identifier of the attempt. An executor also finds its processes by it.
LABEL = "PROXYD_ATTEMPT"


class TaskError(Exception):
    """An attempt cannot be run here.

    Args:
        kind: the word for the daemon: "host", "image", "input", "refused" or "job".
        message: for a person.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class Bounds:
    """The limits of one attempt.

    Attributes:
        cores: of processor time, in parts of a core.
        memory_bytes: of all its processes together, swap and temporary files among them.
        disk_bytes: of all it writes into its folder.
        processes: and threads, at the same time.
        seconds: from its start to its end.
    """

    cores: float
    memory_bytes: int
    disk_bytes: int
    processes: int
    seconds: int


@dataclass(frozen=True)
class Task:
    """An attempt, with the fields that an executor needs.

    Attributes:
        attempt_id: "<job_id>-<attempt>", of letters, digits, "-" and "_".
        folder: the attempt's own; `WORK` and `INPUTS` are below it.
        job_type: "script", "docker", "training" or "inference".
        image: its reference, by digest if the agent has resolved one; empty for the host's own
            programs.
        command: the program and its arguments, as seen from within.
        env: of the job alone, with its secrets.
        network: "none" or "egress".
        gpus: identifiers (UUIDs) of the GPUs granted only to this attempt.
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
    """The program that the supervisor starts, and its surroundings.

    In this order: files, gate, control groups, limits, places, user, program. The program gets
    descriptors 0 (/dev/null), 1 and 2 (pipes), those of `files` and that of `gate`, and no others:
    the job would inherit any other open descriptor. The shell of a sandbox that waits has a pipe in
    the place of /dev/null.

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
            attempt's folder: the program writes "exit-code" there once the job's program has run.
            If it never does, the sandbox could not be started, or that program not be run
            (`CANNOT_BE_RUN_LINE`). None for a program that says nothing of the kind.
        cgroups: files into which the process writes "0" before it becomes the program; if one of
            them cannot be written the attempt must not start.
        rlimits: (resource, soft, hard), set before it becomes the program.
        places: (folder, name), each mounted at `PLACES`/name, which only the program sees.
        user: of the program, and its group, if root starts it as another user.
        disk_bytes: that may be in `WORK`; the supervisor adds them up and ends the job. 0 where
            the executor sees to it by itself.
        is_asked_inside: the program would end with the job at a SIGTERM of its own, so the caller
            asks the job to end by `family.ask` instead.
        sweep_seconds: time in which the remaining processes of the program may end by themselves,
            before the supervisor kills them.
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
        """Return the launch in a result of `as_fields`."""
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
    """One line of the check list: a need of an executor, and whether it is met.

    Attributes:
        id: a short name that does not change, such as "user-namespaces".
        is_met: whether it is there.
        actual: the present state.
        needed: the needed state.
        why: the reason for the need.
        remedy: for the owner, as a command where one exists; empty when it is met.
    """

    id: str
    is_met: bool
    actual: str
    needed: str
    why: str
    remedy: str = ""


@dataclass(frozen=True)
class Ending:
    """The end or the use of an attempt beside its exit status; None for unknown values.

    Attributes:
        is_out_of_memory: a process of it was killed because it had used up its memory.
        is_out_of_disk: it was ended because it had written more than it may.
        cpu_seconds: of processor time that it has used.
        max_memory_bytes: the most that it used in one moment.
        is_unstarted: an engine has its container, or a node its walls, and has never started the
            program in it; why not, the exit status tells.
        message: for a person, if there is a message.
        client: the engine whose client the supervisor had started; empty if it started the job
            itself. No signal of the job ends a client, so a signal that ended the client proves
            nothing about the job.
        lost: the engine, or the client that was attached to it, went away, in words: its exit
            status says nothing then, and the device is to blame, not the job. Empty if that did not
            happen.
        exit_code: the exit status of the job, as the engine knows it.
    """

    is_out_of_memory: bool = False
    is_out_of_disk: bool = False
    is_unstarted: bool = False
    cpu_seconds: float | None = None
    max_memory_bytes: int | None = None
    message: str = ""
    client: str = ""
    lost: str = ""
    exit_code: int | None = None


def names_no_program(log: Path) -> bool:
    """Return whether a sandbox reports a missing program on stderr.

    For a sandbox that has started nothing: all of the lines are its own then.
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
        """Return its needs and their state; it can be used when all needs are met."""

    def prepare(self, task: Task) -> Launch:
        """Prepare an attempt, and return the launch for the supervisor.

        Raises:
            TaskError: it cannot be run here; nothing is left behind.
        """

    def attach(self, task: Task, pid: int) -> None:
        """Take up an attempt whose program has just been started, or runs since before this agent.

        Watchers and servers beside the job start here, and the gate is opened.

        Args:
            task: the prepared one.
            pid: of the program (`Launch.argv`), which the supervisor has started.

        Raises:
            TaskError: it cannot go on; the caller ends it by `stop`.
        """

    def can_reach_ports(self) -> bool:
        """Return whether `connect` works here; else `prepare` refuses a task with ports."""

    def connect(self, attempt_id: str, port: int) -> socket.socket:
        """Return a socket to a port on which a job listens, on its own 127.0.0.1.

        It does not block, and its connect is done or still under way. The caller has to check that
        the port may be reached.

        Raises:
            OSError: no program listens there (ConnectionRefusedError), or no process of the job
                runs.
            TaskError: this executor cannot do that (`can_reach_ports`).
        """

    def stop(self, attempt_id: str, grace_s: float) -> None:
        """Ask the job to end, and kill it after the grace; return when no process runs."""

    def running(self) -> set[str]:
        """Return the attempts that have a running process, also those that other agents started."""

    def left(self) -> set[str]:
        """Return the attempts that have something for `clean`, running or not.

        Raises:
            TaskError: it is unknown.
        """

    def ended(self, attempt_id: str) -> Ending:
        """Return the end or the use of an attempt, as far as known, until it is cleaned."""

    def clean(self, attempt_id: str) -> None:
        """Remove all that `prepare` and the job have left outside the attempt's folder."""

    def close(self) -> None:
        """Release everything that this agent holds of attempts, which run on; the agent ends."""
