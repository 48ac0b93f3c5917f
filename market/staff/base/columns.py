"""Columns of tables that the staff reads: one description, for commands and for the staff API.

A column of times has a name that ends with `_at`; a command leaves this ending out.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from operator import attrgetter
from typing import Any, NamedTuple

from market.staff.base.roles import Via
from storage.staff.base.log import ShownLogRow

# Among the changes of an act these are amounts in micro-units, as integers.
AMOUNTS = frozenset(
    (
        "usd",
        "credit",
        "available_usd",
        "available_credit",
        "debt",
        "debt_usd",
        "debt_credit",
        "accepted",
        "amount",
        "refunded_usd",
        "waived_usd",
        "waived_credit",
    )
)


class Kind(Enum):
    """The kind of a value: a text or a number, UTC seconds, or micro-units."""

    PLAIN = auto()
    TIME = auto()
    MONEY = auto()


class Column(NamedTuple):
    """A column: its name, its value in a row, and the kind of the value."""

    name: str
    value: Callable[[Any], Any]
    kind: Kind = Kind.PLAIN


def plain(name: str, field: str = "") -> Column:
    """Return a column of texts or numbers; `field` is the row's name of it."""
    return Column(name, attrgetter(field or name))


def time(name: str, field: str = "") -> Column:
    """Return a column of times."""
    return Column(name, attrgetter(field or name), Kind.TIME)


def money(name: str, field: str = "") -> Column:
    """Return a column of amounts."""
    return Column(name, attrgetter(field or name), Kind.MONEY)


def written(
    rows: Iterable[Any],
    columns: Sequence[Column],
    *,
    write_time: Callable[[int | None], str | None],
    write_money: Callable[[int], Any],
) -> list[dict[str, Any]]:
    """Return rows by the names of columns.

    Args:
        rows: the rows.
        columns: the columns.
        write_time: writes UTC seconds.
        write_money: writes micro-units.
    """
    write: dict[Kind, Callable[[Any], Any]] = {
        Kind.PLAIN: lambda value: value,
        Kind.TIME: write_time,
        Kind.MONEY: write_money,
    }
    return [
        {column.name: write[column.kind](column.value(row)) for column in columns} for row in rows
    ]


def written_changes(
    changes: str, *, write_money: Callable[[int], Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the changes of an act for people: the old and the new value by the name of the field.

    Args:
        changes: as the log has them.
        write_money: writes micro-units.
    """

    def shown(name: str, value: object) -> object:
        return write_money(value) if name in AMOUNTS and isinstance(value, int) else value

    return {
        name: (shown(name, old), shown(name, new))
        for name, (old, new) in json.loads(changes).items()
    }


def author_of(row: ShownLogRow) -> str:
    """Return the author of an act for people: a member, a Unix user of the machine, or a rule."""
    author = row.staff_email or ("rule" if row.via == Via.RULE else "")
    return author if row.unix_user is None else f"{author} {row.unix_user}@machine".strip()
