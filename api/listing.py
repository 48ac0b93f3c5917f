"""What lists share: how many, from where on, and how times are written."""

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from market.errors import Code, MarketError
from market.ids import parsed

Limit = Annotated[int, Meta(ge=1, le=1000)]


class Page(Struct, kw_only=True):
    """Which part of a list: at most `limit`, from where the last part's `next_cursor` says."""

    limit: Limit = 100
    cursor: str = ""

    @property
    def before(self) -> str:
        """The identifier that the part begins behind, "" for the newest.

        Raises:
            MarketError: `invalid_field`, when no list has returned such a cursor.
        """
        if not self.cursor:
            return ""
        try:
            return parsed(self.cursor)
        except ValueError as error:
            message = "cursor is not one that a list has returned."
            raise MarketError(Code.INVALID_FIELD, message, field="cursor") from error


def timestamp(seconds: int) -> str:
    """Return UTC seconds as RFC 3339 writes them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
