import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from proxyctl.exit.base import journal as journal_module
from proxyctl.exit.base.journal import Journal, describe


class Days:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 30, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_days(self, count: int) -> None:
        self.now += timedelta(days=count)


def test_days_and_months_begin_anew(tmp_path: Path) -> None:
    days = Days()
    kept = Journal(tmp_path / "journal", days)
    kept.add_bytes(1_000)
    kept.turn()
    assert (kept.bytes_today, kept.bytes_this_month) == (1_000, 1_000)
    days.pass_days(1)
    kept.turn()
    kept.add_bytes(20)
    assert (kept.bytes_today, kept.bytes_this_month) == (20, 1_020)
    days.pass_days(1)
    kept.turn()
    assert (kept.bytes_today, kept.bytes_this_month) == (0, 0)


def test_small_amounts_are_shown_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = Journal(path, Days())
    kept.add_bytes(1_266)
    kept.turn()
    kept.save()
    assert describe(path)[0] == "carried on 2026-01-30: 1,266 bytes"
    assert describe(path)[-1] == "last targets (kept on this device only): none"
    kept.add_bytes(1_000_000)
    kept.save()
    assert describe(path)[0] == "carried on 2026-01-30: 1.001 MB"


def test_a_clock_that_is_not_set_yet_gives_no_bytes_anew(tmp_path: Path) -> None:
    days, path = Days(), tmp_path / "journal"
    kept = Journal(path, days)
    kept.add_bytes(5)
    kept.save()
    now, days.now = days.now, datetime(1970, 1, 1, tzinfo=UTC)
    again = Journal(path, days)  # the device was started again
    assert (again.bytes_today, again.bytes_this_month) == (5, 5)
    again.add_bytes(1)
    days.now = now
    again.turn()
    assert (again.bytes_today, again.bytes_this_month) == (6, 6)


def test_it_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    days, path = Days(), tmp_path / "journal"
    kept = Journal(path, days)
    kept.add_bytes(5)
    kept.add_target("example.org", 443)
    kept.add_target("2001:db8::1", 80)
    kept.save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Journal(path, days)
    assert (again.bytes_today, again.bytes_this_month) == (5, 5)
    again.add_bytes(1)
    again.save()
    lines = "\n".join(describe(path))
    assert "2026-01-30T12:00:00+00:00  example.org:443" in lines
    assert "[2001:db8::1]:80" in lines
    assert "443 (1 connection)" in lines
    days.pass_days(1)
    assert Journal(path, days).bytes_today == 0
    assert Journal(path, days).bytes_this_month == 6


def test_it_remembers_only_the_last_targets(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = Journal(path, Days())
    for number in range(250):
        kept.add_target(f"n{number}.example.org", 1 + number)
    kept.save()
    lines = describe(path)
    assert "n149.example.org" not in "\n".join(lines)
    assert lines[-1].endswith("n249.example.org:250")
    assert len([line for line in lines if "example.org" in line]) == journal_module.TARGETS_KEPT


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"day": 1, "ports": []}'])
def test_a_broken_one_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal"
    path.write_text(text)
    kept = Journal(path, Days())
    assert kept.bytes_today == 0
    kept.save()
    assert Journal(path, Days()).bytes_today == 0


def test_nothing_is_written_while_nothing_happens(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    kept = Journal(path, Days())
    kept.save()
    path.unlink()
    kept.save()
    assert not path.exists()
    assert describe(path) == ["nothing was carried yet"]
