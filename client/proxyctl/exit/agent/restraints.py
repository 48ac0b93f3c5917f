"""Reasons why an exit takes no connections at present."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from proxyctl.exit.base.limits import DeviceLimits
    from proxyctl.power import Power


class Rest(NamedTuple):
    """A reason to rest, in words; empty for none.

    `at_once` also cuts the open connections; otherwise it has some seconds to end.
    """

    reason: str
    at_once: bool


class Restraints:
    """All reasons why an exit may pause.

    Attributes:
        owner_paused: the owner asked for it.
        power: why the device should rest, in words.

    Args:
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


def reason_to_rest(power: Power, limits: DeviceLimits) -> str:
    """Return why the exit should rest, in words for its owner; empty if it need not.

    An unknown state counts as fine on computers, which are mostly plugged in, and as a reason to
    rest on phones, which mostly are not. A phone works on Wi-Fi while it charges.
    """
    is_low = power.percent is None or power.percent < limits.battery_percent
    reasons = (
        (power.is_phone and power.on_battery is None, "this phone does not say if it is charging"),
        (power.is_phone and power.on_battery, "the phone is not charging"),
        (power.on_battery and is_low, f"on battery below {limits.battery_percent} %"),
        (power.metered and not limits.on_metered, "the network is metered"),
        (
            power.is_phone and power.metered is None and not limits.on_metered,
            "this phone does not say which network it is on",
        ),
    )
    return next((words for applies, words in reasons if applies), "")
