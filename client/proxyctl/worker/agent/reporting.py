"""The state of the agent, as its owner sees it: in the log and in a file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from proxyctl import files
from proxyctl.words import plain_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from proxyctl.worker.agent.lifecycle import Lifecycle
    from proxyctl.worker.task.journal import Entry

_logger = logging.getLogger("worker")


class StateFile:
    """The file that the owner's commands read."""

    def __init__(self, path: Path, lifecycle: Lifecycle) -> None:
        self._path = path
        self._lifecycle = lifecycle
        self._words = "starting"
        self._written: dict[str, Any] = {}

    def report(self, words: str) -> None:
        """Log new words once, and have the main thread write them to the file."""
        if words != self._words:
            _logger.info("%s", words)
            self._words = words
            self._lifecycle.changed.set()

    def write(self, entries: Iterable[Entry]) -> None:
        """Write the file, if something has changed."""
        attempts = [
            {
                "attempt_id": each.attempt_id,
                "title": plain_line(str(each.work.get("title", ""))),
                "state": each.state.value,
            }
            for each in entries
        ]
        fields = {
            "words": "draining" if self._lifecycle.drains else self._words,
            "resting": self._lifecycle.rest,
            "attempts": attempts,
        }
        if fields == self._written:
            return
        try:
            files.write(self._path, fields)
        except files.FileError as error:
            self.report(str(error))
        else:
            self._written = fields

    def remove(self) -> None:
        """Remove the file at the end of the agent."""
        files.remove(self._path)
