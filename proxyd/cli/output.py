"""Output of a command: its answer on standard output, its errors on standard error."""

import os
import sys
from datetime import UTC, datetime

from proxyd.ops.base.logs import escaped

LAYOUT = "\n\t"  # control characters that an error of several lines has


class OutputError(Exception):
    """The answer or the file of a command cannot be written; the message is for its user."""


def printable(text: str, *, kept: str = "") -> str:
    r"""Return a text of a stranger with control characters of terminals escaped, as `\n`.

    Args:
        text: any text.
        kept: control characters that stay.
    """
    return "".join(each if each.isprintable() or each in kept else escaped(each) for each in text)


def moment(seconds: int) -> str:
    """Return a time in UTC seconds as an operator reads it (ISO 8601)."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def complain(text: str) -> None:
    """Write an error to standard error: in one write, because several processes may do so.

    Text of other people may be in it, so control characters of terminals are escaped.
    """
    sys.stderr.write(f"proxyd: {printable(text, kept=LAYOUT)}\n")


def say(text: str) -> None:
    """Print the output of a command; drop the rest when its reader has closed the pipe.

    Raises:
        OutputError: it cannot be written, as on a full disk.
    """
    try:
        print(text, flush=True)  # noqa: T201 - the answer of a command
    except BrokenPipeError:
        _drop_the_rest()
    except OSError as error:
        _drop_the_rest()
        message = f"the command is done, and its answer cannot be written: {error.strerror}"
        raise OutputError(message) from error


def _drop_the_rest() -> None:
    """Lead standard output nowhere: Python flushes the rest again at its exit, and complains."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
