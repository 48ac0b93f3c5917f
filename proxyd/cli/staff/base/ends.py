"""The end of a suspension or of limits, as a command line gives it."""

import re
from datetime import UTC, datetime
from typing import Final

from market.base.errors import Code, MarketError

NONE: Final = "none"
_SPAN: Final = re.compile(r"([1-9]\d{0,4})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3_600, "d": 86_400}


def end_of(text: str | None, now: int) -> int | None:
    """Return a time in UTC seconds: of a span from now, or of a date and time; None for no end.

    Raises:
        MarketError: `invalid_field`.
    """
    if text is None or text == NONE:
        return None
    span = _SPAN.fullmatch(text)
    if span is not None:
        return now + int(span[1]) * _SECONDS[span[2]]
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp())
    except (ValueError, OverflowError):
        raise MarketError(
            Code.INVALID_FIELD,
            f"--until {text!r} is neither a span such as 90m, 24h or 7d (five digits at most), nor "
            "a UTC time such as 2030-01-31T12:00, nor none.",
            field="until",
        ) from None
