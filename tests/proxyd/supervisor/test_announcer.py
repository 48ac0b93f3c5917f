"""The service manager and the log see the processes as one daemon, and only changes."""

import logging
import socket
from collections.abc import Iterator

import pytest

from proxyd import __version__
from proxyd.compiled import finder
from proxyd.ops.processes.listening import listen
from proxyd.ops.processes.sd_notify import ServiceManager
from proxyd.supervisor.announcer import Announcer
from proxyd.supervisor.child import Child
from proxyd.wiring.listeners import Listeners


class Processes:
    """Two processes that send the test's messages, and the manager's notifications."""

    def __init__(self, listeners: Listeners) -> None:
        self.told: list[str] = []
        self.children = [Child(index, listeners, lambda: 0.0) for index in range(2)]
        manager = ServiceManager(lambda datagram: self.told.append(datagram.decode()), 10.0)
        self.announcer = Announcer(manager, self.children)
        self._theirs: dict[int, socket.socket] = {}

    def begin(self, index: int, pid: int = 0) -> None:
        ours, self._theirs[index] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.children[index].started(pid or 100 + index, ours)

    def says(self, index: int, *lines: str) -> list[str]:
        """Have a process send messages, and return the notifications to the manager."""
        self._theirs[index].send("\n".join(lines).encode())
        self.children[index].hear()
        return self.looked()

    def ends(self, index: int) -> list[str]:
        self._theirs.pop(index).close()
        self.children[index].ended()
        return self.looked()

    def looked(self) -> list[str]:
        self.told.clear()
        self.announcer.look()
        return list(self.told)

    def close(self) -> None:
        for theirs in self._theirs.values():
            theirs.close()
        for child in self.children:
            child.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    proxy = listen("127.0.0.1", 0, "proxy")
    made = Processes(Listeners(None, proxy, (), None, frozenset([proxy])))
    made.begin(0)
    made.begin(1)
    yield made
    made.close()


def test_the_start_is_complete_when_each_process_is_ready_or_has_failed(
    processes: Processes,
) -> None:
    assert processes.says(0, "READY=1", "STATUS=API here") == []
    assert processes.ends(1) == ["READY=1\nSTATUS=1 of 2 processes are ready: API here"]
    processes.begin(1)
    assert processes.looked() == []
    assert processes.says(1, "READY=1", "STATUS=there") == [
        "STATUS=2 of 2 processes are ready: API here"
    ]
    assert processes.ends(0) == ["STATUS=1 of 2 processes are ready: API here"]


def test_a_reload_is_complete_when_every_process_has_reloaded(processes: Processes) -> None:
    for index in (0, 1):
        processes.says(index, "READY=1", "STATUS=here")
    for child in processes.children:
        child.life.must_reload = True
    processes.announcer.reloading()
    assert processes.looked() == []
    for child in processes.children:
        child.life.reload()
    assert processes.says(0, "READY=1", "STATUS=here") == []
    assert processes.says(1, "READY=1", "STATUS=here") == [
        "READY=1\nSTATUS=2 of 2 processes are ready: here"
    ]


def test_a_reload_during_the_start_is_notified_when_it_is_complete(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    processes.announcer.reloading()
    processes.announcer.reloaded({"log.level"}, has_certificate=False)
    processes.children[0].life.must_reload = True
    processes.says(0, "READY=1", "STATUS=here")
    processes.says(1, "READY=1", "STATUS=here")
    assert "reloaded: " not in caplog.text
    processes.children[0].life.must_reload = False
    processes.looked()
    assert caplog.text.count("reloaded: ") == 1


def test_one_that_dies_while_it_reloads_holds_up_nothing(processes: Processes) -> None:
    for index in (0, 1):
        processes.says(index, "READY=1", "STATUS=here")
    processes.announcer.reloading()
    processes.children[1].life.is_reloading = True
    assert processes.looked() == []
    assert processes.ends(1) == ["READY=1\nSTATUS=1 of 2 processes are ready: here"]


def test_the_watchdog_and_the_stop_are_notified(processes: Processes) -> None:
    processes.announcer.alive()
    processes.announcer.stopping(30.0)
    assert processes.told == ["WATCHDOG=1", "STOPPING=1\nSTATUS=2 processes drain"]


def test_the_log_has_the_common_lines_of_all_processes_once(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def logged() -> list[str]:
        lines = [each.getMessage() for each in caplog.records]
        caplog.clear()
        return lines

    processes.announcer.starting()
    assert logged() == [f"this is proxyd {__version__}, {finder.description()}"]
    processes.says(0, "READY=1", "STATUS=API here")
    assert logged() == []
    processes.says(1, "READY=1", "STATUS=there")
    assert logged() == ["2 of 2 processes are ready: API here"]
    processes.ends(1)
    processes.begin(1, pid=300)
    processes.looked()
    assert logged() == []
    processes.says(1, "READY=1", "STATUS=there")
    assert logged() == ["process 1 (pid 300) is ready; 2 of 2 processes are ready"]
    processes.announcer.stopping(30.0)
    processes.announcer.stopped()
    assert logged() == [
        "draining: 2 processes have 30 seconds to finish; a second signal cuts their connections",
        "stopped",
    ]


def test_the_log_has_the_reloaded_settings_once_every_process_has_them(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    for index in (0, 1):
        processes.says(index, "READY=1", "STATUS=here")
    caplog.set_level(logging.INFO)
    processes.announcer.reloading()
    processes.announcer.reloaded({"proxy.processes", "log.level"}, has_certificate=True)
    processes.children[1].life.is_reloading = True
    processes.looked()
    assert caplog.messages == []
    processes.says(1, "READY=1", "STATUS=here")
    said = ["reloaded: log.level, the certificate", "these change with a restart only: "]
    assert caplog.messages == [said[0], said[1] + "proxy.processes"]
    processes.announcer.reloading()  # and the settings are wrong: nothing is passed on
    processes.looked()
    assert len(caplog.messages) == 2


def test_a_start_that_failed_is_not_called_stopped(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    processes.announcer.stopped()
    assert caplog.messages == []
