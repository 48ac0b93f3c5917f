"""Folders in memory, where there is room: files that tests write there never wait for a disk."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
# A server of PostgreSQL has 50 MB there, up to 256 MB of log, and a few databases at a time; the
# folder of a test is one megabyte mostly. Where there is less room they are on a disk.
MEMORY_MIN_BYTES = 4 * 10**9
DISK = Path("/tmp")  # not TMPDIR, which may be too long a path for a socket


def room() -> Path:
    """Return a folder for files that need not outlive the machine."""
    has_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_MIN_BYTES
    return MEMORY if has_memory else DISK


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for a test, which goes with all that is in it."""
    with tempfile.TemporaryDirectory(
        prefix="proxyd-test-", dir=room(), ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


@pytest.fixture(name="tmp_path")
def memory_path() -> Iterator[Path]:
    """A folder in memory in the place of pytest's: for tests that write a database, mostly.

    A `conftest.py` imports it for its folder, where nothing is run from there.
    """
    with folder() as made:
        yield made
