"""A small checkout that was compiled once, and a copy of it for each test."""

import shutil
from pathlib import Path

import pytest
from support.base.once import made_once
from support.machines.small import Checkout, needs_compiler


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A small checkout, compiled; not to be changed. All processes that run tests share it."""
    needs_compiler()

    def compiled(folder: Path) -> None:
        checkout = Checkout(folder)
        checkout.write()
        assert checkout.build().startswith("compiled: 2 modules of the data path, in ")

    return Checkout(made_once(tmp_path_factory, "small", compiled))


@pytest.fixture
def checkout(compiled_once: Checkout, tmp_path: Path) -> Checkout:
    """A small checkout, compiled."""
    shutil.copytree(compiled_once.root, tmp_path / "checkout")
    return Checkout(tmp_path / "checkout")
