"""Parts that lists share: their query, their reply, their cursors, and the format of times."""

from collections.abc import Callable
from datetime import date, timedelta
from functools import lru_cache
from typing import Annotated, Generic, Protocol, Self, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from api.routing.routes import Reply
from market.base.errors import Code, MarketError
from market.base.ids import parsed

Limit = Annotated[int, Meta(ge=1, le=1000)]
# The default of a list: reading this many takes about as long as any other request.
ITEMS_PER_REQUEST = 100
# As RFC 3339 writes it, in UTC.
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Identified(Protocol):
    """An item of a list."""

    @property
    def id(self) -> str:
        """Its identifier, which sorts by the time of its creation."""


Row = TypeVar("Row", bound=Identified)
Item = TypeVar("Item")


class Listing:
    """A query that asks for a list; each declares its `limit`, the number of items, as a field."""

    __slots__ = ()

    limit: int

    @property
    def requests(self) -> int:
        """The number of requests that it counts as: a longer part counts as several."""
        return -(-self.limit // ITEMS_PER_REQUEST)


class Page(Listing, Struct, kw_only=True):
    """Part of a list: at most `limit` items, from the last part's `next_cursor` on."""

    limit: Limit = 100
    cursor: str = ""

    @property
    def before(self) -> str:
        """The identifier that this part begins after, "" to begin with the newest.

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

    @property
    def fetch_limit(self) -> int:
        """How many rows to fetch: one more than is returned, to know whether there are more."""
        return self.limit + 1

    def cut(self, rows: list[Row]) -> tuple[list[Row], str | UnsetType]:
        """Return this part of the list, and the `next_cursor` if there is more behind it."""
        part = rows[: self.limit]
        return part, part[-1].id if len(rows) > self.limit else UNSET


class Listed(Reply, Generic[Item], kw_only=True):
    """A part of a list, newest first; `next_cursor` is there when there are more.

    Each list declares its `items` again, with their name in JSON.
    """

    items: list[Item]
    next_cursor: str | UnsetType = UNSET

    @classmethod
    def of(cls, page: Page, rows: list[Row], item: Callable[[Row], Item]) -> Self:
        """Return the part of a list of `page`, made of rows that may be one more."""
        part, cursor = page.cut(rows)
        return cls(items=[item(row) for row in part], next_cursor=cursor)


def timestamp(seconds: int) -> str:
    """Return UTC seconds as RFC 3339 writes them."""
    day, second = divmod(seconds, 86_400)
    minute, second = divmod(second, 60)
    hour, minute = divmod(minute, 60)
    return f"{_date(day)}T{_TWO_DIGITS[hour]}:{_TWO_DIGITS[minute]}:{_TWO_DIGITS[second]}Z"


_TWO_DIGITS = tuple(f"{number:02}" for number in range(60))


# A list writes hundreds of times, nearly all of a few days; a year of them is a few kilobytes.
@lru_cache(maxsize=366)
def _date(day: int) -> str:
    """Return a day since 1970 as RFC 3339 writes it."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
