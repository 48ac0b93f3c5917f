"""The journal of an exit: its bytes and its last targets, on the device only.

Owners answer for their lines, so they can see where strangers went through them. No other user can:
the file is readable by its owner alone, holds the last hundred targets, and is never sent.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

TARGETS_KEPT: Final = 100
PORTS_KEPT: Final = 64  # an owner may allow more; the busiest tell enough
# A device without a hardware clock begins in an earlier year, until it gets the time from a
# network.
FIRST_DAY: Final = "2024-01-01"
_PORTS_SHOWN: Final = 5


@dataclass
class Target:
    """Target of a connection: its time, its name or address, and its port."""

    at: str
    host: str
    port: int


class Journal:
    """Counts the bytes of a day and of a month, and remembers the last targets.

    A loss of power loses the changes since the last save: up to a save interval.

    Args:
        now: the device's own time, aware of its zone.
    """

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._path = path
        self._now = now
        self._day = self._month = ""
        self.bytes_today = 0
        self.bytes_this_month = 0
        self._ports: Counter[int] = Counter()
        self._targets: deque[Target] = deque(maxlen=TARGETS_KEPT)
        self._time = ""  # as a text, at the first target since the last `turn`
        self._is_changed = False
        self._load()
        self.turn()

    def add_bytes(self, size: int) -> None:
        """Count the bytes carried, in both directions."""
        self.bytes_today += size
        self.bytes_this_month += size
        self._is_changed = True

    def add_target(self, host: str, port: int) -> Target:
        """Remember where a connection goes; a name may be put to it later."""
        if not self._time:
            self._time = self._now().isoformat(timespec="seconds")
        target = Target(self._time, host, port)
        self._targets.append(target)
        self._ports[port] += 1
        if len(self._ports) > PORTS_KEPT:
            del self._ports[min(self._ports, key=self._ports.__getitem__)]
        self._is_changed = True
        return target

    def turn(self) -> None:
        """Begin a new day or month, if one has begun; a clock that is not set yet begins none.

        To be called every second or so: targets have the time of the first one since the last call.
        """
        self._time = ""
        day = self._now().date().isoformat()
        if day == self._day or (self._day and day < FIRST_DAY):
            return
        self._day, self.bytes_today = day, 0
        if day[:7] != self._month:
            self._month, self.bytes_this_month = day[:7], 0
            self._ports.clear()
        self._is_changed = True

    def save(self) -> None:
        """Save the journal if it has changed.

        Raises:
            FileError: it cannot be written.
        """
        if not self._is_changed:
            return
        files.write(
            self._path,
            {
                "day": self._day,
                "bytes_today": self.bytes_today,
                "bytes_this_month": self.bytes_this_month,
                "ports": {str(port): count for port, count in self._ports.most_common()},
                "targets": [[each.at, each.host, each.port] for each in self._targets],
            },
        )
        self._is_changed = False

    def _load(self) -> None:
        try:
            stored = files.read(self._path) or {}
            day, today, month = stored["day"], stored["bytes_today"], stored["bytes_this_month"]
            ports = {int(port): int(count) for port, count in stored["ports"].items()}
            targets = [
                Target(str(at), str(host), int(port)) for at, host, port in stored["targets"]
            ]
            self.bytes_today, self.bytes_this_month = int(today), int(month)
        except (files.FileError, KeyError, TypeError, ValueError, AttributeError):
            return  # none yet, or broken, or of another version: a new one begins
        self._day, self._month = str(day), str(day)[:7]
        self._ports.update(ports)
        self._targets.extend(targets)


def describe(path: Path) -> list[str]:
    """Return a journal as lines for its owner.

    Raises:
        FileError: it cannot be read.
    """
    stored: dict[str, Any] | None = files.read(path)
    if stored is None:
        return ["nothing was carried yet"]
    ports = list(stored.get("ports", {}).items())[:_PORTS_SHOWN]
    busiest = ", ".join(
        f"{port} ({count} connection{'' if count == 1 else 's'})" for port, count in ports
    )
    targets = stored.get("targets", [])
    day = str(stored.get("day"))
    return [
        f"carried on {day}: {_shown(stored.get('bytes_today', 0))}",
        f"carried in {day[:7]}: {_shown(stored.get('bytes_this_month', 0))}",
        f"busiest ports this month: {busiest or 'none'}",
        f"last targets (kept on this device only):{'' if targets else ' none'}",
        *(
            f"  {at}  [{host}]:{port}" if ":" in host else f"  {at}  {host}:{port}"
            for at, host, port in targets
        ),
    ]


def _shown(size: int) -> str:
    if size < 10**6:
        return f"{size:,} bytes"
    return f"{size / 10**9:.3f} GB" if size >= 10**7 else f"{size / 10**6:.3f} MB"
