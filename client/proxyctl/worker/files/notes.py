"""Lines of the agent in a job's own log, where its buyer reads them while the job runs."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.words import plain_line
from proxyctl.worker.base import names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A folder of checkpoints may have a thousand links, and other ones each time.
NOTES_MAX: Final = 20
LINES_MAX: Final = 10  # of one note
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Notes:
    """Notes in the log of one attempt, beside the lines of its program on stderr.

    Args:
        creates: whether to create the log, for a note before the program runs. The supervisor
            appends to it later. A log that is gone is otherwise left alone: the attempt is over.
    """

    def __init__(self, folder: Path, *, creates: bool = False) -> None:
        self._path = folder / names.LOGS["err"]
        self._flags = _FLAGS | os.O_CREAT if creates else _FLAGS
        self._last: Sequence[str] = ()
        self._left = NOTES_MAX

    def write(self, sentences: Sequence[str]) -> None:
        """Add sentences, a line each, unless they are those of the last note."""
        if sentences == self._last or not self._left:
            return
        self._last = sentences
        self._left -= 1
        lines = [f"proxyctl: {plain_line(each)}\n" for each in sentences[:LINES_MAX]]
        if len(sentences) > LINES_MAX:
            lines.append(f"proxyctl: and {len(sentences) - LINES_MAX} more\n")
        with suppress(OSError):  # the disk is full, or the attempt is over
            _append(self._path, self._flags, "".join(lines).encode())


def _append(path: Path, flags: int, text: bytes) -> None:
    descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        is_within_a_line = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + text if is_within_a_line else text)  # at once, or cut
    finally:
        os.close(descriptor)
