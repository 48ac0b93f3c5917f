"""Three machines with Patroni, and three daemons on their PostgreSQL."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.daemons import process
from support.daemons.process import Process, serving
from support.outages import patroni
from support.outages.patroni import URL, Cluster

DAEMONS = 3
NODE_TIMEOUT_SECONDS = 30
SETTINGS = {
    "PROXYD_CLUSTER__NODE_TIMEOUT_SECONDS": str(NODE_TIMEOUT_SECONDS),
    "PROXYD_LIMITS__JOBS_PER_USER": "0",
    "PROXYD_LIMITS__FREE_JOBS_PER_USER": "0",
    "PROXYD_LIMITS__JOB_BYTES_PER_USER": "0",
    "PROXYD_LIMITS__SESSIONS_PER_USER": "0",
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The three machines."""
    if not os.environ.get("REQUIRE_PATRONI"):
        pytest.skip("`make patroni` runs it, as root: it starts three machines with PostgreSQL")
    assert [name for _, name in socket.if_nameindex()] == ["lo"], "not in a network of its own"
    # Not below pytest's own folder, which only root enters: PostgreSQL's user opens the watchdogs.
    with TemporaryDirectory(prefix="proxyd-machines-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with patroni.cluster(folder, is_strict=os.environ.get("STRICT") == "1") as running:
            yield running


@pytest.fixture(scope="session")
def buyer(cluster: Cluster) -> tuple[str, str]:
    """The address and password of an account with money."""
    return process.funded(URL, "100000", credit="100000")


@pytest.fixture(scope="session")
def daemons(cluster: Cluster, buyer: tuple[str, str]) -> Iterator[list[Process]]:
    """The daemons."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(URL, **SETTINGS)) for _ in range(DAEMONS)]
