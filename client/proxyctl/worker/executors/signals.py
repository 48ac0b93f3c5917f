"""Signals to processes that may have ended, and whose numbers may be another's by then."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def send(pid: int, number: signal.Signals, still: Callable[[int], bool]) -> None:
    """Send a signal to a process, if it is still the one that was meant.

    Args:
        pid: of the process.
        number: of the signal.
        still: says whether this number still stands for such a process, after it cannot be given
            to another one any more.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if still(pid):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)
