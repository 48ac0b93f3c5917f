"""What the system lets a socket have of buffers: as this machine is set up, or as a new one is.

BUFFERS=default has the limits of a new machine while something is measured. They are the whole
system's, in every network namespace, and root alone may set them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Linux' own, on a machine with some gigabytes of memory (socket(7), tcp(7)): bytes for SO_RCVBUF
# and SO_SNDBUF at most; and least, initial and most for the kernel's own tuning.
DEFAULTS = {
    "net/core/rmem_max": "212992",
    "net/core/wmem_max": "212992",
    "net/ipv4/tcp_rmem": "4096 131072 6291456",
    "net/ipv4/tcp_wmem": "4096 16384 4194304",
}
ASKED_FOR = ("net/core/rmem_max", "net/core/wmem_max")
FOLDER = Path("/proc/sys")


class BuffersError(Exception):
    """The limits cannot be set; the message says why."""


def present(folder: Path = FOLDER) -> dict[str, str]:
    """Return the limits as they are."""
    return {name: " ".join((folder / name).read_text().split()) for name in DEFAULTS}


def are_default(folder: Path = FOLDER) -> bool:
    """Say whether a program gets no larger buffers than on a new machine, however it asks."""
    limits = present(folder)
    return all(int(limits[name]) <= int(DEFAULTS[name]) for name in ASKED_FOR)


def described(folder: Path = FOLDER) -> str:
    """Return the limits that count, in words."""
    receive, send = (f"{int(present(folder)[name]):,}" for name in ASKED_FOR)
    return f"`rmem_max` is {receive}, `wmem_max` {send} bytes."


@contextmanager
def default(folder: Path = FOLDER) -> Iterator[None]:
    """Have the limits of a new machine, and afterwards those that were there.

    Raises:
        BuffersError: they cannot be set.
    """
    before = present(folder)
    try:
        try:
            _set(DEFAULTS, folder)
        except OSError as error:
            raise BuffersError(f"BUFFERS=default: {error}; root alone may do that") from error
        yield
    finally:
        changed = {name: text for name, text in before.items() if present(folder)[name] != text}
        _set(changed, folder)


def _set(limits: dict[str, str], folder: Path) -> None:
    for name, text in limits.items():
        (folder / name).write_text(text)
