"""The gate of a launch: a named pipe in the folder of an attempt, where its program waits."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from proxyctl.worker.executors.base.base import GATE

if TYPE_CHECKING:
    from pathlib import Path


def make_gate(folder: Path) -> None:
    """Make the gate of an attempt, unless it exists."""
    with suppress(FileExistsError):
        os.mkfifo(folder / GATE, 0o600)


def open_gate(folder: Path) -> None:
    """Open the gate of a waiting program."""
    # If an earlier agent has opened the gate already, no process waits at it any more.
    with suppress(OSError):
        gate = os.open(folder / GATE, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(gate, b"\n")
        finally:
            os.close(gate)
