"""A move to PostgreSQL brings every row, or nothing; the source stays as it is."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from support.database import grown, sqlite

from market.money.audit import audit_ledger
from storage.backups import postgres_rows, sqlite_rows
from storage.backups.errors import BackupError
from storage.backups.move import move
from storage.backups.tables import Table
from storage.engines.errors import CannotOpenError
from storage.engines.open import open_store

TRANSFERS = 3_000
FAR_AWAY = "postgresql://127.0.0.1:1/nowhere"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "proxyd.db"
    sqlite.make(path)
    return path


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def user(name: str, value: str, column: str = "email") -> str:
    """Return SQL that inserts a user with a value in a column."""
    values = {"email": f"'{name}@x'", "created_at": "1"} | {column: value}
    return f"""
        INSERT INTO users (id, username, username_key, email, email_key, password_hash, created_at)
        VALUES ('{name}', '{name}', '{name}', {values["email"]}, '{name}', '',
            {values["created_at"]})
    """


async def tables_of(url: str) -> list[str]:
    async with postgres_rows.connected(url) as connection:
        return [table.name for table in await postgres_rows.tables(connection)]


async def test_all_rows_arrive_with_equal_hashes(source: Path, empty_postgres: str) -> None:
    await grown.grow(f"sqlite:///{source}", TRANSFERS)
    changed(source, user("é\U0001f600 z", "'a\\b\tc\n'"), user("B", "'ß'"))
    before = hashlib.sha256(source.read_bytes()).digest()
    moved = await move(source, empty_postgres)
    assert hashlib.sha256(source.read_bytes()).digest() == before
    rows = {each.table: each.rows for each in moved}
    with closing(sqlite3.connect(source)) as connection:
        for name, number in rows.items():
            assert connection.execute(f"SELECT COUNT(*) FROM {name}").fetchone() == (number,)
    assert rows["transfers"] >= TRANSFERS
    assert len({each.sha256 for each in moved if each.rows}) == sum(map(bool, rows.values()))
    store = await open_store(empty_postgres)
    try:
        report = await audit_ledger(store)
    finally:
        await store.close()
    assert report.passed, report
    assert report.transfers == rows["transfers"]


async def test_the_ledger_of_the_target_refuses_changes(source: Path, empty_postgres: str) -> None:
    await grown.grow(f"sqlite:///{source}", 100)
    await move(source, empty_postgres)
    connection = await asyncpg.connect(empty_postgres)
    try:
        for statement in ("UPDATE entries SET amount = 1", "DELETE FROM transfers"):
            with pytest.raises(asyncpg.IntegrityConstraintViolationError, match="append_only"):
                await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("value", "column", "words"),
    [
        ("CAST(x'610062' AS TEXT)", "email", "users, row 'someone', email: the text has a NUL"),
        ("CAST(x'EDA080' AS TEXT)", "email", "users, row 'someone', email: the text is not UTF-8"),
        ("'often'", "created_at", "the value is of type TEXT, the column of type INTEGER"),
        ("1.5", "created_at", "created_at: the value is of type REAL"),
        ("x'00'", "email", "email: the value is of type BLOB"),
    ],
)
async def test_a_value_that_postgresql_refuses_is_named(
    source: Path, empty_postgres: str, value: str, column: str, words: str
) -> None:
    changed(source, "DELETE FROM users", user("someone", value, column))
    with pytest.raises(BackupError, match="correct them first") as caught:
        await move(source, empty_postgres)
    assert words in str(caught.value)
    assert await tables_of(empty_postgres) == []


async def test_a_target_with_a_table_is_refused(source: Path, empty_postgres: str) -> None:
    connection = await asyncpg.connect(empty_postgres)
    await connection.execute("CREATE TABLE precious (id BIGINT)")
    await connection.close()
    with pytest.raises(BackupError, match=r"not empty, it has tables \(precious\)"):
        await move(source, empty_postgres)
    assert await tables_of(empty_postgres) == ["precious"]


async def test_a_lost_row_leaves_the_target_empty(
    source: Path, empty_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(source, user("one", "'1'"), user("two", "'2'"))
    insert = postgres_rows.insert

    async def losing(connection: asyncpg.Connection, table: Table, rows: list) -> None:
        await insert(connection, table, rows[1:] if table.name == "users" else rows)

    monkeypatch.setattr(postgres_rows, "insert", losing)
    with pytest.raises(BackupError, match=r"users: 2 rows .* were sent, 1 with hash"):
        await move(source, empty_postgres)
    assert await tables_of(empty_postgres) == []


async def test_a_write_during_the_move_leaves_the_target_empty(
    source: Path, empty_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = postgres_rows.insert

    async def writing(connection: asyncpg.Connection, table: Table, rows: list) -> None:
        await insert(connection, table, rows)
        if table.name == "users":
            changed(source, user("late", "'late'"))

    changed(source, user("one", "'1'"))
    monkeypatch.setattr(postgres_rows, "insert", writing)
    with pytest.raises(BackupError, match="another program has written to it"):
        await move(source, empty_postgres)
    assert await tables_of(empty_postgres) == []


async def test_a_source_that_cannot_be_moved_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotOpenError, match="no database"):
        await move(tmp_path / "none.db", FAR_AWAY)
    with pytest.raises(CannotOpenError, match=r"127\.0\.0\.1:1"):
        await move(source, FAR_AWAY)
    changed(source, "DELETE FROM schema_versions WHERE version > 41")
    with pytest.raises(BackupError, match="start the daemon of this version once"):
        await move(source, FAR_AWAY)
    other = tmp_path / "other.db"
    changed(other, "CREATE TABLE t (id)")
    with pytest.raises(BackupError, match="not a database of proxyd"):
        await move(other, FAR_AWAY)


async def test_a_table_of_another_program_is_refused(source: Path, empty_postgres: str) -> None:
    changed(source, "CREATE TABLE mine (id TEXT PRIMARY KEY)")
    with pytest.raises(BackupError, match="mine: this table is not one of proxyd"):
        await move(source, empty_postgres)
    assert await tables_of(empty_postgres) == []


def test_a_table_comes_after_the_tables_that_it_refers_to(source: Path) -> None:
    with sqlite_rows.snapshot(source) as reader:
        names = [table.name for table in sqlite_rows.tables(reader)]
    for earlier, later in (
        ("users", "accounts"),
        ("jobs", "job_attempts"),
        ("nodes", "bandwidth_leases"),
    ):
        assert names.index(earlier) < names.index(later)
