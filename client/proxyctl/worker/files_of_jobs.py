"""Stands in where logs and files are not brought to the marketplace yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxyctl.worker.executors.base import TaskError
from proxyctl.worker.tasks import payload_of_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.worker.journal import Entry


class NoTransfers:
    """Refuses jobs with inputs."""

    def fetch(self, entry: Entry, folder: Path, is_stopped: Callable[[], bool]) -> None:  # noqa: ARG002 - as those that do
        """Refuse what there would be to fetch."""
        if payload_of_work(entry.work).inputs:
            raise TaskError("refused", "this device takes no jobs with inputs")

    def upload(self, entry: Entry, folder: Path, is_stopped: Callable[[], bool]) -> None:
        """Bring nothing."""


class _Nothing:
    def send(self) -> bool:
        """Send nothing."""
        return False


def no_log_sender(entry: Entry, folder: Path) -> _Nothing:  # noqa: ARG001 - as those that do
    """Return a sender that sends nothing."""
    return _Nothing()
