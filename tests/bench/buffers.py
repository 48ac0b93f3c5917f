"""Limits of a socket's buffers: the defaults of this kernel, or of Linux before 6.18.

BUFFERS=default has the default limits of these kernels while something is measured. They are the
whole system's, in every network namespace, and root alone may set them.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from bench.report import progress

# Defaults of Linux before 6.18, on a machine with some gigabytes of memory (socket(7), tcp(7)):
# bytes for SO_RCVBUF and SO_SNDBUF at most; and least, initial and most for the kernel's own
# tuning.
DEFAULTS = {
    "net/core/rmem_max": "212992",
    "net/core/wmem_max": "212992",
    "net/ipv4/tcp_rmem": "4096 131072 6291456",
    "net/ipv4/tcp_wmem": "4096 16384 4194304",
}
ASKED_FOR = ("net/core/rmem_max", "net/core/wmem_max")
FOLDER = Path("/proc/sys")
ENDING = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
)  # signals that a person or `timeout` sends


class BuffersError(Exception):
    """The limits cannot be set; the message says why."""


def present(folder: Path = FOLDER) -> dict[str, str]:
    """Return the limits as they are."""
    return {name: " ".join((folder / name).read_text().split()) for name in DEFAULTS}


def are_default(folder: Path = FOLDER) -> bool:
    """Say whether a program gets no larger buffers than by default, however it asks."""
    limits = present(folder)
    return all(int(limits[name]) <= int(DEFAULTS[name]) for name in ASKED_FOR)


def described(folder: Path = FOLDER) -> str:
    """Return the limits that count, in words."""
    receive, send = (f"{int(present(folder)[name]):,}" for name in ASKED_FOR)
    return f"`rmem_max` is {receive}, `wmem_max` {send} bytes."


def command(limits: dict[str, str]) -> str:
    """Return the command that sets limits."""
    words = (f"{name.replace('/', '.')}='{text}'" for name, text in limits.items())
    return f"sysctl -w {' '.join(words)}"


@contextmanager
def default(folder: Path = FOLDER) -> Iterator[None]:
    """Have the default limits, and afterwards those that were there.

    A signal of `ENDING` ends this process, once they are put back. After a SIGKILL, the command
    that is printed first puts them back.

    Raises:
        BuffersError: they cannot be set.
    """
    before = present(folder)
    progress(f"BUFFERS=default; if this is killed by SIGKILL: {command(before)}")
    with _putting_back(before, folder):
        try:
            _set(DEFAULTS, folder)
        except OSError as error:
            raise BuffersError(f"BUFFERS=default: {error}; root alone may do that") from error
        yield


@contextmanager
def _putting_back(before: dict[str, str], folder: Path) -> Iterator[None]:
    owner, is_over = os.getpid(), False

    def end(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # one that was forked meanwhile: it has nothing to put back
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not is_over:  # or a second signal would interrupt the cleanup that the first one began
            sys.exit(128 + number)

    handlers = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        is_over = True
        try:
            changed = {name: text for name, text in before.items() if present(folder)[name] != text}
            _set(changed, folder)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _set(limits: dict[str, str], folder: Path) -> None:
    for name, text in limits.items():
        (folder / name).write_text(text)
