"""The failed tests of a run, written to a file: a plugin of pytest.

`make test` prints other checks after the tests, and a reader of the last lines of a log must still
see which test failed and why.
"""

from pathlib import Path

import pytest

LONGEST_REASON = 2000  # characters of the reason of one failure: the last ones


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--failures FILE`."""
    parser.addoption("--failures", type=Path, help="write the failed tests to this file")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write the end of each failure's traceback, then the names; an empty file means no failure."""
    path = config.getoption("failures")
    if path is None:
        return
    failed = terminalreporter.getreports("failed") + terminalreporter.getreports("error")
    reasons = [f"{report.longreprtext[-LONGEST_REASON:]}\n" for report in failed]
    names = [f"FAILED {report.nodeid} ({report.when})\n" for report in failed]
    path.write_text("".join(reasons + names))
