"""Rules of the owner of a device, who may need it: first no new jobs, soon afterwards no jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from proxyctl.worker.base.record import When

# The records of some jobs. A job that the agent cannot record is not taken, but the daemon has it
# running: its buyer waits until the daemon gives it to another device.
RECORDS_BYTES: Final = 8 << 20
COOLER_DEGREES: Final = 5  # below the bound, before a device that was too hot works again


class Readings(NamedTuple):
    """The measurements for the rules; None means unknown.

    Attributes:
        idle_seconds: since the last touch of the device by a user.
        on_battery: nothing charges it.
        cpu_temp: in degrees Celsius.
        gpu_temp: of the hottest GPU, in degrees Celsius.
        free_bytes: for the agent's own records.
    """

    idle_seconds: float | None = None
    on_battery: bool | None = None
    cpu_temp: float | None = None
    gpu_temp: float | None = None
    free_bytes: int | None = None


class Rules:
    """The owner's rules.

    Args:
        now: the device's own time.
        read: returns the measurements; may block.
    """

    def __init__(
        self, when: When, now: Callable[[], datetime], read: Callable[[], Readings]
    ) -> None:
        self._when = when
        self._now = now
        self._read = read
        self._is_hot = False

    def reason_to_rest(self) -> str:
        """Return why the device should not work now, in words; empty if it may.

        An unknown measurement is no reason: a device without a thermometer is not hot.
        """
        when, readings = self._when, self._read()
        if not when.is_hour(self._now()):
            return f"outside the hours {', '.join(when.hours)}"
        if readings.free_bytes is not None and readings.free_bytes < RECORDS_BYTES:
            return "the disk of the device is full"
        if not when.on_battery and readings.on_battery:
            return "the device is on battery"
        idle = readings.idle_seconds
        if when.idle_minutes and idle is not None and idle < when.idle_minutes * 60:
            return "somebody uses the device"
        return self._heat(readings)

    def _heat(self, readings: Readings) -> str:
        slack = COOLER_DEGREES if self._is_hot else 0
        for name, degrees, most in (
            ("processor", readings.cpu_temp, self._when.cpu_temp_max),
            ("GPU", readings.gpu_temp, self._when.gpu_temp_max),
        ):
            if most and degrees is not None and degrees > most - slack:
                self._is_hot = True
                return f"the {name} has {degrees:.0f} degrees Celsius, and may have {most}"
        self._is_hot = False
        return ""
