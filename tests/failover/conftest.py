"""Drills on a real primary and its standby: `make failover` runs them, `make test` does not."""

import os
from collections.abc import Callable, Iterator

import pytest
from support.database.postgres_cluster import Cluster, programs

LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A primary and a synchronous standby of Debian's PostgreSQL."""
    if os.environ.get("REQUIRE_FAILOVER") != "1":
        pytest.skip("make failover runs it")
    if programs() is None:
        pytest.fail("PostgreSQL of Debian is not installed: apt-get install postgresql")
    with Cluster.running() as running:
        yield running


@pytest.fixture
def show(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line of figures when all drills are over."""
    return request.config.stash.setdefault(LINES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures of the drills."""
    for line in terminalreporter.config.stash.get(LINES, []):
        terminalreporter.write_line(line)
