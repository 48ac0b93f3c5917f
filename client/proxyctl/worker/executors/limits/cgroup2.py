"""Control groups of the second version, in a folder that was given to the agent's user."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import Ending, Finding, TaskError
from proxyctl.worker.executors.base.signals import send
from proxyctl.worker.executors.limits.base import (
    GROUP,
    NO_SCOPE,
    PERIOD_MICROSECONDS,
    WEIGHT,
    Admission,
    attempts_of,
    group_of,
    make_group,
    mounts,
    read_fields,
    read_numbers,
    require_sane,
    write,
)

if TYPE_CHECKING:
    from proxyctl.worker.executors.base.base import Bounds

NEEDED: Final = ("memory", "pids", "cpu")
_AGENT: Final = "proxyctl-agent"  # a group with members has no groups below it that are bounded


class Cgroup2:
    """Limits by control groups of the second version.

    Args:
        delegated: a folder of control groups that is the agent's; by default the one that the agent
            itself is in, as a unit with `Delegate=yes` has it, or the topmost one for root.
    """

    name = "cgroup2"

    def __init__(self, delegated: Path | None = None, *, scope: str = NO_SCOPE) -> None:
        self._scope = scope
        self._delegated = find_delegated() if delegated is None else delegated
        self._is_open = False

    def check(self) -> list[Finding]:
        """Try it: open the folder for groups of jobs."""
        why_not = self._open()
        return [
            Finding(
                id="cgroup2",
                is_met=not why_not,
                actual=why_not or f"ours: {self._delegated}",
                needed="a folder of our own with " + ", ".join(NEEDED),
                why="only a control group bounds what all processes of a job use together",
                remedy="run the agent as a systemd unit with Delegate=yes" if why_not else "",
            )
        ]

    def admit(self, attempt_id: str, bounds: Bounds) -> Admission:
        """Make the group of an attempt."""
        require_sane(bounds)
        group = self._group(attempt_id)
        why_not = self._open()
        if why_not or group is None:
            raise TaskError("refused", f"no control groups of our own: {why_not}")
        try:
            make_group(group)
            set_bounds(group, bounds)
        except TaskError:
            self.clean(attempt_id)
            raise
        return Admission(cgroups=(str(group / "cgroup.procs"),))

    def processes(self, attempt_id: str) -> list[int]:
        """Return the processes in an attempt's group."""
        group = self._group(attempt_id)
        return processes_in(group) if group else []

    def kill(self, attempt_id: str) -> None:
        """End all of it."""
        group = self._group(attempt_id)
        if group:
            kill_in(group)

    def attempts(self) -> set[str]:
        """Return the names of the present groups."""
        jobs = self._jobs()
        if jobs is None or not jobs.is_dir():
            return set()
        return attempts_of(self._scope, (each.name for each in jobs.iterdir() if each.is_dir()))

    def ended(self, attempt_id: str) -> Ending:
        """Read the counters of an attempt's group."""
        group = self._group(attempt_id)
        return ending_of(group) if group else Ending()

    def clean(self, attempt_id: str) -> None:
        """Remove an attempt's group."""
        group = self._group(attempt_id)
        if group:
            with suppress(FileNotFoundError):
                group.rmdir()

    def _jobs(self) -> Path | None:
        return self._delegated / GROUP if self._delegated else None

    def _group(self, attempt_id: str) -> Path | None:
        jobs = self._jobs()
        return jobs / group_of(self._scope, attempt_id) if jobs else None

    def _open(self) -> str:
        """Make the folder of all jobs, once; return why it cannot be, or nothing."""
        top, jobs = self._delegated, self._jobs()
        if self._is_open:
            return ""
        if top is None or jobs is None:
            return "no control groups of the second version are mounted"
        try:
            there = (top / "cgroup.controllers").read_text().split()
            lacking = [each for each in NEEDED if each not in there]
            if lacking:
                return f"{top}: has no {', '.join(lacking)}"
            _move_away(top)
            for folder in (top, jobs):
                folder.mkdir(exist_ok=True)
                write(folder / "cgroup.subtree_control", " ".join(f"+{each}" for each in NEEDED))
        except (OSError, TaskError) as error:
            return str(error)
        self._is_open = True
        return ""


def _move_away(top: Path) -> None:
    """Move the members of the topmost group, the agent above all, into one below it."""
    if not (top / "cgroup.type").exists():
        return  # the root of the machine, where the rule does not hold
    members = processes_in(top)
    if members:
        (top / _AGENT).mkdir(exist_ok=True)
        for pid in members:
            write(top / _AGENT / "cgroup.procs", pid)


def set_bounds(group: Path, bounds: Bounds) -> None:
    """Write an attempt's bounds into its group.

    Raises:
        TaskError: the kernel did not take one of them.
    """
    write(group / "memory.max", bounds.memory_bytes)
    swap = group / "memory.swap.max"
    if swap.exists():
        write(swap, 0)
    write(group / "pids.max", bounds.processes)
    quota = int(PERIOD_MICROSECONDS * bounds.cores)
    write(group / "cpu.max", f"{quota} {PERIOD_MICROSECONDS}")
    write(group / "cpu.weight", WEIGHT)


def processes_in(group: Path) -> list[int]:
    """Return the processes in a group, without those in its subgroups."""
    return read_numbers(group / "cgroup.procs")


def kill_in(group: Path) -> None:
    """Kill all processes in a group."""
    try:
        write(group / "cgroup.kill", 1)
    except TaskError:  # before Linux 5.14, or the group is gone
        with suppress(TaskError):
            write(group / "pids.max", 0)
        for pid in processes_in(group):
            send(pid, signal.SIGKILL, lambda each: each in processes_in(group))


def ending_of(group: Path) -> Ending:
    """Read the counters of a group."""
    used = read_fields(group / "cpu.stat").get("usage_usec")
    most = read_numbers(group / "memory.peak")
    return Ending(
        is_out_of_memory=read_fields(group / "memory.events").get("oom_kill", 0) > 0,
        cpu_seconds=None if used is None else used / 1e6,
        max_memory_bytes=most[0] if most else None,
    )


def find_delegated() -> Path | None:
    """Return the folder that the agent is in, or the topmost one if it is root."""
    folders = [folder for folder, root, _ in mounts("cgroup2") if root == "/"]
    if not folders:
        return None
    if os.geteuid() == 0:
        return folders[0]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            own = folders[0] / line[3:].lstrip("/")
            # After a restart inside the same unit the agent may be in its leaf already.
            return own.parent if own.name == _AGENT else own
    return None
