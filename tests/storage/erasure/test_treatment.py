"""The table of treatment has each column of the schema, on both engines."""

import sqlite3

from storage.backups import sqlite_rows
from storage.backups.tables import Table
from storage.engines.open import open_store
from storage.engines.place import is_sqlite
from storage.erasure.column import How
from storage.erasure.treatment import TREATMENT

TEXT = ("text", "", "blob", "bytea", "character varying", "json", "jsonb")


async def tables_of(url: str) -> tuple[Table, ...]:
    """Return the tables of a database."""
    store = await open_store(url)
    await store.close()
    if is_sqlite(url):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        try:
            return sqlite_rows.tables(connection)
        finally:
            connection.close()
    from storage.backups import postgres_rows  # noqa: PLC0415 - its driver

    async with postgres_rows.connected(url) as connected:
        return await postgres_rows.tables(connected)


async def test_each_column_has_a_treatment(empty_url: str) -> None:
    tables = {table.name: table for table in await tables_of(empty_url)}
    assert set(tables) == set(TREATMENT)
    for name, table in tables.items():
        rows = TREATMENT[name]
        # A database computes this one.
        treated = set(rows.columns) - {"email_domain"}
        columns = set(table.columns) - {"email_domain"}
        if not rows.of:
            columns = {each for each in columns if table.columns[each].lower() in TEXT}
        assert treated == columns, name
        if rows.of:
            assert set(rows.key) == set(table.key), name


def test_each_kept_column_has_a_reason() -> None:
    for name, rows in TREATMENT.items():
        for column, treatment in rows.columns.items():
            if treatment.how in (How.KEPT, How.ERASED):
                assert treatment.note, f"{name}.{column}"


def test_a_secret_is_in_no_export() -> None:
    shown = {
        f"{name}.{column}"
        for name, rows in TREATMENT.items()
        for column, treatment in rows.columns.items()
        if rows.exported is not None and not treatment.is_secret
    }
    secret = {each for each in shown if each.endswith(("_hash", "salt", "secret", "sealed_key"))}
    assert secret == {"exits.terms_hash", "exit_consents.terms_hash"}
    assert not {each for each in shown if each.startswith("staff.") or "sealed" in each}
