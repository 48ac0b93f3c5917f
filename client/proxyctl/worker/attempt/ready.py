"""Sandboxes that are made before their attempts come.

Namespaces and mounts take longer than the start of most programs. So one sandbox waits, in a folder
of its own, under the limits that a job gets which names no amounts. An attempt that fits takes it:
the folders of the sandbox become those of the attempt. No sandbox is used twice, and nothing of an
attempt is in one that waits.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base import names
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.executors.base.base import INPUTS, STATUS, WORK
from proxyctl.worker.executors.base.ownership import give_away
from proxyctl.worker.task.tasks import INPUTS_BYTES, task_ahead

if TYPE_CHECKING:
    from pathlib import Path

    from proxyctl.worker.base.record import Lend
    from proxyctl.worker.executors.base.base import Launch, Task
    from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor

_PREFIX: Final = "sandbox-"  # no attempt begins like that
_REPLACED: Final = ".replaced"  # behind the name of a folder of an attempt


class Ready:
    """A sandbox that waits for one attempt.

    Args:
        executor: that makes it.
        lend: the owner's loan.
        folder: of the agent.

    Attributes:
        name: for the executor; of the attempt as well, once one has taken it.
        is_settled: the folders of the sandbox are those of the attempt.
    """

    def __init__(self, executor: BwrapExecutor, lend: Lend, folder: Path) -> None:
        self.name = f"{_PREFIX}{os.urandom(8).hex()}"
        self._executor = executor
        self._folder = folder / names.READY / self.name
        self._task = task_ahead(self.name, self._folder, lend)
        self._launch: Launch | None = None
        self.is_settled = False

    def prepare(self) -> bytes | None:
        """Return the line for a supervisor; None if sandboxes cannot wait here.

        Raises:
            TaskError: it cannot be made.
        """
        self._folder.mkdir(mode=0o700, parents=True)
        self._launch = self._executor.ahead(self._task)
        if self._launch is None:
            return None
        fields = {"folder": str(self._folder), "launch": self._launch.as_fields()}
        return json.dumps(fields).encode() + b"\n"

    @property
    def is_made(self) -> bool:
        """Whether it waits; before, its folders may not be moved."""
        return (self._folder / names.MADE).exists()

    def orders(self, task: Task, attempt_id: str) -> str | None:
        """Return the orders for this sandbox to run a task; None if the task does not fit.

        Raises:
            TaskError: the task is impossible.
        """
        own, wanted = self._task.bounds, task.bounds
        # The time and all files together are bounded by the supervisor, from the start. The size of
        # one file is the sandbox's: at most the inputs of most jobs below that of the task.
        is_same = replace(own, seconds=wanted.seconds, disk_bytes=wanted.disk_bytes) == wanted
        if not is_same or not 0 <= wanted.disk_bytes - own.disk_bytes <= INPUTS_BYTES:
            return None
        return self._executor.orders(task, attempt_id)

    def settle(self, task: Task) -> Launch:
        """Put the files of an attempt into the sandbox, and the sandbox into the attempt's folder.

        This removes nothing: a removal can take milliseconds, and a move takes microseconds. The
        empty folders of the attempt stay for `remove_rest`. A second call goes on where the first
        one was interrupted.

        Args:
            task: of the attempt.

        Returns:
            The launch of the attempt.

        Raises:
            FileError, OSError: the disk refuses it.
            TaskError: the kernel refuses it.
        """
        launch = self._launch
        assert launch is not None  # noqa: S101 - `prepare` came first
        for name in (WORK, INPUTS):
            own, wanted = self._folder / name, task.folder / name
            if not own.exists():  # it was moved before
                continue
            if wanted.exists():
                entries = list(wanted.iterdir())
                if entries and launch.user is not None:
                    give_away(wanted, launch.user, launch.user)
                for each in entries:
                    each.rename(own / each.name)
                wanted.rename(self._folder / f"{name}{_REPLACED}")
            own.rename(wanted)
        with suppress(FileNotFoundError):
            (self._folder / STATUS).rename(task.folder / STATUS)
            (self._folder / names.MADE).unlink()
        self.is_settled = True
        return replace(launch, files={}, disk_bytes=task.bounds.disk_bytes)

    def remove_rest(self) -> None:
        """Remove the folder where it was made, once it is settled.

        Raises:
            FileError: that cannot be removed.
        """
        remove_tree(self._folder)

    def remove(self) -> None:
        """End it, and remove its rest; only for one that no attempt has taken.

        Raises:
            FileError: its files cannot be removed.
            TaskError: its processes do not end.
        """
        self._executor.clean(self.name)
        remove_tree(self._folder)
