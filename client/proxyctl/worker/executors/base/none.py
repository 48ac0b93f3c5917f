"""Replaces the executor of an attempt that is not on this device any more.

The owner has removed the engine, or does not lend it any more. Of such an attempt only its
supervisor can still be reached; were it tried again until the engine comes back, it would keep its
slot for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxyctl.worker.executors.base.base import Ending, TaskError

if TYPE_CHECKING:
    import socket

    from proxyctl.worker.executors.base.base import Finding, Launch, Task


class NoExecutor:
    """Finds nothing and leaves nothing behind; a running program is ended by its supervisor.

    Should the engine come back with something that still runs, the next agent ends that, since no
    entry of the journal names it.

    Args:
        words: the missing part.
    """

    name = "none"

    def __init__(self, words: str) -> None:
        self._words = f"the sandbox of the job is not on this device any more: {words}"

    def check(self) -> list[Finding]:
        """Return nothing: no caller needs its needs."""
        return []

    def prepare(self, task: Task) -> Launch:  # noqa: ARG002 - for none
        """Refuse."""
        raise TaskError("host", self._words)

    def attach(self, task: Task, pid: int) -> None:  # noqa: ARG002 - of none
        """Refuse: nothing holds the attempt to its limits."""
        raise TaskError("host", self._words)

    def can_reach_ports(self) -> bool:
        """Return False."""
        return False

    def connect(self, attempt_id: str, port: int) -> socket.socket:  # noqa: ARG002 - to none
        """Refuse."""
        raise TaskError("host", self._words)

    def stop(self, attempt_id: str, grace_s: float) -> None:
        """Do nothing; the caller requests the stop from the supervisor next."""

    def running(self) -> set[str]:
        """Return nothing."""
        return set()

    def left(self) -> set[str]:
        """Return nothing."""
        return set()

    def ended(self, attempt_id: str) -> Ending:  # noqa: ARG002 - the same of all
        """Return that the sandbox is gone: the program's output and status prove nothing."""
        return Ending(lost=self._words)

    def clean(self, attempt_id: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
