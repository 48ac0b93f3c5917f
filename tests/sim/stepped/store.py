"""A store whose units make their statements in turns, over the real one on PostgreSQL."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from storage.engines.postgres import PostgresStore
from storage.engines.store import Arguments, Result, Row, Transaction, Unit, Value
from tests.sim.stepped.held import Held
from tests.sim.stepped.turns import Turns

ROOT = Path(__file__).parents[3]
# Where units are; a frame of these folders has the name of the function that locks.
FOLDERS = (f"{ROOT}/market/", f"{ROOT}/storage/")
TEXT_MOST = 150


class SteppedStore:
    """A `Store` for one side of a trial.

    Attributes:
        lockers: the functions that have locked rows, as `module.function`.
        late: functions on the way to an account that was locked too late (`Held`).
        referring: the tables whose rows refer to users.

    Args:
        label: of the side.
        store: the real one.
    """

    def __init__(self, label: str, store: PostgresStore) -> None:
        self.label = label
        self.turns: Turns | None = None
        self.lockers: set[str] = set()
        self.late: set[str] = set()
        self.referring: frozenset[str] = frozenset()
        self._store = store

    async def write(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.write`; each statement and the commit wait for a turn."""
        turns, label = self.turns, self.label
        if turns is None:
            return await self._store.write(self._noting, unit, args, kwargs)
        runs = 0

        async def stepped(tx: Transaction) -> Result:
            nonlocal runs
            if runs:
                turns.freed(label)
            runs += 1
            turns.begins(label, f"begins {_name(unit)}{' again' if runs > 1 else ''}")
            pid = await tx.one(int, "SELECT pg_backend_pid()")
            assert pid is not None
            result = await unit(_Stepped(tx, self, turns, pid), *args, **kwargs)
            await turns.ask(label, "commit")
            turns.committing(label, pid)
            return result

        try:
            return await self._store.write(stepped)
        except BaseException as error:
            turns.says(label, f"  {type(error).__name__}: {error}")
            raise
        finally:
            turns.ended(label)
            turns.freed(label)

    async def read(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.read`: one turn, because all statements see what the first one does."""
        if self.turns is None:
            return await self._store.read(unit, *args, **kwargs)
        await self.turns.ask(self.label, f"read {_name(unit)}")
        try:
            return await self._store.read(unit, *args, **kwargs)
        finally:
            self.turns.ended(self.label)

    async def _noting(self, tx: Transaction, unit: Any, args: Any, kwargs: Any) -> Any:
        return await unit(_Noting(tx, self), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def set_aside(self) -> "SteppedStore":
        """See `Store.set_aside`."""
        return self

    def note(self, *, is_late: bool) -> None:
        """Remember the functions on the way to a lock."""
        frame, way = sys._getframe(2), []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(FOLDERS):
                path = Path(code.co_filename).relative_to(ROOT).with_suffix("")
                way.append(f"{'.'.join(path.parts)}.{code.co_qualname}")
            frame = frame.f_back
        self.lockers.update(way)
        if is_late:
            self.late.add(" < ".join(each for each in way if not each.startswith("storage.eng")))


class _Noting:
    """A transaction that notes who locks."""

    def __init__(self, tx: Transaction, store: SteppedStore) -> None:
        self._tx = tx
        self._store = store
        self._held = Held(store.referring)

    async def run(self, sql: str, **values: Value) -> int:
        self._held.ran(sql, values)
        return await self._tx.run(sql, **values)

    async def one(self, row: Callable[..., Row], sql: str, **values: Value) -> Row | None:
        self._held.ran(sql, values)
        return await self._tx.one(row, sql, **values)

    async def all(self, row: Callable[..., Row], sql: str, **values: Value) -> list[Row]:
        self._held.ran(sql, values)
        return await self._tx.all(row, sql, **values)

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        self._store.note(is_late=not self._held.locks(table, ids))
        await self._tx.lock(table, ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


class _Stepped(_Noting):
    """A transaction whose statements wait for turns."""

    def __init__(self, tx: Transaction, store: SteppedStore, turns: Turns, pid: int) -> None:
        super().__init__(tx, store)
        self._turns = turns
        self._pid = pid

    async def run(self, sql: str, **values: Value) -> int:
        self._held.ran(sql, values)
        return int(await self._step(_text(sql, values), lambda: self._tx.run(sql, **values)))

    async def one(self, row: Callable[..., Row], sql: str, **values: Value) -> Row | None:
        self._held.ran(sql, values)
        return await self._step(_text(sql, values), lambda: self._tx.one(row, sql, **values))

    async def all(self, row: Callable[..., Row], sql: str, **values: Value) -> list[Row]:
        self._held.ran(sql, values)
        return await self._step(_text(sql, values), lambda: self._tx.all(row, sql, **values))

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        self._store.note(is_late=not self._held.locks(table, ids))
        await self._step(f"lock {table} {list(ids)}", lambda: self._tx.lock(table, ids))

    async def notify(self, *texts: str) -> None:
        await self._tx.notify(*texts)  # no other unit sees it before the commit

    async def _step(self, text: str, statement: Callable[[], Any]) -> Any:
        label = self._store.label
        await self._turns.ask(label, text)
        return await self._turns.execute(label, self._pid, statement())


def _text(sql: str, values: dict[str, Value]) -> str:
    shown = " ".join(f"{name}={str(value)[:40]}" for name, value in values.items())
    return f"{' '.join(sql.split())[:TEXT_MOST]}  [{shown[:TEXT_MOST]}]"


def _name(unit: Any) -> str:
    return str(getattr(unit, "__qualname__", getattr(unit, "func", unit)))
