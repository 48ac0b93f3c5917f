"""Names of files that a job leaves: names that every system can take, judged alike everywhere."""

from __future__ import annotations

import re
from typing import Final

from proxyctl.protocol.jobspec.checks import check_path
from proxyctl.protocol.jobspec.errors import SpecError

# The buyer reads there which outputs were not sent, and why. There is always room for it.
LEFT_OUT: Final = "left-out.txt"
LEFT_OUT_MAX_BYTES: Final = 64 << 10

_FORBIDDEN: Final = frozenset('<>:"|?*')
# Names of devices on Windows, with any ending after a dot; ¹ ² ³ count as digits there.
_DEVICE: Final = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³]) *(?:\..*)?", re.IGNORECASE
)


def check_file_name(where: str, name: str) -> None:
    """Check that every usual system could keep a file under exactly this path.

    Leading dots are allowed: programs need such files. A download has another name then.

    Raises:
        SpecError: some system could not.
    """
    check_path(where, name)
    for part in name.split("/"):
        if _FORBIDDEN.intersection(part):
            raise SpecError(where, 'It has one of the characters < > : " | ? * in it.')
        if part != part.strip() or part.endswith("."):
            raise SpecError(where, "A part of it begins or ends with a blank, or ends with a dot.")
        if _DEVICE.fullmatch(part):
            raise SpecError(where, "A part of it is the name of a device on some systems.")


def download_name(name: str) -> str:
    """Return the last part of a path without leading dots.

    A program that keeps a download under the name that the service gives it would otherwise write
    files such as `.bashrc`.
    """
    return name.rpartition("/")[2].lstrip(".") or "file"
