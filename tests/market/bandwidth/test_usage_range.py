"""Hours and days of a series: whole ones, up to the present, in the named zone."""

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest
from support.base.cases import cases

from market.bandwidth.usage_range import (
    HOURS_KEPT_DAYS,
    ROWS_MAX,
    Range,
    Step,
    hours_kept_since,
    last_days,
    range_of,
    zone_of,
)
from market.base.errors import Code, MarketError

BERLIN, ISTANBUL = ZoneInfo("Europe/Berlin"), ZoneInfo("Europe/Istanbul")
HOUR, DAY = 3_600, 86_400


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def lengths(series: Range) -> list[float]:
    return [(each.ends_at - each.begins_at) / HOUR for each in series.buckets]


def refused(
    step: Step, begins: str | None, ends: str | None, now: str, zone: tzinfo = UTC
) -> tuple[Code, str | None]:
    with pytest.raises(MarketError) as caught:
        range_of(
            step,
            zone,
            None if begins is None else at(begins),
            None if ends is None else at(ends),
            now=at(now),
        )
    return caught.value.code, caught.value.field


NOW = "2026-11-21T19:30:00Z"


def test_a_range_is_of_whole_hours_up_to_the_one_that_has_begun() -> None:
    begins, ends = at("2026-11-21T17:59:59Z"), at("2026-11-30T00:00:00Z")
    series = range_of(Step.HOUR, UTC, begins, ends, now=at(NOW))
    assert series.whole == (at("2026-11-21T17:00:00Z"), at("2026-11-21T20:00:00Z"))
    assert lengths(series) == [1, 1, 1]
    series = range_of(Step.HOUR, UTC, begins, at("2026-11-21T19:00:00Z"), now=at(NOW))
    assert lengths(series) == [1, 1], "it ends where the next one begins"


def test_a_range_that_is_left_out_is_a_day_of_hours_or_thirty_days() -> None:
    assert len(range_of(Step.HOUR, UTC, None, None, now=at(NOW)).buckets) == 25
    assert len(range_of(Step.DAY, UTC, None, None, now=at(NOW)).buckets) == 31


@cases(("day", "hours"), [("2026-10-25", 25), ("2026-03-29", 23), ("2026-07-01", 24)])
def test_days_are_as_long_as_the_clocks_of_their_zone_make_them(day: str, hours: int) -> None:
    begins, ends = f"{day}T00:00:00", f"{day}T23:59:59"
    start, end = (
        int(datetime.fromisoformat(each).replace(tzinfo=BERLIN).timestamp())
        for each in (begins, ends)
    )
    series = range_of(Step.DAY, BERLIN, start - 3 * DAY, end + 3 * DAY, now=end + 9 * DAY)
    assert sorted(set(lengths(series))) == sorted({24, hours})
    assert len(series.buckets) == 7
    assert all(datetime.fromtimestamp(each.begins_at, BERLIN).hour == 0 for each in series.buckets)


def test_a_day_that_a_zone_has_skipped_is_left_out() -> None:
    """Samoa went over the date line: there was no 30th of December 2011."""
    apia, now = ZoneInfo("Pacific/Apia"), at("2012-01-02T00:00:00+14:00")
    series = range_of(Step.DAY, apia, at("2011-12-29T00:00:00-10:00"), None, now=now)
    days = [
        datetime.fromtimestamp(each.begins_at, apia).date().isoformat() for each in series.buckets
    ]
    assert days == ["2011-12-29", "2011-12-31", "2012-01-01", "2012-01-02"]


def test_where_days_begin_at_half_past_an_hour_they_still_follow_each_other() -> None:
    series = range_of(
        Step.DAY, ZoneInfo("Asia/Kolkata"), at("2026-11-19T00:00:00Z"), None, now=at(NOW)
    )
    assert lengths(series) == [24, 24, 24, 24]
    for before, after in zip(series.buckets, series.buckets[1:], strict=False):
        assert before.ends_at == after.begins_at


def test_the_last_days_end_with_the_present_one() -> None:
    week = last_days(7, ISTANBUL, now=at(NOW))
    assert week == (at("2026-11-15T00:00:00+03:00"), at("2026-11-22T00:00:00+03:00"))


def test_impossible_ranges_are_refused() -> None:
    nothing = Code.INVALID_FIELD, "from"
    assert refused(Step.HOUR, "2026-11-21T19:00:00Z", "2026-11-21T19:00:00Z", NOW) == nothing
    assert refused(Step.HOUR, "2026-11-22T00:00:00Z", None, NOW) == nothing, "the future"
    assert refused(Step.DAY, "2026-11-20T00:00:00Z", "2025-01-01T00:00:00Z", NOW) == nothing


@cases("step", Step)
@cases("ends", ["0001-01-01T00:00:00+14:00", "0001-01-05T00:00:00Z"])
def test_the_first_days_of_the_calendar_are_refused(step: Step, ends: str) -> None:
    assert refused(step, None, ends, NOW) == (Code.INVALID_FIELD, "from")
    assert refused(step, "0001-01-01T00:00:00+14:00", ends, NOW) == (Code.INVALID_FIELD, "from")


def test_as_many_rows_as_an_answer_may_have_and_no_more() -> None:
    now = at(NOW)
    assert len(range_of(Step.HOUR, UTC, hours_kept_since(now), None, now=now).buckets) <= ROWS_MAX
    series = range_of(Step.DAY, UTC, now - now % DAY - (ROWS_MAX - 1) * DAY, None, now=now)
    assert len(series.buckets) == ROWS_MAX
    assert refused(Step.DAY, "0001-01-01T00:00:00+14:00", None, NOW)[0] is Code.TOO_MANY_ROWS
    assert refused(Step.HOUR, "2026-01-01T00:00:00Z", None, NOW)[0] is Code.TOO_MANY_ROWS


def test_usage_that_is_kept_by_the_day_is_not_asked_for_by_the_hour() -> None:
    first = datetime.fromtimestamp(hours_kept_since(at(NOW)), UTC)
    assert (first.hour, HOURS_KEPT_DAYS) == (0, 90)
    begins, ends = "2026-08-20T00:00:00Z", "2026-08-25T00:00:00Z"
    assert refused(Step.HOUR, begins, ends, NOW) == (Code.INVALID_FIELD, "from")
    assert refused(Step.DAY, begins, ends, NOW, BERLIN) == (Code.INVALID_FIELD, "from")
    assert len(range_of(Step.DAY, UTC, at(begins), at(ends), now=at(NOW)).buckets) == 5


@cases(
    "name", ["", "Mars/Base", "../../etc/passwd", "/etc/passwd", "Europe", "Europe/", "x" * 65, "ü"]
)
def test_unknown_zones_are_refused(name: str) -> None:
    with pytest.raises(MarketError) as caught:
        zone_of(name)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "tz")


def test_zones_have_the_names_of_their_database() -> None:
    assert zone_of("UTC") is UTC
    assert zone_of("Etc/UTC") is UTC, "or days older than hours would be refused"
    for name in ("Europe/Istanbul", "America/Argentina/Buenos_Aires", "Etc/GMT+3"):
        assert str(zone_of(name)) == name
