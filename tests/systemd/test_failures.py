"""What goes wrong: a killed process, one that stands still, settings that are wrong."""

import socket

import pytest
from support.base.waiting import until_true
from support.daemons.process import begin
from support.machines.installed import EMAIL, PASSWORD, SECRETS, Service, block
from support.targets import threads


def test_a_killed_process_is_started_again_and_the_books_agree(
    running: Service, token: str
) -> None:
    machine, before = running.machine, running.main_pid
    cursor = machine.journal_cursor()
    with threads.web() as target, begin(running, running.buy(token)["proxy"], target.port):
        machine.run(f"kill -KILL {before}")
        until_true(lambda: running.main_pid not in (0, before), "another process")
        until_true(lambda: running.state == "active", "active again")
    assert "leases that a dead daemon had left open, taken back: 1" in machine.journal(cursor)
    assert "the ledger agrees" in running.audit()
    assert running.log_in(EMAIL, PASSWORD)


def test_one_that_stands_still_is_ended_and_started_again(running: Service) -> None:
    with running.changed("WatchdogSec=2"):
        machine, before = running.machine, running.main_pid
        cursor = machine.journal_cursor()
        machine.run(f"kill -STOP {before}")
        until_true(lambda: running.main_pid not in (0, before), "another process")
        until_true(lambda: running.state == "active", "active again")
        assert "Watchdog timeout" in machine.journal(cursor)
        assert running.log_in(EMAIL, PASSWORD)
        assert "the ledger agrees" in running.audit()
    assert "core" not in running.machine.says("ls /var/lib/proxyd")


def test_a_wrong_setting_is_one_line_and_no_loop(running: Service) -> None:
    machine, cursor = running.machine, running.machine.journal_cursor()
    running.configure(limits__idle_seconds='"long"')
    try:
        done = machine.run("systemctl restart proxyd.service", check=False)
        assert done.returncode != 0
        until_true(lambda: running.state == "failed", "given up")
        assert (machine.show("Result"), machine.show("NRestarts")) == ("exit-code", "0")
        told = [line for line in machine.journal(cursor).splitlines() if "idle_seconds" in line]
        expected = "expected a number above 0 and up to 86400, got 'long'"
        assert told == [f"proxyd: wrong in the settings: limits.idle_seconds: {expected}"]
        # Each client has it tried again, but not for ever: then nobody listens.
        with socket.create_connection(("127.0.0.1", 1080)):
            until_true(lambda: machine.show("ActiveState", "proxyd.socket") == "failed")
        assert machine.journal(cursor).count("wrong in the settings") <= 21
        assert machine.show("Result", "proxyd.socket") == "service-start-limit-hit"
    finally:
        running.configure()
    machine.run(block("reset-failed"))
    assert running.log_in(EMAIL, PASSWORD)


@pytest.mark.parametrize(
    ("broken", "mended", "line"),
    [
        (
            "chmod 0400 /var/lib/proxyd/proxyd.db",
            "chmod 0600 /var/lib/proxyd/proxyd.db",
            "proxyd: /var/lib/proxyd/proxyd.db: Permission denied",
        ),
        (
            f"mv {SECRETS}/signing-key {SECRETS}/elsewhere",
            f"mv {SECRETS}/elsewhere {SECRETS}/signing-key",
            "Failed to set up credentials",
        ),
    ],
    ids=["the service fails", "systemd fails"],
)
def test_a_failure_that_may_pass_by_itself_is_tried_for_ever(
    running: Service, broken: str, mended: str, line: str
) -> None:
    machine, cursor = running.machine, running.machine.journal_cursor()
    machine.run(f"systemctl stop proxyd.service; {broken}")
    try:
        assert machine.run("systemctl start proxyd.service", check=False).returncode != 0
        until_true(lambda: int(machine.show("NRestarts")) > 5, "tried again")
    finally:
        machine.run(mended)
    until_true(lambda: running.state == "active", "active again")
    assert line in machine.journal(cursor)
