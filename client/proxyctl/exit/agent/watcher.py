"""Watches a device for changes: its owner's wishes, the networks around it, its battery."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.attach.network.surroundings import Surroundings
    from proxyctl.exit.agent.restraints import Restraints
    from proxyctl.exit.base.journal import Journal

WATCH_SECONDS: Final = 1.0  # the exit obeys a pause within this time
SAVE_TICKS: Final = 5  # the owner sees a state of this age at most
POWER_TICKS: Final = 30

# A state that was written longer ago than this is of an agent that is gone.
STATE_STALE_SECONDS: Final = 6 * SAVE_TICKS * WATCH_SECONDS

_NEWS: Final = ("attached", "words", "paused")

_logger = logging.getLogger("exit")


class OwnerWishes:
    """The owner's wishes in the control file: a pause, or a withdrawn consent.

    Args:
        path: of the control file.
        revoked: called when the owner has withdrawn the consent.
    """

    def __init__(self, path: Path, restraints: Restraints, revoked: Callable[[], None]) -> None:
        self._path = path
        self._restraints = restraints
        self._revoked = revoked
        self._stamp: tuple[int, int] | None = None

    def obey(self) -> None:
        """Read the control file if it has changed, and follow the owner's wishes."""
        stamp = files.stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            wishes = files.read(self._path) or {}
        except files.FileError as error:
            _logger.warning("%s; the exit pauses until the file can be read", error)
            wishes = {"paused": True}
        self._restraints.owner_paused = wishes.get("paused") is True
        if wishes.get("revoked") is True:
            self._revoked()


class StateFile:
    """The state of the agent, in a file that the owner's commands read."""

    def __init__(self, path: Path, describe: Callable[[], dict[str, Any]]) -> None:
        self._path = path
        self._describe = describe
        self._saved: dict[str, Any] = {}

    def has_news(self) -> bool:
        """Return whether a field other than the numbers has changed since the last save."""
        state = self._describe()
        return any(state[name] != self._saved.get(name) for name in _NEWS)

    def save(self) -> None:
        """Write the present state.

        Raises:
            FileError: the file cannot be written.
        """
        self._saved = self._describe()
        files.write(self._path, self._saved)


class Watcher:
    """Looks at the device and at the owner's wishes once a second.

    Args:
        read_power: returns why the device should rest, in words; may block.
        changed: called when the restraints may have changed.
        seconds: between two looks.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        restraints: Restraints,
        surroundings: Surroundings,
        read_power: Callable[[], str],
        changed: Callable[[], None],
        wishes: OwnerWishes,
        state: StateFile,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._journal = journal
        self._restraints = restraints
        self._surroundings = surroundings
        self._read_power = read_power
        self._changed = changed
        self._wishes = wishes
        self._state = state
        self._cannot_save = False

    async def prepare(self) -> None:
        """Read the surroundings for the first time, before the exit carries anything."""
        await self._ask_power()
        self.obey()
        self._changed()
        self._try(self._state.save)

    async def run(self) -> None:
        """Check everything repeatedly until this task is cancelled."""
        ticks = 0
        while True:
            await asyncio.sleep(self._seconds)
            ticks += 1
            self._journal.turn()
            self.obey()
            if ticks % SAVE_TICKS == 0:
                self._surroundings.refresh()
                self._try(self._journal.save)
            if ticks % POWER_TICKS == 0:
                await self._ask_power()
            self._changed()
            if ticks % SAVE_TICKS == 0 or self._state.has_news():
                self._try(self._state.save)

    def obey(self) -> None:
        """Follow the owner's wishes in the control file, if it has changed."""
        self._wishes.obey()

    async def _ask_power(self) -> None:
        loop = asyncio.get_running_loop()
        self._restraints.power = await loop.run_in_executor(None, self._read_power)

    def _try(self, save: Callable[[], None]) -> None:
        """Save a file; a full disk does not stop the exit, and is logged once."""
        try:
            save()
        except files.FileError as error:
            if not self._cannot_save:
                _logger.warning("%s; the exit continues without it", error)
            self._cannot_save = True
        else:
            self._cannot_save = False
