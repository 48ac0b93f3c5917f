"""Limits by systemd: each job is a scope of the user's own manager, beside the agent's unit.

So control groups of the second version are had without root, a restart of the agent touches no job,
and the manager ends a job at its time even if nothing of ours lives any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import Bounds, Ending, Finding, TaskError
from proxyctl.worker.executors.limits.base import (
    NO_SCOPE,
    WEIGHT,
    Admission,
    attempts_of,
    group_of,
    mounts,
    require_sane,
)
from proxyctl.worker.executors.limits.cgroup2 import ending_of, kill_in, processes_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PREFIX: Final = "proxyctl-job-"
_SUFFIX: Final = ".scope"
_SLICE: Final = "proxyctl-jobs.slice"
_SECONDS: Final = 10.0  # for a question to the manager
# Added to the job's own time, so that the supervisor ends it first and reports that.
_SPARE_SECONDS: Final = 60
_TRIAL: Final = Bounds(
    cores=0.5, memory_bytes=64 << 20, disk_bytes=1 << 20, processes=16, seconds=10
)


class SystemdScopes:
    """Limits by transient scopes of `systemd --user`.

    Args:
        environ: of the agent, where the way to the manager is found.
    """

    name = "systemd"

    def __init__(self, environ: Mapping[str, str] = os.environ, *, scope: str = NO_SCOPE) -> None:
        self._scope = scope
        self._env = tuple(
            (name, environ[name])
            for name in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
            if name in environ
        )
        self._why_not: str | None = None

    def check(self) -> list[Finding]:
        """Start a scope, and read from the kernel whether it has the limits."""
        self._why_not = why_not = self._try()
        return [
            Finding(
                id="systemd-user",
                is_met=not why_not,
                actual=why_not or "scopes of systemd --user are bounded by the kernel",
                needed="systemd --user, with the controllers memory, pids and cpu",
                why="only a control group bounds what all processes of a job use together",
                remedy="sudo loginctl enable-linger $USER, and log in anew" if why_not else "",
            )
        ]

    def admit(self, attempt_id: str, bounds: Bounds) -> Admission:
        """Return the command that makes a scope and becomes the program in it."""
        require_sane(bounds)
        if self._why_not is None:
            self._why_not = self._try()
        if self._why_not:
            raise TaskError("refused", f"systemd holds no limits here: {self._why_not}")
        return Admission(prefix=_command(self._unit(attempt_id), bounds), env=self._env)

    def processes(self, attempt_id: str) -> list[int]:
        """Return the processes in an attempt's scope."""
        group = self._group(attempt_id)
        return processes_in(group) if group else []

    def kill(self, attempt_id: str) -> None:
        """End all of it."""
        group = self._group(attempt_id)
        if group:
            kill_in(group)

    def attempts(self) -> set[str]:
        """Return the attempts that have a scope."""
        shown = self._ask("list-units", "--all", "--plain", "--no-legend", f"{_PREFIX}*{_SUFFIX}")
        names = (line.split()[0] for line in shown.splitlines() if line.strip())
        groups = (name[len(_PREFIX) : -len(_SUFFIX)] for name in names if name.startswith(_PREFIX))
        return attempts_of(self._scope, groups)

    def ended(self, attempt_id: str) -> Ending:
        """Read the counters of an attempt's scope; a scope is gone with its last process."""
        group = self._group(attempt_id)
        known = ending_of(group) if group else Ending()
        result = self._ask("show", "--property=Result", "--value", self._unit(attempt_id)).strip()
        return Ending(
            is_out_of_memory=known.is_out_of_memory or result == "oom-kill",
            cpu_seconds=known.cpu_seconds,
            max_memory_bytes=known.max_memory_bytes,
        )

    def clean(self, attempt_id: str) -> None:
        """Make the manager forget a failed scope."""
        self._ask("reset-failed", self._unit(attempt_id))

    def _unit(self, attempt_id: str) -> str:
        return f"{_PREFIX}{group_of(self._scope, attempt_id)}{_SUFFIX}"

    def _group(self, attempt_id: str) -> Path | None:
        path = self._ask(
            "show", "--property=ControlGroup", "--value", self._unit(attempt_id)
        ).strip()
        top = _mounted()
        return top / path.lstrip("/") if path and top else None

    def _ask(self, *arguments: str) -> str:
        with suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(  # noqa: S603 - all of it is ours
                ("/usr/bin/systemctl", "--user", *arguments),
                env={**dict(self._env), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            ).stdout
        return ""

    def _try(self) -> str:
        if shutil.which("systemd-run") is None:
            return "there is no systemd-run"
        if _mounted() is None:
            return "no control groups of the second version are mounted"
        command = _command(f"{_PREFIX}trial-{os.getpid()}{_SUFFIX}", _TRIAL)
        try:
            trial = subprocess.run(  # noqa: S603 - all of it is ours
                (*command, "/bin/sh", "-c", "cat /proc/self/cgroup"),
                env={**dict(self._env), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if trial.returncode != 0:
            return trial.stderr.strip() or f"systemd-run ended with {trial.returncode}"
        return self._controllers()

    def _controllers(self) -> str:
        top = _mounted()
        path = self._ask("show", "--property=ControlGroup", "--value", _SLICE).strip()
        if top is None or not path:
            return f"{_SLICE} has no control group"
        try:
            there = (top / path.lstrip("/") / "cgroup.subtree_control").read_text().split()
        except OSError as error:
            return str(error)
        lacking = [each for each in ("memory", "pids", "cpu") if each not in there]
        return f"systemd --user may not use {', '.join(lacking)}" if lacking else ""


def _command(unit: str, bounds: Bounds) -> tuple[str, ...]:
    properties = (
        f"MemoryMax={bounds.memory_bytes}",
        "MemorySwapMax=0",
        f"TasksMax={bounds.processes}",
        f"CPUQuota={bounds.cores * 100:.0f}%",
        f"CPUWeight={WEIGHT}",
        f"RuntimeMaxSec={bounds.seconds + _SPARE_SECONDS}",
    )
    return (
        "/usr/bin/systemd-run",
        "--user",
        "--scope",
        "--quiet",
        f"--unit={unit}",
        f"--slice={_SLICE}",
        *(f"--property={each}" for each in properties),
        "--",
        # The way to the manager must not be in the environment of the sandbox.
        "/usr/bin/env",
        "-i",
    )


def _mounted() -> Path | None:
    return next((folder for folder, root, _ in mounts("cgroup2") if root == "/"), None)
