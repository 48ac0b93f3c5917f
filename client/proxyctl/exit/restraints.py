"""Why an exit takes no connections just now, if it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from proxyctl.exit.limits import DeviceLimits


class Rest(NamedTuple):
    """A reason to rest, in words; empty for none.

    `at_once` cuts what is under way, too; otherwise it has some seconds to end.
    """

    reason: str
    at_once: bool


class Restraints:
    """Everything that may hold an exit back.

    Attributes:
        owner_paused: the owner asked for it.
        power: why the device should rest, in words.

    Args:
        limits: the owner's.
        now: the device's own time.
        used_up: returns which limit of bytes is reached, in words.
    """

    def __init__(
        self,
        limits: DeviceLimits,
        now: Callable[[], datetime],
        used_up: Callable[[], str],
    ) -> None:
        self.owner_paused = False
        self.power = ""
        self._limits = limits
        self._now = now
        self._used_up = used_up

    def judge(self) -> Rest:
        """Return the weightiest reason."""
        if self.owner_paused:
            return Rest("paused by the owner of this device", at_once=True)
        reason = self._used_up()
        if reason:
            return Rest(reason, at_once=True)
        if not self._limits.is_hour(self._now()):
            return Rest(f"outside the hours {self._limits.hours}", at_once=False)
        return Rest(self.power, at_once=False)
