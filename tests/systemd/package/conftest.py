"""A Debian with a systemd of its own, where apt installs the package."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.machines import machine as machines
from support.machines.machine import Machine


@pytest.fixture(scope="session")
def package_root() -> Path:
    """The folder of the Debian."""
    root = os.environ.get("PROXYD_MACHINE")
    if root is None:
        pytest.skip("`make systemd` runs it, as root: it boots a machine with a systemd of its own")
    if why := machines.lacking():
        pytest.skip(f"no machine with a systemd of its own: {why}")
    return Path(root).resolve()


@pytest.fixture(scope="session")
def package_machine(
    package_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """A machine that runs, without the service."""
    log = tmp_path_factory.mktemp("package") / "console"
    with machines.booted(package_root, log) as booted:
        yield booted
