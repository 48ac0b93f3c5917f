"""Tests in several processes, forked after one collection: a plugin of pytest, `--processes N`.

The first process imports the tests, and forks. It gives each process a part of the tests, in their
order, so that neighbours share the fixtures of their file. The parts take about the same time, so
folders whose tests wait run beside others that compute, from the start on. A process without tests
left takes the second half of the largest part. pytest-xdist, which `make coverage` uses, has every
process import all tests: 8 seconds of processor time each, and 3 milliseconds of messages for each
test.
"""

import os
import random
import signal
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

# The variable of a process that runs tests, with its number; the first process has none.
VARIABLE = "PROXYD_TEST_PROCESS"
NEXT, REPORT, OUTPUT, BROKEN, ENDED = "next", "report", "output", "broken", "ended"
# Time of a test of these folders, in that of a usual one: means of a whole run.
WEIGHTS = {"integration": 7, "sim": 7, "faults": 5, "console": 4, "docs": 4, "storage": 3}
TERMINATION_SECONDS = 30.0  # for the session's fixtures, among them a PostgreSQL server

OUTPUTS = pytest.StashKey[list[dict[str, Any]]]()
OUTPUT_KEY = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--processes`."""
    parser.addoption(
        "--processes", type=int, default=0, help="fork this many processes, which run the tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the values that the processes return to the first one."""
    config.stash[OUTPUTS] = []
    config.stash[OUTPUT_KEY] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the collected tests in processes of their own."""
    number = min(session.config.getoption("processes"), len(session.items))
    if number == 0 or session.config.option.collectonly or session.testsfailed:
        return None
    _Run(session, number).run()
    return True


class _Process:
    """A process that runs tests, as the first process sees it."""

    def __init__(self, pid: int, connection: Connection, part: deque[int]) -> None:
        self.pid = pid
        self.connection = connection
        self.part = part  # indices of its tests that it has not taken
        self.begun: int | None = None
        self.taken: int | None = None  # the test after the one that has begun


class _Run:
    """The first process's side of a run: the parts, the processes, and the reports."""

    def __init__(self, session: pytest.Session, number: int) -> None:
        self._session = session
        self._processes: list[_Process] = []
        self._weights = [_weight(item) for item in session.items]
        self._parts = _parts(session.items, self._weights, number)

    def run(self) -> None:
        """Run all tests, and report them.

        Raises:
            Session.Failed, Session.Interrupted: the run stops early, by an option of pytest.
        """
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        try:
            for part in self._parts:
                self._start(part)
            while self._processes:
                for ready in wait([each.connection for each in self._processes]):
                    [process] = [each for each in self._processes if each.connection is ready]
                    self._receive(process)
        finally:
            self._end()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _start(self, part: deque[int]) -> None:
        ours, theirs = Pipe()
        number = len(self._processes)
        pid = os.fork()
        if pid == 0:
            for each in self._processes:
                each.connection.close()
            ours.close()
            _work(self._session, theirs, number)
        theirs.close()
        self._processes.append(_Process(pid, ours, part))

    def _receive(self, process: _Process) -> None:
        config = self._session.config
        kind, value = _received(process.connection)
        if kind == ENDED:
            self._lose(process)
        elif kind == NEXT:
            process.begun, process.taken = process.taken, self._next(process)
            process.connection.send(process.taken)
        elif kind == REPORT:
            report = config.hook.pytest_report_from_serializable(config=config, data=value)
            config.hook.pytest_runtest_logreport(report=report)
        elif kind == OUTPUT:
            config.stash[OUTPUTS].append(value)
            self._remove(process)
        else:
            raise RuntimeError(f"a process of the tests is broken:\n{value}")

    def _next(self, process: _Process) -> int | None:
        """Return the index of the next test of a process; None at the end of the run."""
        if self._session.shouldfail or self._session.shouldstop:
            return None
        if not process.part:
            self._share(max((each.part for each in self._processes), key=self._time), process.part)
        return process.part.popleft() if process.part else None

    def _share(self, largest: deque[int], empty: deque[int]) -> None:
        """Move the second half of a part's time, at least one of two tests, to an empty part."""
        half = self._time(largest) / 2
        while len(largest) > 1 and (
            not empty or self._time(empty) + self._weights[largest[-1]] <= half
        ):
            empty.appendleft(largest.pop())

    def _time(self, part: deque[int]) -> int:
        return sum(self._weights[at] for at in part)

    def _lose(self, process: _Process) -> None:
        """Report the test that has ended its process, and have another process run the rest."""
        left = deque(each for each in (process.taken, *process.part) if each is not None)
        begun = process.begun
        if begun is None and process.taken is not None:  # it ended before its first test
            begun = left.popleft()
        self._remove(process)
        if begun is not None:
            item = self._session.items[begun]
            message = f"the process of {item.nodeid} has ended during the test"
            report = pytest.TestReport(
                item.nodeid, item.location, dict(item.keywords), "failed", message, "call"
            )
            item.ihook.pytest_runtest_logreport(report=report)
        if left:
            self._start(left)

    def _remove(self, process: _Process) -> None:
        self._processes.remove(process)
        process.connection.close()
        os.waitpid(process.pid, 0)

    def _end(self) -> None:
        """End the processes of an interrupted run; each closes its session's fixtures."""
        for process in self._processes:
            process.connection.close()
        for process in self._processes:
            with _killing(process.pid):
                os.waitpid(process.pid, 0)
        self._processes.clear()


@contextmanager
def _killing(pid: int) -> Iterator[None]:
    """Kill a process that has not ended in time."""
    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, TERMINATION_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _received(connection: Connection) -> tuple[str, Any]:
    """Return a message of a process; its end is one as well."""
    try:
        message: tuple[str, Any] = connection.recv()
    except (EOFError, ConnectionError):
        return ENDED, None
    return message


def _weight(item: pytest.Item) -> int:
    folders = item.nodeid.partition("::")[0].split("/")[:-1]
    return max((WEIGHTS.get(each, 1) for each in folders), default=1)


def _parts(items: list[pytest.Item], weights: list[int], number: int) -> list[deque[int]]:
    """Return the indices of the tests in parts; each part begins with its share of early tests."""
    early = [at for at, item in enumerate(items) if item.get_closest_marker("early")]
    others = [at for at, item in enumerate(items) if not item.get_closest_marker("early")]
    parts = [deque(early[at::number]) for at in range(number)]
    total, before = sum(weights[at] for at in others), 0
    for at in others:
        parts[before * number // total].append(at)
        before += weights[at]
    return parts


def _work(session: pytest.Session, connection: Connection, number: int) -> None:
    """Run tests in a forked process until there are none, and end it."""
    status = 1
    try:
        _separate(session.config, number)
        session.config.pluginmanager.register(_Reporting(session.config, connection))
        _run_tests(session, connection)
        connection.send((OUTPUT, session.config.stash[OUTPUT_KEY]))
        status = 0
    except (EOFError, ConnectionError):  # the first process has ended, or ends the run
        pass
    except BaseException:  # noqa: BLE001 - an interrupted run, or a broken plugin: reported there
        connection.send((BROKEN, traceback.format_exc()))
    finally:
        os._exit(status)


def _separate(config: pytest.Config, number: int) -> None:
    """Give a forked process its own output, folder for temporary files, and random numbers."""
    manager = config.pluginmanager
    manager.unregister(name="terminalreporter")
    capturing: Any = manager.getplugin("capturemanager")
    capturing.stop_global_capturing()
    capturing.start_global_capturing()
    os.environ[VARIABLE] = str(number)
    folder = config._tmp_path_factory.getbasetemp() / f"process-{os.getpid()}"  # type: ignore[attr-defined]
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    random.seed()


def _run_tests(session: pytest.Session, connection: Connection) -> None:
    index = _following(connection)
    try:
        while index is not None:
            following = _following(connection)
            nextitem = None if following is None else session.items[following]
            item = session.items[index]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            index = following
    finally:
        session._setupstate.teardown_exact(None)
        session.config.hook.pytest_sessionfinish(session=session, exitstatus=0)


def _following(connection: Connection) -> int | None:
    connection.send((NEXT, None))
    index: int | None = connection.recv()
    return index


class _Reporting:
    """Sends the reports of tests to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send((REPORT, data))
