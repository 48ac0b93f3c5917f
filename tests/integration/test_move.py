"""A market of a million transfers moves from SQLite to PostgreSQL by the command, row for row."""

import asyncio
import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from support.daemons import process
from support.database import grown, postgres, sqlite

MOVE_SECONDS = 1_200.0
ROWS = re.compile(r"^(\w+): (\d+) rows, sha256 [0-9a-f]{64}$", re.MULTILINE)


def moved(url: str, target: str, report: Path) -> dict[str, int]:
    """Move a database by the command; return the rows of each table by its report."""
    with Path(os.devnull).open("rb") as nothing, report.open("wb") as out:
        standard = [nothing.fileno(), out.fileno(), out.fileno()]
        status = process.command(url, ("storage", "move", "--to", target), standard).wait(
            MOVE_SECONDS
        )
    text = report.read_text()
    assert status == 0, text
    assert "the ledger agrees" in text
    return {name: int(number) for name, number in ROWS.findall(text)}


def in_sqlite(path: Path, tables: dict[str, int]) -> dict[str, int]:
    """Return the number of rows of each table."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            name: connection.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]
            for name in tables
        }


async def in_postgres(url: str, tables: dict[str, int]) -> dict[str, int]:
    """Return the number of rows of each table."""
    connection = await asyncpg.connect(url)
    try:
        return {name: await connection.fetchval(f"SELECT COUNT(*) FROM {name}") for name in tables}
    finally:
        await connection.close()


def served(url: str) -> None:
    """Serve the moved database: a new user registers, and reads the wallet."""
    new = {"username": "ada", "email": "ada@example.com", "password": "a long password"}
    with process.serving(url) as daemon:
        status, answer = daemon.call("POST", "/auth/register", new)
        assert status == 200, answer
        status, wallet = daemon.call("GET", "/api/wallet", token=answer["token"])
        assert (status, wallet["usd_balance"]) == (200, 0), json.dumps(wallet)
        assert daemon.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("transfers", [100_000, 1_000_000])
async def test_a_large_market_moves_row_for_row(transfers: int, tmp_path: Path) -> None:
    url, path = sqlite.database(tmp_path), tmp_path / "proxyd.db"
    await grown.grow(url, transfers)
    with postgres.server(is_durable=True) as target:
        rows = await asyncio.to_thread(moved, url, target, tmp_path / "report")
        assert rows["transfers"] >= transfers
        assert await asyncio.to_thread(in_sqlite, path, rows) == rows
        assert await in_postgres(target, rows) == rows
        for each in (url, target):
            await asyncio.to_thread(process.assert_audit, each)
        await asyncio.to_thread(served, target)
