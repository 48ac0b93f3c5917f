"""Limits that Slurm holds, on the node: nothing is made here, and nothing believed.

The administrator decides whether Slurm bounds a job, and the nodes may not follow Slurm's settings.
So the control groups of this process are read back from the kernel. Where they do not bound memory
and cores, this way to hold limits is not used.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import Ending, Finding, TaskError
from proxyctl.worker.executors.limits.base import (
    Admission,
    mounts,
    name_of,
    read_fields,
    read_numbers,
    require_sane,
)

if TYPE_CHECKING:
    from proxyctl.worker.executors.base.base import Bounds

UNBOUNDED: Final = 1 << 62  # control groups without a bound report more than this
# Since this kernel, processes are counted for each sandbox of a user, not only for the user.
_COUNTED_SINCE: Final = (5, 14)
_SETTING: Final = "in slurm.conf TaskPlugin=task/cgroup, and in cgroup.conf "


class SlurmGroups:
    """The groups that Slurm has put this process into.

    Args:
        memory_bytes: in the request to Slurm.
        cores: that it has given.
    """

    name = "slurm"

    def __init__(self, memory_bytes: int, cores: int) -> None:
        self._memory_bytes = memory_bytes
        self._cores = cores
        self._chain = chain_of("memory")

    def check(self) -> list[Finding]:
        """Return the limits that the kernel holds."""
        memory, both = self._memory()
        has_swap = _swap_bytes() > 0
        cores = _usable_cores()
        is_counted = os.geteuid() == 0 or _kernel() >= _COUNTED_SINCE
        return [
            _finding(
                "slurm-memory",
                memory <= self._memory_bytes,
                f"a job of Slurm may use {_amount(memory)} of memory",
                f"{_amount(self._memory_bytes)}, as was asked for",
                "ConstrainRAMSpace=yes",
            ),
            _finding(
                "slurm-swap",
                not has_swap or both <= self._memory_bytes,
                f"with swap it may use {_amount(both)}" if has_swap else "there is no swap",
                "no more than memory alone",
                "ConstrainSwapSpace=yes and AllowedSwapSpace=0",
            ),
            _finding(
                "slurm-cores",
                cores <= self._cores,
                f"a job of Slurm may use {cores} cores",
                f"{self._cores}, as were given",
                "ConstrainCores=yes",
            ),
            Finding(
                "slurm-processes",
                is_counted,
                f"Linux {platform.release()}",
                "Linux 5.14 or newer",
                "Slurm bounds no processes, and older kernels count those of all jobs together",
                "" if is_counted else "install a newer kernel on the nodes",
            ),
        ]

    def admit(self, attempt_id: str, bounds: Bounds) -> Admission:
        """Return that the limits hold."""
        name_of(attempt_id)
        require_sane(bounds)
        unmet = [each for each in self.check() if not each.is_met]
        if unmet:
            raise TaskError("refused", f"Slurm holds no limits here: {unmet[0].actual}")
        return Admission()

    def processes(self, attempt_id: str) -> list[int]:  # noqa: ARG002 - knows none
        """Return no processes: the executor finds them."""
        return []

    def kill(self, attempt_id: str) -> None:
        """Leave it to the executor, and to Slurm."""

    def attempts(self) -> set[str]:
        """Return no attempts."""
        return set()

    def ended(self, attempt_id: str) -> Ending:  # noqa: ARG002 - there is one for each job
        """Read the counters of the groups that have a bound."""
        killed, most = 0, []
        for group in self._bounded():
            for file in ("memory.oom_control", "memory.events"):
                killed += read_fields(group / file).get("oom_kill", 0)
            for file in ("memory.max_usage_in_bytes", "memory.peak"):
                most += read_numbers(group / file)
        return Ending(is_out_of_memory=killed > 0, max_memory_bytes=max(most, default=None))

    def clean(self, attempt_id: str) -> None:
        """Do nothing: nothing was made."""

    def _memory(self) -> tuple[int, int]:
        """Return the usable amounts: of memory, and of memory and swap together."""
        memory = _least(self._chain, "memory.limit_in_bytes", "memory.max")
        swap = _least(self._chain, "memory.swap.max")
        both = _least(self._chain, "memory.memsw.limit_in_bytes")
        return memory, min(both, memory + swap)

    def _bounded(self) -> list[Path]:
        """Return the groups from this process's own to the outermost that bounds this job."""
        bounded = [
            index
            for index, group in enumerate(self._chain)
            if _least([group], "memory.limit_in_bytes", "memory.max") <= self._memory_bytes
        ]
        return self._chain[: bounded[-1] + 1] if bounded else []


def chain_of(controller: str) -> list[Path]:
    """Return the control groups of this process for a controller, the innermost first."""
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    for folder, root, options in mounts("cgroup"):
        if controller in options and controller in paths and root == "/":
            return _upwards(folder, paths[controller])
    for folder, root, _ in mounts("cgroup2"):
        if "" in paths and root == "/":
            return _upwards(folder, paths[""])
    return []


def _upwards(top: Path, path: str) -> list[Path]:
    group = top / path.lstrip("/")
    return [each for each in (group, *group.parents) if each == top or top in each.parents]


def _least(groups: list[Path], *names: str) -> int:
    values = [UNBOUNDED]
    for group in groups:
        for name in names:
            with suppress(OSError, ValueError):  # "max", or no such file in the other version
                values.append(int((group / name).read_text()))
    return min(values)


def _usable_cores() -> int:
    """Return on how many cores this process may run if it tries to have them all.

    A mere preference, which its process may change, is no bound.
    """
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    usable = len(os.sched_getaffinity(0))
    with suppress(OSError):
        os.sched_setaffinity(0, before)
    return usable


def _swap_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1]) << 10
    return 0


def _kernel() -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", platform.release())[:2])


def _amount(size: int) -> str:
    return "all" if size >= UNBOUNDED else f"{size >> 20} MiB"


def _finding(name: str, is_met: bool, actual: str, needed: str, setting: str) -> Finding:
    return Finding(
        name,
        is_met,
        actual,
        needed,
        "a job may not use more of a node than it was given",
        "" if is_met else _SETTING + setting,
    )
