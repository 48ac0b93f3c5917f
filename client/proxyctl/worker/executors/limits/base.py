"""The interface of the executors to the mechanism that limits jobs."""

from __future__ import annotations

import hashlib
import os
import re
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.base.outer import user_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proxyctl.worker.executors.base.base import Bounds, Ending, Finding

GROUP: Final = "proxyctl-jobs"  # the folder of all jobs, in each hierarchy of control groups
MEMORY_MIN_BYTES: Final = 16 << 20  # for an interpreter and the sandbox itself
PROCESSES_MIN: Final = 8  # the sandbox's own three, and some for the job
# A job has 10, and every program of the owner has 100, also the agent, which must stay responsive.
WEIGHT: Final = 10
PERIOD_MICROSECONDS: Final = 100_000  # the kernel's own
FILES_MAX: Final = 4096  # descriptors of one process; servers and notebooks need no more
# Each sandbox writes a few lines under the same bound before the job's program runs. With less it
# does not start, and the device is blamed for a buyer's small `disk_gb`.
FILE_MIN_BYTES: Final = 64 << 10
# Whose attempts they are; agents with other folders on one machine do not touch one another's
# attempts.
NO_SCOPE: Final = "agent"
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Admission:
    """How a program gets under its limits.

    Attributes:
        prefix: put before the program and its arguments.
        cgroups: files that its process writes "0" into before it becomes the program.
        env: for the prefix; it starts the program with an empty environment.
    """

    prefix: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


class LimitHolder(Protocol):
    """One way to make the kernel hold a job's bounds."""

    name: str

    def check(self) -> list[Finding]:
        """Return its needs and their state."""

    def admit(self, attempt_id: str, bounds: Bounds) -> Admission:
        """Make the limits of an attempt, and return how its program gets under them.

        Raises:
            TaskError: they cannot be held; nothing is left behind.
        """

    def processes(self, attempt_id: str) -> list[int]:
        """Return the processes under the limits of an attempt."""

    def kill(self, attempt_id: str) -> None:
        """Kill all processes under the limits of an attempt."""

    def attempts(self) -> set[str]:
        """Return the attempts that have limits here, also those of other agents."""

    def ended(self, attempt_id: str) -> Ending:
        """Return the use of an attempt, and whether its memory ran out."""

    def clean(self, attempt_id: str) -> None:
        """Remove the limits of an attempt under which nothing runs any more."""


def name_of(attempt_id: str) -> str:
    """Return the identifier, which may now stand in a path.

    Raises:
        TaskError: the text is no identifier.
    """
    if not _ATTEMPT.fullmatch(attempt_id):
        raise TaskError("refused", f"no identifier of an attempt: {attempt_id!r}")
    return attempt_id


def scope_of(folder: Path) -> str:
    """Return a short name of an agent, by its folder; another agent has another one."""
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]


def group_of(scope: str, attempt_id: str) -> str:
    """Return the group name of an attempt, which is unique among all agents.

    Raises:
        TaskError: the attempt has no identifier that could stand in a path.
    """
    return f"{scope}.{name_of(attempt_id)}"


def attempts_of(scope: str, groups: Iterable[str]) -> set[str]:
    """Return the attempts of one agent among the names of groups."""
    start = f"{scope}."
    return {each[len(start) :] for each in groups if each.startswith(start)}


def require_sane(bounds: Bounds) -> None:
    """Refuse bounds under which nothing could run.

    Raises:
        TaskError: the bound that is too small.
    """
    for name, value, least in (
        ("cores", bounds.cores, 0.01),
        ("bytes of memory", bounds.memory_bytes, MEMORY_MIN_BYTES),
        ("bytes of disk", bounds.disk_bytes, 1),
        ("processes", bounds.processes, PROCESSES_MIN),
    ):
        if value < least:
            raise TaskError("refused", f"a job needs at least {least} {name}, and has {value}")


def file_bytes_of(bounds: Bounds) -> int:
    """Return the largest size of one file; all files together have `disk_bytes`, added up."""
    return max(bounds.disk_bytes, FILE_MIN_BYTES)


def rlimits_of(bounds: Bounds) -> tuple[tuple[int, int, int], ...]:
    """Return the limits of each process alone: a belt beside the group's.

    They bound the resources that no control group bounds: the size of a file (a sparse one costs
    nothing until it is read back), descriptors, dumps of memory, which would hold secrets, and the
    resources that the kernel counts per user.
    """
    size = file_bytes_of(bounds)
    most = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: size, resource.RLIMIT_NOFILE: FILES_MAX}
    most.update(user_limits())
    limits = []
    for limit, value in most.items():
        hard = resource.getrlimit(limit)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        limits.append((limit, bound, bound))
    return tuple(limits)


def make_group(folder: Path) -> None:
    """Make a control group; it may be there.

    Raises:
        TaskError: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise TaskError("host", f"limits: {folder} could not be made: {error}") from None


def write(path: Path, value: object) -> None:
    """Write one value into a file of a control group.

    Raises:
        TaskError: the kernel did not take it, so this limit cannot be held.
    """
    try:
        # One write, unbuffered: the kernel answers each of them.
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TaskError("host", f"limits: {path}: {value} was not taken: {error}") from None


def read_numbers(path: Path) -> list[int]:
    """Return the numbers of a file, one a line; none when it is gone."""
    try:
        return [int(line) for line in path.read_text().split()]
    except (OSError, ValueError):
        return []


def read_fields(path: Path) -> dict[str, int]:
    """Return the "name number" lines of a file; none when it is gone."""
    fields = {}
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            fields[name] = int(value)
    return fields


def mounts(kind: str) -> list[tuple[Path, str, frozenset[str]]]:
    """Return where file systems of a kind are mounted: (folder, root within it, options)."""
    rows = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields, what = left.split(), right.split()
        if what[0] == kind:
            rows.append((Path(fields[4]), fields[3], frozenset(what[2].split(","))))
    return rows
