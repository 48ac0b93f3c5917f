from datetime import UTC, datetime

import pytest
from support.base.cases import cases

from proxyctl.exit.base.limits import DeviceLimits, LimitError, lesser, limits_from, size_from


@cases(
    ("text", "size"),
    [
        ("0", 0),
        ("5GB", 5 * 10**9),
        ("500 MB", 5 * 10**8),
        ("1.5g", 1_500_000_000),
        ("1.001kb", 1_001),
        ("2T", 2 * 10**12),
        ("12", 12),
    ],
)
def test_sizes_are_written_as_people_do(text: str, size: int) -> None:
    assert size_from(text) == size


@cases("text", ["", "GB", "-1GB", "1.2.3GB", "1e9", "5GiB", "9" * 16, "1.2345GB"])
def test_a_text_without_a_size_is_refused(text: str) -> None:
    with pytest.raises(LimitError):
        size_from(text)


@cases(
    ("hours", "at", "works"),
    [
        ("", "12:00", True),
        ("09:00-17:00", "08:59", False),
        ("09:00-17:00", "09:00", True),
        ("09:00-17:00", "16:59", True),
        ("09:00-17:00", "17:00", False),
        ("22:00-07:00", "23:30", True),
        ("22:00-07:00", "00:00", True),
        ("22:00-07:00", "07:00", False),
        ("22:00-07:00", "12:00", False),
    ],
)
def test_hours_may_go_over_midnight(hours: str, at: str, works: bool) -> None:
    now = datetime.fromisoformat(f"2026-01-01T{at}:00").replace(tzinfo=UTC)
    assert DeviceLimits(hours=hours).is_hour(now) is works


@cases(
    "stored",
    [
        [],
        {"unknown": 1},
        {"connections": -1},
        {"connections": True},
        {"connections": "16"},
        {"dials_per_second": 0},
        {"hours": "9-17"},
        {"hours": "24:00-07:00"},
        {"ports": [0]},
        {"ports": [70_000]},
        {"ports": 80},
        {"on_metered": 1},
    ],
)
def test_limits_that_cannot_be_are_named(stored: object) -> None:
    with pytest.raises(LimitError, match="limits"):
        limits_from(stored)


def test_limits_are_stored_and_read() -> None:
    limits = DeviceLimits(ports=(443,), hours="22:00-07:00", bytes_per_month=7)
    assert limits_from(limits.as_fields()) == limits
    assert limits_from({}) == DeviceLimits()


@cases(("own", "asked", "least"), [(0, 0, 0), (5, 0, 5), (0, 5, 5), (3, 5, 3)])
def test_no_limit_is_the_loosest(own: int, asked: int, least: int) -> None:
    assert lesser(own, asked) == least
