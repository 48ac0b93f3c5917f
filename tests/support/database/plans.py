"""Plans of statements, and the number of rows or steps that they need.

Nothing here measures time. SQLite counts the steps of its machine, PostgreSQL the rows that each
part of a plan has touched.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from storage.engines.store import Store, Transaction

STEPS_PER_CALL = 10

EMPTY_TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND reltuples <= 0"


@dataclass
class Statement:
    """Statement with its text, its plan, and the number of rows that it read.

    `scans` are the parts of the plan that read all of a table, `inner_scans` those that read all of
    anything, anew for each row of something else. A table without rows when it was analysed has no
    inner scans: all of its plans cost the same, and PostgreSQL takes any.
    """

    sql: str
    plan: list[str] = field(default_factory=list)
    scans: list[str] = field(default_factory=list)
    inner_scans: list[str] = field(default_factory=list)
    work: int = 0

    def __str__(self) -> str:
        return "\n".join([" ".join(self.sql.split()), *self.plan])


class Watched:
    """Every statement of the units of work of a store, since it is watched.

    `empty` are the tables without rows when they were analysed; None until the first explanation.
    """

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.empty: frozenset[str] | None = None

    def taken(self) -> list[Statement]:
        """Return the statements since the last call."""
        statements, self.statements = self.statements, []
        return statements


class _Explaining:
    """A transaction that has each statement explained before it is run."""

    def __init__(self, tx: Any, watched: Watched) -> None:
        self._tx = tx
        self._watched = watched
        self._is_sqlite = "sqlite" in type(tx).__module__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def run(self, sql: str, **values: Any) -> int:
        with await self._explained(sql, values):
            return int(await self._tx.run(sql, **values))

    async def one(self, row: Any, sql: str, **values: Any) -> Any:
        with await self._explained(sql, values):
            return await self._tx.one(row, sql, **values)

    async def all(self, row: Any, sql: str, **values: Any) -> Any:
        with await self._explained(sql, values):
            return await self._tx.all(row, sql, **values)

    async def _explained(self, sql: str, values: Any) -> Any:
        statement = Statement(sql)
        self._watched.statements.append(statement)
        if self._is_sqlite:
            rows = await self._tx.all(_columns, f"EXPLAIN QUERY PLAN {sql}", **values)
            _read_sqlite(statement, rows)
        else:
            reads = re.match(r"\s*(SELECT|WITH)\b", sql) is not None
            how = f"{'ANALYZE, TIMING OFF, ' if reads else ''}FORMAT JSON"
            [text] = await self._tx.all(str, f"EXPLAIN ({how}) {sql}", **values)
            if self._watched.empty is None:
                self._watched.empty = frozenset(await self._tx.all(str, EMPTY_TABLES))
            _read_postgres(statement, json.loads(text)[0]["Plan"], self._watched.empty)
        return self._counting(statement)

    @contextmanager
    def _counting(self, statement: Statement) -> Iterator[None]:
        if not self._is_sqlite:  # was counted when it was explained
            yield
            return

        def step() -> None:
            statement.work += STEPS_PER_CALL

        connection = self._tx._connection
        connection.set_progress_handler(step, STEPS_PER_CALL)
        try:
            yield
        finally:
            connection.set_progress_handler(None, 0)


def watched(store: Store, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return a record of every statement of a store from here on."""
    found = Watched()

    def spied(run_unit: Any) -> Any:
        async def explained(unit: Any, *args: Any, **kwargs: Any) -> Any:
            async def run(tx: Transaction) -> Any:
                return await unit(_Explaining(tx, found), *args, **kwargs)

            return await run_unit(run)

        return explained

    for which in ("read", "write"):
        monkeypatch.setattr(store, which, spied(getattr(store, which)))
    return found


def _columns(*columns: Any) -> tuple[Any, ...]:
    return columns


def _read_sqlite(statement: Statement, rows: list[tuple[int, int, int, str]]) -> None:
    """Loops within one another are listed as siblings, the outermost first."""
    parents = {node: (parent, words) for node, parent, _, words in rows}

    def is_correlated(node: int) -> bool:
        parent, words = parents.get(node, (0, ""))
        return words.startswith("CORRELATED") or (parent != 0 and is_correlated(parent))

    made_here = {
        words.split()[1]
        for _, _, _, words in rows
        if words.startswith(("CO-ROUTINE", "MATERIALIZE"))
    }
    loops: dict[int, int] = defaultdict(int)
    for node, parent, _, words in rows:
        statement.plan.append(words)
        if not words.startswith(("SCAN", "SEARCH")):
            continue
        loops[parent] += 1
        if words.startswith("SCAN") and "CONSTANT ROW" not in words:
            if "VIRTUAL TABLE" not in words and words.split()[1] not in made_here:
                statement.scans.append(words)
            if loops[parent] > 1 or is_correlated(node):
                statement.inner_scans.append(words)


def _read_postgres(
    statement: Statement,
    node: dict[str, Any],
    empty: frozenset[str],
    *,
    is_inner: bool = False,
) -> None:
    kind, on = node["Node Type"], node.get("Relation Name", node.get("Alias", ""))
    condition = node.get("Index Cond") or node.get("Recheck Cond") or ""
    words = f"{kind} {on} {condition} {node.get('Filter', '')}".strip()
    statement.plan.append(words)
    rows = node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)
    rows += node.get("Rows Removed by Join Filter", 0)
    statement.work += int(rows * node.get("Actual Loops", 0))
    if kind == "Seq Scan":
        statement.scans.append(words)
    is_whole = kind in ("Seq Scan", "CTE Scan") or ("Index" in kind and not condition)
    if is_inner and is_whole and on not in empty:
        statement.inner_scans.append(words)
    for child in node.get("Plans", []):
        relation = child.get("Parent Relationship")
        repeats = (kind == "Nested Loop" and relation == "Inner") or relation == "SubPlan"
        _read_postgres(statement, child, empty, is_inner=is_inner or repeats)
