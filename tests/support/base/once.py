"""Files that are made once for all tests, in any number of test processes."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.plugins import processes


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that the first test fills, in whichever process it runs; others wait for it.

    Args:
        factory: pytest's own.
        name: the folder's; the same for all that share it.
        make: is given the path, at which nothing is yet.
    """
    shared = factory.getbasetemp()
    if {
        "PYTEST_XDIST_WORKER",
        processes.VARIABLE,
    } & os.environ.keys():  # each process has a folder of its own in there
        shared = shared.parent
    folder, finished = shared / name, shared / f"{name}.finished"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # the remains of a failure
            make(folder)
            finished.touch()
    return folder
