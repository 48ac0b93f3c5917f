"""Counts the statements of units of work: the round trips to a store that is far away."""

from typing import Any, Literal

import pytest

from storage.engines.store import Store, Transaction


class _Counting:
    """A transaction that counts its statements."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        self.statements += name not in ("table", "among", "after_commit")
        return getattr(self._tx, name)


def counted(
    store: Store, which: Literal["read", "write"], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Return a list that gets the number of statements of each unit from here on."""
    run_unit, found = getattr(store, which), []

    async def spied(unit: Any, *args: Any, **kwargs: Any) -> Any:
        async def run(tx: Transaction) -> Any:
            counting = _Counting(tx)
            try:
                return await unit(counting, *args, **kwargs)
            finally:
                found.append(counting.statements)

        return await run_unit(run)

    monkeypatch.setattr(store, which, spied)
    return found
