"""Calls of the C library that Python has no function for, and their errors."""

from __future__ import annotations

import ctypes
import os
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
# Flags of clone(2).
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
# Options of prctl(2).
PR_SET_PDEATHSIG: Final = 1


def checked(result: int, path: str | None = None) -> int:
    """Return the result of a call that returns -1 after an error.

    Args:
        result: of a function of `LIBC`.
        path: that the call is about, for the error.

    Raises:
        OSError: the call has failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def prctl(option: int, value: int) -> None:
    """Set an option of this process (man page prctl, section 2); raises as `checked`."""
    checked(LIBC.prctl(option, value, 0, 0, 0))
