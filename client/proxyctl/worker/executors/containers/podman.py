"""podman: no daemon, and no root where control groups v2 are delegated to its user."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.executors.base.base import Finding
from proxyctl.worker.executors.bwrap import seccomp
from proxyctl.worker.executors.containers import engine
from proxyctl.worker.executors.containers.engine import (
    PROBE_SECONDS,
    EngineError,
    Owner,
    call,
    call_for_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOBODY: Final = 65534
_OLDEST: Final = (4, 3)  # the first whose --userns=keep-id makes the job's user its owner outside
_CONTROLLERS: Final = frozenset(("cpu", "memory", "pids"))


class Podman:
    """podman, of the user that the agent runs as.

    Args:
        runtime: the program that starts its containers; None for the one that works here.
        name: of the sandbox.
        flags: for that runtime.
        spare_processes: that the runtime itself needs in the job's group.
    """

    def __init__(
        self,
        runtime: str | None = None,
        *,
        name: str = "podman",
        flags: tuple[str, ...] = (),
        spare_processes: int = 0,
    ) -> None:
        self.name = name
        self._runtime = choose_runtime() if runtime is None else runtime
        self._flags = flags
        self._spare_processes = spare_processes

    def command(self) -> tuple[str, ...]:
        """Return the program with its runtime."""
        chosen = () if self._runtime is None else ("--runtime", self._runtime)
        flags = tuple(word for each in self._flags for word in ("--runtime-flag", each))
        return ("podman", *chosen, *flags)

    def environment(self) -> Mapping[str, str]:
        """Return all of its environment."""
        return engine.environment()

    def can_share_network(self) -> bool:
        """Return True for root."""
        # For others the network belongs to the users' namespace of the other container.
        return os.geteuid() == 0

    def can_reach_ports(self) -> bool:
        """Return True: its containers' namespaces belong to the agent's own user."""
        return True

    def options(self, *, shows_devices: bool, has_network: bool = False) -> tuple[str, ...]:
        """Return the options that keep things of the host out of a container."""
        return (
            # Its own name, or no /etc/hosts of this machine: one container cannot have both
            # options.
            *(("--hostname", "job") if has_network else ("--no-hosts",)),
            "--http-proxy=false",  # the proxies of this machine, with their passwords
            "--read-only-tmpfs=false",  # writable places that no limit is put on
            "--image-volume=ignore",
            *(() if shows_devices else ("--tmpfs", f"{engine.NO_DEVICES},notmpcopyup")),
        )

    def profile(self) -> dict[str, Any]:
        """Return the filter of system calls."""
        return seccomp.engine_profile()

    def owner(self) -> Owner:
        """Return the owner of a job's files: the agent's own user, unless that is root."""
        user = f"{_NOBODY}:{_NOBODY}"
        if os.geteuid() == 0:
            return Owner(("--user", user), _NOBODY, _NOBODY, changes_owner=True)
        mapped = f"keep-id:uid={_NOBODY},gid={_NOBODY}"
        options = ("--userns", mapped, "--user", user)
        return Owner(options, os.geteuid(), os.getegid(), changes_owner=False)

    def spare_processes(self) -> int:
        """Return the number of processes that the runtime needs."""
        return self._spare_processes

    def end_in_runtime(self, container: str) -> None:
        """Delete the container by its runtime.

        A podman that was killed while it started a container has not recorded that its runtime has
        it, with a monitor that waits for ever; one that was killed while it removed it, as little.
        """
        runtime = self._runtime
        with suppress(EngineError, OSError, subprocess.TimeoutExpired):
            if runtime is None:
                runtime = call(self, "inspect", "--format", "{{.OCIRuntime}}", container).strip()
            program = shutil.which(runtime, path=_search_path())
            if program is not None:
                subprocess.run(  # noqa: S603 - the runtime that podman itself has
                    [program, "delete", "--force", container],
                    env=dict(self.environment()),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=PROBE_SECONDS,
                    check=False,  # most containers are gone already
                )

    def needs(self) -> list[Finding]:
        """Return its needs, without starting a container."""
        program = shutil.which("podman", path=engine.environment()["PATH"])
        findings = [_program(self.name, program)]
        if program is None:
            return findings
        try:
            version = call_for_json(self, "version", "--format", "{{json .Client.Version}}")
            host = call_for_json(self, "info", "--format", "{{json .Host}}", seconds=PROBE_SECONDS)
        except EngineError as error:
            findings.append(_answer(self.name, str(error)))
            return findings
        findings.append(_version(self.name, str(version)))
        if host["security"]["rootless"]:
            findings.append(_limits(self.name, host))
        return findings


def choose_runtime() -> str | None:
    """Return the runtime that podman needs as an option here; None for podman's own choice.

    crun refuses machines that have control groups of both versions.
    """
    is_hybrid = os.path.ismount("/sys/fs/cgroup/unified")
    return "runc" if is_hybrid and shutil.which("runc", path=_search_path()) else None


def _search_path() -> str:
    return engine.environment()["PATH"]


def _program(name: str, program: str | None) -> Finding:
    return Finding(
        id=f"{name}-program",
        is_met=program is not None,
        actual=program or "there is no podman",
        needed="podman",
        why="it runs images",
        remedy="" if program else "sudo apt-get install podman uidmap",
    )


def _answer(name: str, words: str) -> Finding:
    return Finding(
        id=f"{name}-answers",
        is_met=False,
        actual=words,
        needed="a podman that works for this user",
        why="it runs images",
        remedy="run `podman info` as this user: it says what is missing",
    )


def _version(name: str, version: str) -> Finding:
    parts = version.split(".")
    numbers = tuple(int(each) for each in parts[:2] if each.isdigit())
    is_met = numbers >= _OLDEST
    return Finding(
        id=f"{name}-version",
        is_met=is_met,
        actual=f"podman {version}",
        needed=f"podman {'.'.join(map(str, _OLDEST))} or later",
        why="a job's files must belong to the agent's user",
        remedy="" if is_met else "install a later podman",
    )


def _limits(name: str, host: Mapping[str, object]) -> Finding:
    version, controllers = host.get("cgroupVersion"), host.get("cgroupControllers")
    present = frozenset(controllers) if isinstance(controllers, list) else frozenset()
    missing = sorted(_CONTROLLERS - present)
    is_met = version == "v2" and not missing
    if version != "v2":
        actual = "control groups v1, of which podman without root sets no limits"
        remedy = "start the system with systemd.unified_cgroup_hierarchy=1, or use podman as root"
    else:
        actual = f"not delegated to this user: {', '.join(missing) or 'nothing'}"
        remedy = "set Delegate=cpu memory pids in user@.service"
    return Finding(
        id=f"{name}-limits",
        is_met=is_met,
        actual="control groups v2, delegated" if is_met else actual,
        needed="control groups v2, with cpu, memory and pids delegated to this user",
        why="without them no limit of a job holds",
        remedy="" if is_met else remedy,
    )
