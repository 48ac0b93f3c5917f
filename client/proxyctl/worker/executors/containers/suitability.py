"""Whether an engine can wall jobs in on this machine: its needs, and the trial of a container."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from proxyctl.worker.executors.base.base import Finding, TaskError
from proxyctl.worker.executors.base.family import is_alive
from proxyctl.worker.executors.containers import trial

if TYPE_CHECKING:
    from proxyctl.worker.executors.containers.creation import Creation
    from proxyctl.worker.executors.containers.engine import Engine


class Suitability:
    """Checks an engine, and keeps the findings."""

    def __init__(self, engine: Engine, creation: Creation, folder: Path) -> None:
        self._engine = engine
        self._creation = creation
        self._folder = folder
        self._findings: list[Finding] | None = None
        self._checking = threading.Lock()

    def check(self) -> list[Finding]:
        """Return the needs of the engine, after a trial of a container with small limits."""
        with self._checking:
            findings = self._engine.needs()
            if all(each.is_met for each in findings):
                if self._creation.has_gpus:
                    findings.append(_gpu_finding(self._engine.name))
                create = self._creation.create_idle
                findings.append(trial.run(self._engine, self._folder, create))
            self._findings = findings
        return findings

    def require(self) -> None:
        """Refuse a job if the engine cannot wall it in; check the engine before the first job.

        Raises:
            TaskError: in that case.
        """
        findings = self._findings if self._findings is not None else self.check()
        unmet = [each for each in findings if not each.is_met]
        if unmet:
            first = unmet[0]
            message = (
                f"{self._engine.name} cannot wall a job in here: {first.actual}. {first.remedy}"
            )
            raise TaskError("refused", message)

    def is_on_trial(self, name: str) -> bool:
        """Return whether a container is on trial now, by this agent or by a `worker check`."""
        maker = trial.maker_of(name)
        if maker == os.getpid():
            return self._checking.locked()
        return maker is not None and is_alive(Path("/proc", str(maker)))


def _gpu_finding(name: str) -> Finding:
    folders = [Path("/etc/cdi"), Path("/var/run/cdi")]
    is_met = any(list(each.glob("*.[jy]*")) for each in folders if each.is_dir())
    return Finding(
        id=f"{name}-gpus",
        is_met=is_met,
        actual="GPUs are described" if is_met else "no GPU is described in /etc/cdi",
        needed="a description of the GPUs (CDI)",
        why="an engine gives a container one GPU, and no other, by its name in there",
        remedy="" if is_met else "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    )
