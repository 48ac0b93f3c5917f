"""Output of a command: its answer on standard output, its errors on standard error."""

import os
import sys


def complain(text: str) -> None:
    """Write an error to standard error: in one write, because several processes may do so.

    Text of other people may be in it, so control characters of terminals become question marks.
    """
    shown = "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)
    sys.stderr.write(f"proxyd: {shown}\n")


def say(text: str) -> None:
    """Print the output of a command; drop the rest when its reader has closed the pipe."""
    try:
        print(text, flush=True)  # noqa: T201 - the answer of a command
    except BrokenPipeError:
        # Python flushes the rest again at its exit, and would complain there.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
