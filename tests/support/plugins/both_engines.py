"""The database engines that the tests of the marketplace run on: a plugin of pytest.

A test that takes the fixture `engine` can run on SQLite and on PostgreSQL. `--engines needed` runs
all of them on SQLite. On PostgreSQL it runs the tests outside `ROOMS`, and in there the ones marked
`both_engines`: races (the engines lock differently), invariants, one kill and one crash, and enough
others to run each SQL statement of the marketplace on PostgreSQL. `--engines both` runs everything
on both; `--engines checked` does so as well, and fails when only unmarked tests run a statement on
PostgreSQL.
"""

import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from storage.engines import postgres
from support.database.postgres import prepared
from support.plugins import processes

MARKER = "both_engines"
# A test in one of these folders runs on PostgreSQL only with the marker.
ROOMS = [Path(__file__).parents[2] / name for name in ("market", "integration", "faults")]


class Statements:
    """The SQL statements that tests run on PostgreSQL, gathered from all processes of the tests."""

    def __init__(self) -> None:
        self.needed: set[str] = set()  # run by a marked test, or by a test outside `ROOMS`
        self.others: dict[str, str] = {}  # run by another test, with the node id of the test

    def missing(self) -> dict[str, str]:
        """Return the statements that would not run without the unmarked tests."""
        return {each: test for each, test in self.others.items() if each not in self.needed}


_STATEMENTS = pytest.StashKey[Statements]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--engines`."""
    parser.addoption(
        "--engines",
        choices=("both", "needed", "checked"),
        default="both",
        help="run the tests of the marketplace on both engines, or only where they are needed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker, and start with no statement."""
    config.addinivalue_line("markers", f"{MARKER}: `make test` runs the test on PostgreSQL too")
    config.stash[_STATEMENTS] = Statements()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are not needed on PostgreSQL."""
    if config.getoption("engines") != "needed":
        return
    left_out = [item for item in items if _is_on_postgres(item) and not _is_needed(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not _is_on_postgres(item) or _is_needed(item)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Prepare the servers of PostgreSQL once, before other processes are forked."""
    if session.config.getoption("processes") and any(map(_is_on_postgres, session.items)):
        prepared()


def _is_on_postgres(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("engine") == "postgres"


def _is_needed(item: pytest.Item) -> bool:
    is_inside = any(room in item.path.parents for room in ROOMS)
    return not is_inside or item.get_closest_marker(MARKER) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record the statements that a test runs on PostgreSQL in its own process."""
    if item.config.getoption("engines") != "checked" or not _is_on_postgres(item):
        return (yield)
    statements = item.config.stash[_STATEMENTS]
    original = postgres._positional  # each statement goes through this function

    def recording(sql: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
        statement = " ".join(sql.split())
        if _is_needed(item):
            statements.needed.add(statement)
        else:
            statements.others.setdefault(statement, item.nodeid)
        return original(sql, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "_positional", recording)
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Return the statements to the first process of the tests; there, fail if one is missing."""
    config = session.config
    statements = config.stash[_STATEMENTS]
    if processes.VARIABLE in os.environ:
        config.stash[processes.OUTPUT_KEY][MARKER] = (statements.needed, statements.others)
        return
    for output in config.stash[processes.OUTPUTS]:
        needed, others = output[MARKER]
        statements.needed.update(needed)
        statements.others.update(others)
    if statements.missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name each missing statement, and a test that runs it."""
    for statement, test in sorted(config.stash[_STATEMENTS].missing().items()):
        terminalreporter.write_line(
            f"no test marked {MARKER} runs this on PostgreSQL, as {test} does: {statement}"
        )
