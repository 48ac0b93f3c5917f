"""Signals to processes that may have ended, and whose numbers other processes may have."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def send(pid: int, number: int, still: Callable[[int], bool]) -> None:
    """Send a signal to a process, if its number still belongs to the same process.

    Args:
        pid: of the process.
        number: of the signal.
        still: says whether this number still stands for such a process, after it cannot be given
            to another one any more.
    """
    try:
        descriptor = _opened(pid)
    except ProcessLookupError:
        return
    if descriptor is None:
        if still(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return
    try:
        if still(pid):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _opened(pid: int) -> int | None:
    """Return a descriptor of a process; None before Linux 5.3, or where Python knows of none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return None
        raise
