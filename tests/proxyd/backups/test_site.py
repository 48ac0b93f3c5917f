"""The public side, tickets and halts survive a backup, a restoration and a move."""

from pathlib import Path

import pytest
from support.base.clock import Clock
from support.daemons.backed_up import settings_for
from support.market.market import Market

from config.load import load
from market.staff.audit import audit_all
from proxyd.backups.making import back_up_all
from proxyd.backups.restoring import restore
from storage.backups.move import move
from storage.engines.errors import ConstraintError
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction

pytestmark = pytest.mark.both_engines

ROWS = {
    "suspended_parts": "('{user}', 'logins', 's', 1, NULL)",
    "halts": "(1, 'halt', '{user}', NULL, 1)",
    "halt_acks": "(1, 'node', 3)",
    "tickets": "(1, 'scan', 'closed', 1, 2, '{user}', '{{\"port\": 22}}', 3, 'no_match')",
    "invitations": "('hash', 'i', 5, 4, 1, 2)",
    "site_texts": "('terms', 1, 'en', 'a\\tb\n| c |\n\u00e9', 'h', 1, 1)",
    "consents": "('{user}', 'terms', 1, 1, '192.0.2.0/24')",
    "status_notices": "('n', 'info', 't', 'b', 1, NULL)",
    "status_hours": "(1, 'api', 3600)",
    "alerts": "('disk', 1, 0, 'full')",
    "upkeep": "('audit', 1, 1)",
}
STATUS = 'UPDATE status_now SET at = 7, components = \'{"api": "working"}\''
REFUSED = {
    "DELETE FROM tickets": "tickets_are_only_closed",
    "UPDATE site_texts SET body = 'none'": "site_texts_are_never_changed",
    "DELETE FROM site_texts": "site_texts_are_never_changed",
    "UPDATE consents SET given_at = 2": "consents_are_never_changed",
    "DELETE FROM consents": "consents_are_never_changed",
}


async def filled(store: Store) -> None:
    market = Market(store, Clock())
    user = await market.person()
    market.passwords.close()
    for table, row in ROWS.items():
        await store.write(run, f"INSERT INTO {table} VALUES {row.format(user=user)}")
    await store.write(run, STATUS)


async def assert_same(store: Store, url: str) -> None:
    there = await open_store(url)
    try:
        for table in (*ROWS, "status_now"):
            assert await there.read(text_of, table) == await store.read(text_of, table), table
        for statement, name in REFUSED.items():
            with pytest.raises(ConstraintError) as caught:
                await there.write(run, statement)
            assert caught.value.constraint == name
        await there.write(run, "UPDATE consents SET network = ''")
        report = await audit_all(there)
        assert report.passed, report
    finally:
        await there.close()


async def run(tx: Transaction, statement: str) -> int:
    return await tx.run(statement)


async def text_of(tx: Transaction, table: str) -> list[str]:
    columns = {
        "site_texts": "kind || version || locale || body || hash || published_at || valid_from",
        "status_now": "id || at || components",
        "tickets": "number || category || state || user_id || facts || closed_at || outcome",
        "consents": "user_id || kind || version || given_at || network",
        "invitations": "code_hash || id || uses || uses_left || created_at || expires_at",
    }
    return await tx.all(str, f"SELECT {columns.get(table, 'CAST(COUNT(*) AS TEXT)')} FROM {table}")


async def test_a_restored_service_has_the_public_side(
    store: Store, store_url: str, engine: str, empty_postgres: str, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path, store_url)
    await filled(store)
    backup = (await back_up_all(settings, None, tmp_path / "backups")).path
    _, restored = await restore(
        backup, tmp_path / "new", "" if engine == "sqlite" else empty_postgres
    )
    assert restored.report.passed, restored.report
    await assert_same(store, load(restored.settings, {}).storage.url)


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_moved_service_has_the_public_side(
    store: Store, store_url: str, empty_postgres: str, tmp_path: Path
) -> None:
    await filled(store)
    await move(Path(store_url.removeprefix("sqlite:///")), empty_postgres)
    await assert_same(store, empty_postgres)
