"""docker: a daemon that is root, which the agent's user may ask for anything.

A user that may use that daemon is root on the machine, and so is the agent. Jobs never see its
socket.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.executors.base.base import Finding
from proxyctl.worker.executors.bwrap import seccomp
from proxyctl.worker.executors.containers import engine
from proxyctl.worker.executors.containers.engine import (
    PROBE_SECONDS,
    EngineError,
    Owner,
    call_for_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NOBODY: Final = 65534
_LIMITS: Final = ("MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota")
_NO_SERVER: Final = "192.0.2.1"  # an unused address of RFC 5737
_INIT: Final = "docker-init"


class Docker:
    """docker, by its client.

    Args:
        folder: where the client looks for settings; an empty one, so that it has none.
        host: address of the daemon, like "unix:///run/docker.sock"; None for the usual one.
    """

    name = "docker"

    def __init__(self, folder: Path, host: str | None = None) -> None:
        self._folder = folder
        self._host = host or os.environ.get("DOCKER_HOST")

    def command(self) -> tuple[str, ...]:
        """Return the program."""
        return ("docker",)

    def environment(self) -> Mapping[str, str]:
        """Return all of its environment; nothing of the owner's settings for the client."""
        extra = {"DOCKER_CONFIG": str(self._folder / "docker")}
        if self._host:
            extra["DOCKER_HOST"] = self._host
        return engine.environment(extra)

    def can_share_network(self) -> bool:
        """Return True."""
        return True

    def can_reach_ports(self) -> bool:
        """Return True for root, which owns the containers' namespaces."""
        return os.geteuid() == 0

    def options(self, *, shows_devices: bool, has_network: bool = False) -> tuple[str, ...]:
        """Return the options that keep things of the host out of a container."""
        # Docker copies the name servers of this machine into the container, unless one is set.
        has_init = shutil.which(_INIT, path=engine.environment()["PATH"]) is not None
        init = ("--init",) if has_init else ()
        devices = () if shows_devices else ("--tmpfs", engine.NO_DEVICES)
        names = () if has_network else ("--dns", _NO_SERVER)
        return (*names, *init, *devices)

    def profile(self) -> dict[str, Any]:
        """Return the filter of system calls."""
        return seccomp.engine_profile()

    def owner(self) -> Owner:
        """Return the owner of a job's files: the agent's own user, unless that is root."""
        if os.geteuid() == 0:
            return Owner(("--user", f"{_NOBODY}:{_NOBODY}"), _NOBODY, _NOBODY, changes_owner=True)
        user = f"{os.geteuid()}:{os.getegid()}"
        return Owner(("--user", user), os.geteuid(), os.getegid(), changes_owner=False)

    def spare_processes(self) -> int:
        """Return the one that hands signals on."""
        return 1

    def end_in_runtime(self, container: str) -> None:
        """Do nothing: docker's daemon finds its containers again after a crash."""

    def needs(self) -> list[Finding]:
        """Return its needs, without starting a container."""
        program = shutil.which("docker", path=engine.environment()["PATH"])
        findings = [_program(program)]
        if program is None:
            return findings
        try:
            info = call_for_json(self, "info", "--format", "{{json .}}", seconds=PROBE_SECONDS)
        except EngineError as error:
            findings.append(_answer(str(error)))
            return findings
        if not info.get("ServerVersion"):
            findings.append(_answer("; ".join(info.get("ServerErrors") or ["no answer"])))
            return findings
        findings += [_rooted(info), _limits(info)]
        return findings


def _program(program: str | None) -> Finding:
    return Finding(
        id="docker-program",
        is_met=program is not None,
        actual=program or "there is no docker",
        needed="docker's client",
        why="it runs images",
        remedy="" if program else "sudo apt-get install docker.io, or use podman",
    )


def _answer(words: str) -> Finding:
    return Finding(
        id="docker-answers",
        is_met=False,
        actual=words,
        needed="a docker daemon that this user may talk to",
        why="it runs images",
        remedy="sudo systemctl start docker, and sudo usermod -aG docker USER (who is root then)",
    )


def _rooted(info: Mapping[str, object]) -> Finding:
    options = info.get("SecurityOptions")
    is_rootless = isinstance(options, list) and "name=rootless" in options
    return Finding(
        id="docker-root",
        is_met=not is_rootless,
        actual="a daemon without root" if is_rootless else "a daemon that is root",
        needed="a daemon that is root",
        why="a job's files would belong to nobody that the agent can be",
        remedy="use podman, which needs no root" if is_rootless else "",
    )


def _limits(info: Mapping[str, object]) -> Finding:
    missing = [each for each in _LIMITS if not info.get(each)]
    return Finding(
        id="docker-limits",
        is_met=not missing,
        actual=f"it cannot set: {', '.join(missing)}" if missing else "it can set every limit",
        needed=", ".join(_LIMITS),
        why="without them no limit of a job holds",
        remedy="start the system with cgroup_enable=memory swapaccount=1" if missing else "",
    )
