"""Control groups of the first version: one hierarchy for each controller.

An administrator makes the folder `GROUP` in each of them, and gives it to the agent's user (root
makes its own). Systems of the last years have the second version.
"""

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
_COUNTING: Final = "cpuacct"  # counts processor time; does without where it is not given to us
_SHARES: Final = 1024 * WEIGHT // 100  # of processor time, where others have 1,024


class Cgroup1:
    """Limits by control groups of the first version.

    Args:
        parents: the folder of all jobs by controller; by default where this machine has them.
    """

    name = "cgroup1"

    def __init__(self, parents: dict[str, Path] | None = None, *, scope: str = NO_SCOPE) -> None:
        self._scope = scope
        self._parents = find_parents() if parents is None else parents

    def check(self) -> list[Finding]:
        """Return the findings about the controllers."""
        lacking = self._lacking()
        paths = " ".join(
            str(self._parents.get(name, Path("/sys/fs/cgroup", name, GROUP))) for name in NEEDED
        )
        return [
            Finding(
                id="cgroup1",
                is_met=not lacking,
                actual="not ours: " + ", ".join(lacking) if lacking else "ours: " + paths,
                needed="folders of our own for " + ", ".join(NEEDED),
                why="only a control group bounds what all processes of a job use together",
                remedy=f"sudo mkdir -p {paths} && sudo chown -R {os.geteuid()} {paths}"
                if lacking
                else "",
            )
        ]

    def admit(self, attempt_id: str, bounds: Bounds) -> Admission:
        """Make the groups of an attempt."""
        require_sane(bounds)
        lacking = self._lacking()
        if lacking:
            raise TaskError("refused", f"no control groups of our own for {', '.join(lacking)}")
        groups = self._groups(attempt_id)
        try:
            for group in groups.values():
                make_group(group)
            _set(groups, bounds)
        except TaskError:
            self.clean(attempt_id)
            raise
        # Not "cgroup.procs": to move a process with all its threads the kernel stops every fork on
        # the machine, which takes 10 ms. The process that joins has one thread, which moves itself.
        return Admission(cgroups=tuple(str(group / "tasks") for group in groups.values()))

    def processes(self, attempt_id: str) -> list[int]:
        """Return the processes in an attempt's groups."""
        group = self._groups(attempt_id).get("pids")
        return read_numbers(group / "cgroup.procs") if group else []

    def kill(self, attempt_id: str) -> None:
        """End all of it: nothing new can be born once the bound is 0, so one round ends all."""
        group = self._groups(attempt_id).get("pids")
        if group is None:
            return
        with suppress(TaskError):  # the group is gone, and so is all that was in it
            write(group / "pids.max", 0)
        for pid in self.processes(attempt_id):
            send(pid, signal.SIGKILL, lambda each: each in self.processes(attempt_id))

    def attempts(self) -> set[str]:
        """Return the names of the present groups."""
        parent = self._parents.get("pids")
        if parent is None or not parent.is_dir():
            return set()
        return attempts_of(self._scope, (each.name for each in parent.iterdir() if each.is_dir()))

    def ended(self, attempt_id: str) -> Ending:
        """Read the counters of an attempt's groups."""
        groups = self._groups(attempt_id)
        memory = groups.get("memory")
        killed = read_fields(memory / "memory.oom_control").get("oom_kill", 0) if memory else 0
        most = read_numbers(memory / "memory.max_usage_in_bytes") if memory else []
        counting = groups.get(_COUNTING)
        used = read_numbers(counting / "cpuacct.usage") if counting else []
        return Ending(
            is_out_of_memory=killed > 0,
            cpu_seconds=used[0] / 1e9 if used else None,
            max_memory_bytes=most[0] if most else None,
        )

    def clean(self, attempt_id: str) -> None:
        """Remove an attempt's groups."""
        for group in self._groups(attempt_id).values():
            with suppress(FileNotFoundError):
                group.rmdir()

    def _groups(self, attempt_id: str) -> dict[str, Path]:
        name = group_of(self._scope, attempt_id)
        names = (*NEEDED, _COUNTING)
        return {each: self._parents[each] / name for each in names if self._is_ours(each)}

    def _lacking(self) -> list[str]:
        if os.geteuid() == 0:
            for parent in self._parents.values():
                with suppress(OSError):  # a group that cannot be made is returned as lacking
                    parent.mkdir(mode=0o755, exist_ok=True)
        return [name for name in NEEDED if not self._is_ours(name)]

    def _is_ours(self, controller: str) -> bool:
        parent = self._parents.get(controller)
        return parent is not None and os.access(parent, os.W_OK | os.X_OK)


def _set(groups: dict[str, Path], bounds: Bounds) -> None:
    memory = groups["memory"]
    with suppress(TaskError):  # only where the kernel has it; the bound itself is below
        write(memory / "memory.swappiness", 0)
    # That of memory with swap may never be the smaller one of the two, so it is lifted first.
    swap = memory / "memory.memsw.limit_in_bytes"
    if swap.exists():
        write(swap, -1)
    write(memory / "memory.limit_in_bytes", bounds.memory_bytes)
    if swap.exists():
        write(swap, bounds.memory_bytes)
    write(groups["pids"] / "pids.max", bounds.processes)
    write(groups["cpu"] / "cpu.cfs_period_us", PERIOD_MICROSECONDS)
    write(groups["cpu"] / "cpu.cfs_quota_us", int(PERIOD_MICROSECONDS * bounds.cores))
    write(groups["cpu"] / "cpu.shares", _SHARES)


def find_parents() -> dict[str, Path]:
    """Return the folder of all jobs in each hierarchy of the first version."""
    parents: dict[str, Path] = {}
    for folder, root, options in mounts("cgroup"):
        if root == "/":
            for name in (*NEEDED, _COUNTING):
                if name in options:
                    parents.setdefault(name, folder / GROUP)
    return parents
