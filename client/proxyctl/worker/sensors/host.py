"""Processor, memory, disk, temperature, and the presence of a user at the device.

The values come from /proc and /sys of Linux, and from the package `psutil` where it is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_THERMAL: Final = Path("/sys/class/thermal")
# Sensors of the processor, as the kernel names their kinds; others are of disks or the room.
_OF_CPU: Final = (
    "x86_pkg_temp",
    "coretemp",
    "k10temp",
    "cpu-thermal",
    "cpu_thermal",
    "soc_thermal",
)
_TERMINALS: Final = ("/dev/pts", "/dev")
_COMMAND_SECONDS: Final = 5.0
_MICROSECONDS: Final = 1e6


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_disk_bytes(folder: Path) -> int:
    """Return the free bytes where a folder is, for the user of this process."""
    return shutil.disk_usage(folder).free


class Processor:
    """How busy the processor is between one look and the next."""

    def __init__(self) -> None:
        self._before = _times()

    def percent(self) -> float | None:
        """Return the part of all cores that was used since the last look; None if not known."""
        before, self._before = self._before, _times()
        if before is None or self._before is None:
            return None
        total = self._before[1] - before[1]
        return round(100.0 * (self._before[0] - before[0]) / total, 1) if total > 0 else None


def memory_percent() -> float | None:
    """Return how much of the memory is used; None if it is not known."""
    fields = {}
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0])
        return round(100.0 * (1 - fields["MemAvailable"] / fields["MemTotal"]), 1)
    except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
        return None


def cpu_temperature() -> float | None:
    """Return the temperature of the hottest part of the processor; None if it is not known."""
    temperatures = [*_thermal_zones(), *_psutil_temperatures()]
    return max(temperatures, default=None)


def idle_seconds() -> float | None:
    """Return the time since a user touched the device; None if that is unknown.

    The sources are the last keystroke in any terminal, and the desktop's report to logind.
    """
    spans = [*_terminals(), *_sessions()]
    return min(spans, default=None)


def readings(processor: Processor) -> dict[str, Any]:
    """Return the readings of the machine for a heartbeat, without unreadable ones."""
    values: dict[str, Any] = {
        "hostname": os.uname().nodename,
        "cpu_cores": os.cpu_count(),
        "ram_gb": round(memory_bytes() / 1e9, 1),
        "cpu_pct": processor.percent(),
        "ram_pct": memory_percent(),
        "cpu_temp": cpu_temperature(),
    }
    return {name: value for name, value in values.items() if value}


def _times() -> tuple[int, int] | None:
    """Return the ticks in which the processor was busy, and all (proc_stat(5))."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            ticks = [int(each) for each in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, and waiting for disks


def _thermal_zones() -> list[float]:
    found = []
    for zone in _THERMAL.glob("thermal_zone*"):
        with suppress(OSError, ValueError):
            if (zone / "type").read_text("ascii").strip() in _OF_CPU:
                found.append(int((zone / "temp").read_text("ascii")) / 1000)
    return found


def _psutil_temperatures() -> list[float]:
    try:
        import psutil  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError:
        return []
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    return [each.current for name in _OF_CPU for each in sensors.get(name, ()) if each.current]


def _terminals() -> list[float]:
    found = []
    now = time.time()  # noqa: TID251 - compared with what the file system wrote down
    for folder, pattern in zip(_TERMINALS, ("[0-9]*", "tty[0-9]*")):
        for path in Path(folder).glob(pattern):
            try:
                status = path.stat()
            except OSError:
                continue
            if status.st_uid != 0 or folder == "/dev/pts":  # the others have no user
                found.append(max(0.0, now - status.st_atime))
    return found


def _sessions() -> list[float]:
    """Ask logind about the desktop, which has no terminal."""
    try:
        done = subprocess.run(
            ["loginctl", "show-seat", "seat0", "-p", "IdleHint", "-p", "IdleSinceHintMonotonic"],  # noqa: S607 - wherever the system has it
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    fields = dict(
        line.split("=", 1)
        for line in done.stdout.decode("ascii", "replace").splitlines()
        if "=" in line
    )
    if fields.get("IdleHint") == "no":
        return [0.0]
    since = fields.get("IdleSinceHintMonotonic", "")
    if fields.get("IdleHint") != "yes" or not since.isdigit():
        return []
    return [max(0.0, time.monotonic() - int(since) / _MICROSECONDS)]
