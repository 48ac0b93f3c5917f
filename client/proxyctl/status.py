"""The end of a command: its exit status, and the words for its owner when it fails."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from proxyctl.words import OwnerError

if TYPE_CHECKING:
    import argparse

DONE: Final = 0
FAILED: Final = 1
IN_VAIN: Final = 2  # the units in client/autostart do not start it again after this one


class InVainError(OwnerError):
    """A command that cannot succeed until its owner has changed something."""


def call(arguments: argparse.Namespace) -> int:
    """Run a command; return its exit status."""
    try:
        return int(arguments.call(arguments))
    except OwnerError as error:
        sys.stderr.write(f"proxyctl: {error}\n")
        return IN_VAIN if isinstance(error, InVainError) else FAILED
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except EOFError:
        sys.stderr.write("\nproxyctl: there was no answer; nothing was agreed to\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return FAILED
