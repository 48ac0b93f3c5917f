"""The counters of the rules: each fires above its figure, once an hour for a session."""

from typing import Any

import pytest
from msgspec.structs import replace

from proxyd.access_records import Access, Reached
from proxyd.ops.access_log import abuse_watch
from proxyd.ops.access_log.abuse_watch import AbuseWatch, Finding, Thresholds

NOON = 1_769_860_800
FEW = Thresholds(scan_targets=3, scan_failed_percent=60, mail_refusals=2, login_connections=2)
END = Access(1, "session", "198.51.100.7", "192.0.2.1", 22, 0, 0, 0.1, "refused")
BEGUN = Reached(1, "session", "198.51.100.7", "tcp", "192.0.2.1", 22, (), 0, "", "", "")


class Watched:
    """Counters of a test, and their findings."""

    def __init__(self, thresholds: Thresholds = FEW) -> None:
        self.found: list[Finding] = []
        self.watch = AbuseWatch(thresholds, self.found.append)

    def fail(self, *, at: int = NOON, **changes: Any) -> None:
        self.watch.failed(at, replace(END, **changes))

    def reach(self, *, at: int = NOON, **changes: Any) -> None:
        self.watch.reached(at, replace(BEGUN, **changes))

    @property
    def rules(self) -> list[str]:
        return [each.rule for each in self.found]


def test_a_scan_is_many_targets_on_one_port_that_mostly_fail() -> None:
    watched = Watched()
    for number in range(3):
        watched.fail(host=f"192.0.2.{number}", port=8080)
        watched.fail(host="192.0.2.1", port=9000 + number)
    assert watched.rules == []
    watched.fail(host="192.0.2.9", port=8080)
    [found] = watched.found
    assert (found.rule, found.session_id, found.at) == ("scan", "session", NOON)
    assert found.figures == {"port": 8080, "targets": 4, "dials": 4, "failed": 4}


def test_many_targets_that_answer_are_no_scan() -> None:
    watched = Watched()
    for number in range(20):
        watched.reach(host=f"192.0.2.{number}", port=443)
    for number in range(20, 30):
        watched.fail(host=f"192.0.2.{number}", port=443)
    assert watched.rules == []


def test_refused_mail_ports_and_many_logins_at_one_host_are_found() -> None:
    watched = Watched()
    for port in (25, 465, 587):
        watched.fail(port=port, reason="not_allowed")
    for _ in range(3):
        watched.reach(port=22)
        watched.reach(port=80)
    assert watched.rules == ["mail", "login"]
    assert watched.found[0].figures == {"port": 587, "refusals": 3}
    assert watched.found[1].figures == {"port": 22, "connections": 3}


def test_a_minute_begins_anew_and_a_rule_fires_once_an_hour() -> None:
    watched = Watched()
    for minute in range(4):
        watched.fail(port=25, reason="not_allowed", at=NOON + 60 * minute)
    assert watched.rules == []
    for hour in range(2):
        for _ in range(9):
            watched.fail(port=25, reason="not_allowed", at=NOON + 3600 * hour)
    watched.fail(port=25, reason="not_allowed", session_id="other", at=NOON + 3600)
    assert watched.rules == ["mail", "mail"]


def test_zero_switches_a_rule_off_and_other_failures_do_not_count() -> None:
    watched = Watched(Thresholds(0, 60, 0, 0))
    for number in range(99):
        watched.fail(host=f"192.0.2.{number}")
        watched.fail(port=25, reason="not_allowed")
        watched.reach()
    watched = Watched()
    for number in range(9):
        watched.fail(host=f"192.0.2.{number}", reason="no_exit")
        watched.fail(port=0)
    assert watched.rules == []


def test_sessions_and_targets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abuse_watch, "SESSIONS_MAX", 1)
    monkeypatch.setattr(abuse_watch, "TARGETS_MAX", 2)
    watched = Watched()
    for number in range(9):
        watched.fail(host=f"192.0.2.{number}", port=80)
        watched.fail(port=25, reason="not_allowed", session_id="other")
    assert watched.rules == []
