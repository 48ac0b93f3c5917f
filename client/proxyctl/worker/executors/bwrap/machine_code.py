"""Programs of a few instructions, for images whose content is unknown."""

from __future__ import annotations

import struct
from typing import Final

_BASE: Final = 0x400000  # where programs lie that are not moved about
_NUMBERS: Final = {"x86_64": 62, "aarch64": 183}  # of processors, as ELF has them


def program(machine: str, code: bytes) -> bytes:
    """Return an executable file (ELF) of this code, which needs nothing but the kernel.

    Args:
        machine: as `os.uname` names processors.
        code: that it begins with; it may lie anywhere.

    Raises:
        KeyError: nothing is known of such processors.
    """
    number = _NUMBERS[machine]
    size = 64 + 56 + len(code)
    header = struct.pack(
        *("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), 2, number, 1),
        *(_BASE + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0),
    )
    loaded = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + loaded + code
