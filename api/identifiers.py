"""Identifiers in requests: a malformed one is not found in a path, and invalid in a body."""

from market.errors import Code, MarketError
from market.ids import parsed


def in_path(text: str, missing: Code) -> str:
    """Return an identifier from a path in its canonical spelling.

    Raises:
        MarketError: `missing`, when it is not a UUID.
    """
    try:
        return parsed(text)
    except ValueError as error:
        raise MarketError(missing) from error


def in_body(text: str, field: str) -> str:
    """Return an identifier from a field of a body in its canonical spelling.

    Raises:
        MarketError: `invalid_field`, when it is not a UUID.
    """
    try:
        return parsed(text)
    except ValueError as error:
        raise MarketError(Code.INVALID_FIELD, f"{field} is not a UUID.", field=field) from error
