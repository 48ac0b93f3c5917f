"""The files of an attempt in which its supervisor records events."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from proxyctl import files
from proxyctl.worker.base import names
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.executors.base.base import WORK
from proxyctl.worker.task.processes import Identity, boot_seconds

if TYPE_CHECKING:
    from pathlib import Path


class Traces:
    """The records of a supervisor in the folder of its attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the fields of a record; None if it is missing or empty.

        A record is empty if a loss of power has ended the process that it describes.

        Raises:
            FileError: the record cannot be read.
        """
        path = self.folder / name
        return None if files.is_empty(path) else files.read(path)

    @property
    def supervisor(self) -> Identity | None:
        """The supervisor that has begun with the attempt."""
        begun = self.read(names.BEGUN)
        return Identity.of_fields(begun) if begun else None

    @property
    def is_supervised(self) -> bool:
        """Whether the supervisor of the attempt is alive."""
        supervisor = self.supervisor
        return supervisor is not None and supervisor.is_alive()

    @property
    def is_unended(self) -> bool:
        """Whether the supervisor is alive and has not recorded the end of the program."""
        return self.read(names.ENDED) is None and self.is_supervised

    def ran_seconds(self) -> float:
        """Return the seconds that the program has run since the machine started; 0 before."""
        running = self.read(names.RUNNING)
        if running is None:
            return 0.0
        begun_at = running.get("begun_at")
        if begun_at is None:  # a supervisor before this one has written it
            begun_at = Identity.of_fields(running).started / os.sysconf("SC_CLK_TCK")
        return max(0.0, boot_seconds() - float(begun_at))

    def remove(self) -> None:
        """Remove the records, the logs and the work of a start that the journal has lost."""
        for name in (names.BEGUN, names.RUNNING, names.ENDED, *names.LOGS.values()):
            files.remove(self.folder / name)
        remove_tree(self.folder / WORK)
