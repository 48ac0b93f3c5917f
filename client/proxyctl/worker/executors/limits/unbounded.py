"""Only limits of each process: for tests of the walls on a machine where nothing holds limits."""

from __future__ import annotations

from proxyctl.worker.executors.base.base import Bounds, Ending, Finding
from proxyctl.worker.executors.limits.base import Admission, name_of


class Unbounded:
    """Stands for limits while `check` looks for other missing parts; no job is run under it."""

    name = "none"

    def check(self) -> list[Finding]:
        """Return no findings."""
        return []

    def admit(self, attempt_id: str, bounds: Bounds) -> Admission:  # noqa: ARG002 - holds none
        """Admit the attempt without limits."""
        name_of(attempt_id)
        return Admission()

    def processes(self, attempt_id: str) -> list[int]:  # noqa: ARG002 - knows none
        """Return no processes: the executor looks for itself."""
        return []

    def kill(self, attempt_id: str) -> None:
        """Leave it to the executor."""

    def attempts(self) -> set[str]:
        """Return no attempts."""
        return set()

    def ended(self, attempt_id: str) -> Ending:  # noqa: ARG002 - counts nothing
        """Return nothing."""
        return Ending()

    def clean(self, attempt_id: str) -> None:
        """Do nothing, because `admit` made nothing."""
