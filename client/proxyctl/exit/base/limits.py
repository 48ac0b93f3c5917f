"""The limits that the owner sets for a device. The daemon may ask for less, never for more."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from proxyctl.words import OwnerError

if TYPE_CHECKING:
    from datetime import datetime

_HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_SIZE: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,3}))? ?([kmgt]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class LimitError(OwnerError):
    """A limit that cannot be; the message names it."""


@dataclass(frozen=True)
class DeviceLimits:
    """The owner's limits; 0 is no limit, and no `hours` are all hours.

    Attributes:
        connections: at the same time.
        bytes_per_second: both ways together, as are the next two.
        bytes_per_day: of the device's own calendar.
        bytes_per_month: the same.
        hours: when the exit works, in the device's own time: `22:00-07:00`.
        ports: of targets.
        battery_percent: rest below this charge while on battery; 101 rests whenever on battery.
        on_metered: work although the network is metered.
        udp: carry datagrams as well.
        dials_per_second: new connections to the daemon, one for each that it carries; carriers
            throttle a line that opens many in a short time.
    """

    connections: int = 16
    bytes_per_second: int = 0
    bytes_per_day: int = 5_000_000_000
    bytes_per_month: int = 0
    hours: str = ""
    ports: tuple[int, ...] = (80, 443, 8080, 8443)
    battery_percent: int = 50
    on_metered: bool = False
    udp: bool = False
    dials_per_second: int = 20

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of the record."""
        return {**asdict(self), "ports": list(self.ports)}

    def is_hour(self, now: datetime) -> bool:
        """Return whether the exit works at this time of the day."""
        match = _HOURS.fullmatch(self.hours)
        if match is None:
            return True
        begin, end = (int(match[at]) * 60 + int(match[at + 1]) for at in (1, 3))
        minute = now.hour * 60 + now.minute
        if begin <= end:
            return begin <= minute < end
        return minute >= begin or minute < end


def limits_from(stored: object) -> DeviceLimits:
    """Return the limits that a file names; limits that it does not name are the defaults.

    Raises:
        LimitError: one is not known, or cannot be. It is not ignored: an owner who mistypes the
            name of a limit would go without it.
    """
    if not isinstance(stored, dict):
        raise LimitError("limits: must be an object")
    known = {each.name: each.default for each in fields(DeviceLimits)}
    values: dict[str, Any] = {}
    for name, value in stored.items():
        if name not in known:
            raise LimitError(f"limits.{name}: is not known; known are {', '.join(sorted(known))}")
        values[name] = _checked(name, value, known[name])
    return DeviceLimits(**values)


def lesser(own: int, asked: int) -> int:
    """Return the tighter of two limits; 0 means no limit."""
    return min(own, asked) if own and asked else own or asked


def size_from(text: str) -> int:
    """Return the bytes that an owner writes as `5GB`, `500 MB` or `1.5g`; decimal units.

    Raises:
        LimitError: the text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise LimitError(f"{text!r} is no size; write 5GB or 500MB")
    unit: int = _UNITS[match[3].lower()]
    fraction = match[2] or ""
    scale: int = 10 ** len(fraction)
    return int(match[1]) * unit + int(fraction or 0) * unit // scale


def _checked(name: str, value: object, default: object) -> object:
    if name == "ports":
        if not isinstance(value, (list, tuple)) or not all(map(_is_port, value)):
            raise LimitError("limits.ports: must be a list of port numbers")
        return tuple(value)
    if name == "hours":
        if not isinstance(value, str) or (value and not _HOURS.fullmatch(value)):
            raise LimitError("limits.hours: must be like 22:00-07:00, or empty")
        return value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise LimitError(f"limits.{name}: must be true or false")
        return value
    least = 1 if name == "dials_per_second" else 0
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LimitError(f"limits.{name}: must be a whole number of at least {least}")
    return value


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 16
