"""Identifiers in requests: a malformed one is not found in a path, and invalid in a body."""

from typing import Annotated

from msgspec import Meta

from market.base.errors import Code, MarketError
from market.base.ids import parsed

# A service that starts again and again for a year has tens of thousands of attempts. A device whose
# report is refused for one number cannot name its other attempts either.
AttemptNumber = Annotated[int, Meta(ge=1, le=999_999)]


def in_path(text: str, missing: Code, message: str | None = None) -> str:
    """Return an identifier from a path in its canonical spelling.

    Args:
        text: the part of the path.
        missing: the code of the refusal.
        message: the words of the refusal; the meaning of `missing` by default.

    Raises:
        MarketError: `missing`, when it is not a UUID.
    """
    try:
        return parsed(text)
    except ValueError as error:
        raise MarketError(missing, message) from error


def in_body(text: str, field: str) -> str:
    """Return an identifier from a field of a body in its canonical spelling.

    Raises:
        MarketError: `invalid_field`, when it is not a UUID.
    """
    try:
        return parsed(text)
    except ValueError as error:
        raise MarketError(Code.INVALID_FIELD, f"{field} is not a UUID.", field=field) from error
