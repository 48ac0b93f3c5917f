"""Hours or days of a series of usage, in the time zone that a buyer names; pure.

Hours are UTC hours, and the record of an hour is not divided. In a zone whose days begin at half
past an hour (India), that hour belongs to the day in which it begins. After `HOURS_KEPT_DAYS` only
UTC days are kept.
"""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import NamedTuple
from zoneinfo import ZoneInfo

from market.base.errors import Code, MarketError
from storage.bandwidth.usage import DAY_SECONDS, HOUR_SECONDS, Bucket

# A quarter: a graph of hours, or a bill of days, looks no further back.
HOURS_KEPT_DAYS = 90
# All hours that are kept, and a little: an answer is half a megabyte then.
ROWS_MAX = 2_200
DEFAULT_DAYS = 30
ZONE_MAX_CHARACTERS = 64

# As the database of time zones writes names. No other path gets to a file.
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}", re.ASCII)


class Step(StrEnum):
    """Length of each part of a series."""

    HOUR = "hour"
    DAY = "day"


class Range(NamedTuple):
    """A series of hours or days, one after the other; it has one at least."""

    step: Step
    zone: tzinfo
    buckets: tuple[Bucket, ...]

    @property
    def whole(self) -> Bucket:
        """From its beginning to its end."""
        return Bucket(self.buckets[0].begins_at, self.buckets[-1].ends_at)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name.

    Raises:
        MarketError: `invalid_field`, when the name is unknown.
    """
    if name in {"UTC", "Etc/UTC"}:  # some browsers say the latter; days of UTC are kept for ever
        return UTC
    try:
        if len(name) > ZONE_MAX_CHARACTERS or not _ZONE.fullmatch(name):
            raise ValueError("no name of a zone")
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        message = "tz is not the name of a time zone, such as Europe/Istanbul."
        raise MarketError(Code.INVALID_FIELD, message, field="tz") from error


def hours_kept_since(now: int) -> int:
    """Return the time since which hours are kept: the beginning of a day in UTC."""
    return now - now % DAY_SECONDS - HOURS_KEPT_DAYS * DAY_SECONDS


def range_of(
    step: Step, zone: tzinfo, begins_at: int | None, ends_at: int | None, *, now: int
) -> Range:
    """Return the whole hours or days from one time to another one, up to the present one.

    Args:
        step: how long each of them is.
        zone: where days begin at midnight.
        begins_at: UTC seconds; None for a day of hours, or for `DEFAULT_DAYS`.
        ends_at: UTC seconds; None for the present.
        now: UTC seconds.

    Raises:
        MarketError: `invalid_field`, when there is nothing between them, or only days of UTC are
            kept of that time; `too_many_rows`.
    """
    ends_at = now + 1 if ends_at is None else min(ends_at, now + 1)
    if begins_at is None:
        begins_at = ends_at - (DAY_SECONDS if step is Step.HOUR else DEFAULT_DAYS * DAY_SECONDS)
    # Nothing is as old as 1970, and days before the year 1 are none that can be computed with.
    begins_at = max(begins_at, 0)
    if begins_at >= ends_at:
        message = "from is not before to, or lies in the future, or to lies before 1970."
        raise MarketError(Code.INVALID_FIELD, message, field="from")
    seconds = HOUR_SECONDS if step is Step.HOUR else DAY_SECONDS
    require_rows((ends_at - begins_at) // seconds)
    if step is Step.HOUR:
        first = begins_at - begins_at % HOUR_SECONDS
        buckets = [Bucket(at, at + HOUR_SECONDS) for at in range(first, ends_at, HOUR_SECONDS)]
    else:
        buckets = _days(_day_of(begins_at, zone), _day_of(ends_at - 1, zone), zone)
    require_rows(len(buckets))
    kept_since = hours_kept_since(now)
    if buckets[0].begins_at < kept_since and (step is Step.HOUR or zone is not UTC):
        first_day = datetime.fromtimestamp(kept_since, UTC).date()
        message = (
            f"Hours, and days of other zones than UTC, are known since {first_day}: "
            "ask from then on, or for step=day in UTC."
        )
        raise MarketError(Code.INVALID_FIELD, message, field="from")
    return Range(step, zone, tuple(buckets))


def last_days(count: int, zone: tzinfo, *, now: int) -> Bucket:
    """Return a bucket of the present day and the days before it, `count` days in all."""
    today = _day_of(now, zone)
    first, after = today - timedelta(days=count - 1), today + timedelta(days=1)
    return Bucket(_midnight(first, zone), _midnight(after, zone))


def require_rows(count: int) -> None:
    """Check that a reply of `count` rows is not too long.

    Raises:
        MarketError: `too_many_rows`.
    """
    if count > ROWS_MAX:
        message = (
            f"This is {count:,} rows, and an answer has {ROWS_MAX:,} at most: ask for less time, "
            "for days instead of hours, or for one session."
        )
        raise MarketError(Code.TOO_MANY_ROWS, message)


def _day_of(moment: int, zone: tzinfo) -> date:
    return datetime.fromtimestamp(moment, zone).date()


def _midnight(day: date, zone: tzinfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())


def _days(first: date, last: date, zone: tzinfo) -> list[Bucket]:
    """Return days from midnight to midnight: 23 to 25 hours where clocks are changed.

    A midnight that occurs twice means the first one. A day that a zone skipped is left out.
    """
    dates = (first + timedelta(days=number) for number in range((last - first).days + 2))
    midnights = [_midnight(each, zone) for each in dates]
    buckets = map(Bucket, midnights, midnights[1:])
    return [each for each in buckets if each.begins_at < each.ends_at]
