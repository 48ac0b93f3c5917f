"""A machine with a systemd of its own, on which proxyd is a service."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.machines import machine as machines
from support.machines.installed import EMAIL, PASSWORD, Service
from support.machines.machine import Machine


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine that runs, as it was made."""
    root = os.environ.get("PROXYD_MACHINE")
    if root is None:
        pytest.skip("`make systemd` runs it, as root: it boots a machine with a systemd of its own")
    if why := machines.lacking():
        pytest.skip(f"no machine with a systemd of its own: {why}")
    log = tmp_path_factory.mktemp("machine") / "console"
    with machines.booted(Path(root).resolve(), log) as booted:
        yield booted


@pytest.fixture(scope="session")
def installed(machine: Machine) -> Service:
    """The service, installed and started by the commands of the page for operators."""
    service = Service(machine)
    service.install()
    return service


@pytest.fixture
def running(installed: Service) -> Iterator[Service]:
    """The service, running with the settings of its installation; its ledger must agree."""
    assert installed.state == "active"
    yield installed
    if installed.state != "active":
        installed.set_right()
    installed.audit()


@pytest.fixture
def token(running: Service) -> str:
    """The login of a user with money."""
    return running.log_in(EMAIL, PASSWORD)
