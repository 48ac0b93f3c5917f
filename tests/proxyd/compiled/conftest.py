"""A small checkout that was compiled once, and a copy of it for each test."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from support.small import Checkout, needs_compiler


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A small checkout, compiled; not to be changed. All processes that run tests share it."""
    needs_compiler()
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "small.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        checkout = Checkout(shared / "small")
        if not checkout.root.exists():
            checkout.write()
            assert checkout.build().startswith("compiled: 2 modules of the data path, in ")
    return checkout


@pytest.fixture
def checkout(compiled_once: Checkout, tmp_path: Path) -> Checkout:
    """A small checkout, compiled."""
    shutil.copytree(compiled_once.root, tmp_path / "checkout")
    return Checkout(tmp_path / "checkout")
