"""The words of the table of treatment: columns, and the rows of a user in a table."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class How(StrEnum):
    """The treatment of a column: its text goes, its row goes, or it stays for a reason."""

    ERASED = "erased"
    DELETED = "deleted"
    ID = "id"
    ENUM = "enum"
    NUMBER = "number"
    KEPT = "kept"


class Column(NamedTuple):
    """The treatment of a column.

    Args:
        how: the kind of treatment.
        note: SQL for the value after the erasure, or the reason why the column is kept.
        is_secret: whether exports leave the column out.
        shown: SQL for the value in exports; "" for the value as it is.
    """

    how: How
    note: str = ""
    is_secret: bool = False
    shown: str = ""


class Rows(NamedTuple):
    """A table, and the rows of one user in it.

    Args:
        of: SQL for the condition of these rows; "" for a table without rows of users.
        key: the columns of the primary key.
        columns: the treatment of each column.
        is_deleted: whether the rows are deleted.
        exported: SQL for a further condition of exported rows; None for a table that no export has.
    """

    of: str
    key: tuple[str, ...]
    columns: Mapping[str, Column]
    is_deleted: bool = False
    exported: str | None = ""


def rows(
    of: str,
    key: str,
    *,
    ids: str = "",
    enums: str = "",
    numbers: str = "",
    erased: Mapping[str, str] | None = None,
    kept: Mapping[str, str] | None = None,
    hidden: str = "",
    shown: Mapping[str, str] | None = None,
    exported: str | None = "",
) -> Rows:
    """Return the treatment of rows that stay. Lists of columns have spaces in between."""
    hidden_names = hidden.split()
    found: dict[str, tuple[How, str]] = {
        **dict.fromkeys(ids.split(), (How.ID, "")),
        **dict.fromkeys(enums.split(), (How.ENUM, "")),
        **dict.fromkeys(numbers.split(), (How.NUMBER, "")),
        **{name: (How.ERASED, value) for name, value in (erased or {}).items()},
        **{name: (How.KEPT, why) for name, why in (kept or {}).items()},
    }
    columns = {
        name: Column(how, note, name in hidden_names, (shown or {}).get(name, ""))
        for name, (how, note) in found.items()
    }
    return Rows(of, tuple(key.split()), columns, exported=exported)


def deleted(
    of: str, key: str, texts: str, numbers: str = "", *, hidden: str = "", exported: str | None = ""
) -> Rows:
    """Return the treatment of rows that are deleted."""
    hidden_names = hidden.split()
    columns = {
        name: Column(How.DELETED, is_secret=name in hidden_names)
        for name in (*texts.split(), *numbers.split())
    }
    return Rows(of, tuple(key.split()), columns, is_deleted=True, exported=exported)


def nobody(texts: str, why: str) -> Rows:
    """Return the treatment of a table without rows of users: every text is kept."""
    columns = {name: Column(How.KEPT, why) for name in texts.split()}
    return Rows("", (), columns, exported=None)
