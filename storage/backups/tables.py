"""The tables of a database: their columns and keys, in the order in which rows can be inserted."""

from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter
from typing import NamedTuple


class Table(NamedTuple):
    """A table.

    `columns` are in the order of its definition, each with its type in SQL. `key` has the columns
    of the primary key.
    """

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def names(self) -> str:
        """The columns, quoted, as a list in SQL."""
        return ", ".join(quoted(column) for column in self.columns)


def quoted(name: str) -> str:
    """Return a name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def in_order(
    tables: Collection[Table], references: Mapping[str, Collection[str]]
) -> tuple[Table, ...]:
    """Return the tables, each after the tables that it refers to.

    Args:
        tables: all of them.
        references: by table, the tables that its foreign keys name.
    """
    by_name = {table.name: table for table in sorted(tables)}
    graph = {name: sorted(set(references.get(name, ())) - {name}) for name in by_name}
    return tuple(by_name[name] for name in TopologicalSorter(graph).static_order())
