"""The power and the network of a device: its battery, and networks with a price per byte.

Every function here may block; none takes longer than `_COMMAND_SECONDS` for each program that it
runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_COMMAND_SECONDS: Final = 5.0
_SUPPLIES: Final = Path("/sys/class/power_supply")
_PMSET: Final = re.compile(r"(\d{1,3})%")
# Yes, and "it looks like it": the two kinds of metered that NetworkManager knows.
_METERED: Final = (1, 3)


@dataclass(frozen=True)
class Power:
    """State of a device's power supply and network; None means unknown.

    Attributes:
        on_battery: nothing charges it.
        percent: of the battery's charge.
        metered: the network is paid for by the byte.
        is_phone: unknown counts against it.
    """

    on_battery: bool | None = None
    percent: int | None = None
    metered: bool | None = None
    is_phone: bool = False


def read_power() -> Power:
    """Ask the system."""
    if "com.termux" in os.environ.get("PREFIX", ""):
        return termux_power(_run("termux-battery-status"), _run("termux-wifi-connectioninfo"))
    if sys.platform == "win32":
        return _windows_power()
    if sys.platform == "darwin":
        return macos_power(_run("pmset", "-g", "batt"))
    return linux_power(_SUPPLIES, _metered_by_network_manager())


def linux_power(supplies: Path, metered: bool | None) -> Power:
    """Read the kernel's list of power supplies (sysfs-class-power)."""
    charging = False
    percents: list[int] = []
    try:
        entries = list(supplies.iterdir())
    except OSError:
        entries = []
    for entry in entries:
        kind = _text(entry / "type")
        if (
            kind == "Battery" and _text(entry / "scope") != "Device"
        ):  # a mouse has a battery as well
            percents += [int(text) for text in [_text(entry / "capacity")] if text.isdigit()]
            charging |= _text(entry / "status") in ("Charging", "Full", "Not charging")
        elif kind in ("Mains", "USB"):
            charging |= _text(entry / "online") == "1"
    if not percents:
        return Power(metered=metered)
    return Power(on_battery=not charging, percent=min(percents), metered=metered)


def macos_power(text: str) -> Power:
    """Return the power state in the output of `pmset -g batt`."""
    match = _PMSET.search(text)
    if match is None:
        return Power()
    return Power(on_battery="'Battery Power'" in text, percent=int(match[1]))


def termux_power(battery: str, wifi: str) -> Power:
    """Return the power state in the output of Termux:API, which may not be installed."""
    about_battery, about_wifi = _object(battery), _object(wifi)
    plugged = about_battery.get("plugged")
    percent = about_battery.get("percentage")
    state = about_wifi.get("supplicant_state")
    return Power(
        on_battery=plugged == "UNPLUGGED" if isinstance(plugged, str) else None,
        percent=percent if isinstance(percent, int) else None,
        metered=state != "COMPLETED" if isinstance(state, str) else None,
        is_phone=True,
    )


def windows_power(line: int, flag: int, percent: int) -> Power:
    """Parse SYSTEM_POWER_STATUS: 255 is unknown, and the flag 128 means no battery."""
    if flag & 128 or line == 255:
        return Power()
    return Power(on_battery=line == 0, percent=percent if percent <= 100 else None)


def _windows_power() -> Power:
    import ctypes  # noqa: PLC0415 - other systems are spared its memory

    status = (ctypes.c_ubyte * 12)()  # SYSTEM_POWER_STATUS: four bytes, and two numbers of four
    windows = getattr(ctypes, "windll", None)
    if windows is None or not windows.kernel32.GetSystemPowerStatus(ctypes.byref(status)):
        return Power()
    return windows_power(status[0], status[1], status[2])


def _metered_by_network_manager() -> bool | None:
    printed = _run(
        "busctl",
        "get-property",
        "org.freedesktop.NetworkManager",
        "/org/freedesktop/NetworkManager",
        "org.freedesktop.NetworkManager",
        "Metered",
    )
    words = printed.split()
    if len(words) != 2 or not words[1].isdigit() or words[1] == "0":
        return None
    return int(words[1]) in _METERED


def _run(*command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command of the system's own
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
