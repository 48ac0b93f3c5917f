"""Watches what changes on a device: its owner's wishes, the networks around it, its battery."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.exit.base import names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.attach.network.surroundings import Surroundings
    from proxyctl.exit.agent.restraints import Restraints
    from proxyctl.exit.base.journal import Journal

WATCH_SECONDS: Final = 1.0  # a pause is obeyed within this time
SAVE_TICKS: Final = 5  # an owner who looks sees what was then
POWER_TICKS: Final = 30

# A state that was written longer ago than this is of an agent that is gone.
STATE_STALE_SECONDS: Final = 6 * SAVE_TICKS * WATCH_SECONDS

_NEWS: Final = ("attached", "words", "paused")

_logger = logging.getLogger("exit")


# More than 12 fields: what it was given, and what it saw last.
class Watcher:
    """Looks around once a second.

    Args:
        folder: where the files are.
        journal: is saved, and begins new days.
        restraints: are told what was found.
        surroundings: are read anew.
        read_power: returns why the device should rest, in words; may block.
        changed: called when the restraints may have changed.
        revoked: called when the owner has withdrawn the consent.
        describe: returns what the state file says beside its time.
        seconds: between two looks.
    """

    def __init__(
        self,
        *,
        folder: Path,
        journal: Journal,
        restraints: Restraints,
        surroundings: Surroundings,
        read_power: Callable[[], str],
        changed: Callable[[], None],
        revoked: Callable[[], None],
        describe: Callable[[], dict[str, Any]],
        seconds: float = WATCH_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._control = folder / names.CONTROL
        self._state = folder / names.STATE
        self._journal = journal
        self._restraints = restraints
        self._surroundings = surroundings
        self._read_power = read_power
        self._changed = changed
        self._revoked = revoked
        self._describe = describe
        self._stamp: tuple[int, int] | None = None
        self._saved: dict[str, Any] = {}
        self._cannot_save = False

    async def prepare(self) -> None:
        """Look around for the first time, before anything is carried."""
        await self._ask_power()
        self.obey()
        self._changed()
        self._save_state()

    async def run(self) -> None:
        """Look around until this task is cancelled."""
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
            if ticks % SAVE_TICKS == 0 or self._has_news():
                self._save_state()

    def obey(self) -> None:
        """Do what the owner asks by the control file, if it has changed."""
        stamp = files.stamp(self._control)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            wishes = files.read(self._control) or {}
        except files.FileError as error:
            _logger.warning("%s; the exit pauses until it can be read", error)
            wishes = {"paused": True}
        self._restraints.owner_paused = wishes.get("paused") is True
        if wishes.get("revoked") is True:
            self._revoked()

    async def _ask_power(self) -> None:
        loop = asyncio.get_running_loop()
        self._restraints.power = await loop.run_in_executor(None, self._read_power)

    def _has_news(self) -> bool:
        """Say whether anything but a number has changed, for which nobody waits."""
        state = self._describe()
        return any(state[name] != self._saved.get(name) for name in _NEWS)

    def _save_state(self) -> None:
        self._saved = self._describe()
        self._try(lambda: files.write(self._state, self._saved))

    def _try(self, save: Callable[[], None]) -> None:
        """Save something; a full disk is no reason not to carry, and is told once."""
        try:
            save()
        except files.FileError as error:
            if not self._cannot_save:
                _logger.warning("%s; the exit goes on without it", error)
            self._cannot_save = True
        else:
            self._cannot_save = False
