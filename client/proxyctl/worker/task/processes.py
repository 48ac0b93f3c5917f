"""Processes by more than their number, which the kernel gives to others after them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.executors.base.signals import send

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
# proc_pid_stat(5), counted from behind the name of the program, which may have anything in it.
_STATE: Final = 0
_START_TIME: Final = 19
_GONE: Final = (b"Z", b"X", b"x")


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return an identifier that changes with each start of the machine."""
    with open(_BOOT_ID, encoding="ascii") as file:  # noqa: PTH123 - the supervisor is spared pathlib
        return file.read().strip()


def boot_seconds() -> float:
    """Return the seconds since the start of the machine, including its sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_time(pid: int) -> int | None:
    """Return when a process has started, in ticks since the machine did; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in _GONE else int(fields[_START_TIME])


def give_way(oom_score: int, nice: int) -> None:
    """Give programs of the device's owner priority over this process, for memory and processors.

    Args:
        oom_score: from 0 to 1000; the kernel ends the process with the highest score first.
        nice: as of nice(2).
    """
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:  # noqa: PTH123 - as above
        file.write(b"%d" % oom_score)
    os.nice(nice)


@dataclass(frozen=True)
class Identity:
    """A process, in this start of the machine and no other.

    Attributes:
        pid: its number.
        started: in ticks since the machine was started.
        boot: `boot_id` of then.
    """

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of a process that runs now."""
        started = start_time(pid)
        return None if started is None else cls(pid, started, boot_id())

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Identity:
        """Return the identity in a result of `as_fields`."""
        return cls(int(fields["pid"]), int(fields["started"]), str(fields["boot"]))

    def as_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self.boot == boot_id() and start_time(self.pid) == self.started

    def send(self, number: int) -> None:
        """Send a signal to the process, if its number still belongs to the same process."""
        send(self.pid, number, lambda _: self.is_alive())
