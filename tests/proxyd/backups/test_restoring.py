"""A restoration trusts no file of the backup, and changes nothing that exists."""

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.base.mounts import small_disk
from support.daemons.backed_up import settings_for
from support.daemons.process import funded
from support.database import grown, postgres

from config.load import load
from proxyd.backups import files, manifest
from proxyd.backups.making import back_up_all
from proxyd.backups.restoring import confirm, restore
from storage.backups.errors import BackupError
from storage.engines import migrate
from storage.engines.migrate import Migration


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """A backup of a service on SQLite."""
    settings = settings_for(tmp_path)
    funded(settings.storage.url)
    return (await back_up_all(settings, None, tmp_path / "backups")).path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "restored").mkdir()
    return tmp_path / "restored" / "proxyd"


def rewritten(backup: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of a backup as an attacker would, with a hash that is right."""
    path = backup / manifest.NAME
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    change(content)
    body = json.dumps(content).encode()
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


async def refused(backup: Path, target: Path, words: str, database: str = "") -> None:
    """Check that a restoration fails with some words, and leaves nothing behind."""
    before = sorted(target.parent.rglob("*"))
    with pytest.raises(BackupError, match=words):
        await restore(backup, target, database)
    assert sorted(target.parent.rglob("*")) == before


async def test_everything_is_restored_and_held(backup: Path, target: Path, tmp_path: Path) -> None:
    _, restored = await restore(backup, target, "")
    assert restored.report.passed
    assert restored.settings == target / "proxyd.toml"
    names = {str(each.relative_to(target)) for each in target.rglob("*") if each.is_file()}
    assert names == {
        "proxyd.db",
        "access.key",
        "signing.key",
        "exits.pem",
        "tls/api.tls_cert.pem",
        "tls/api.tls_key.pem",
        "work/blobs/ab/abcd.1",
        "proxyd.toml",
    }
    for each in target.rglob("*"):
        assert each.stat().st_mode & 0o077 == 0, each
    settings = load(target / "proxyd.toml", {})
    assert settings.storage.url == f"sqlite:///{target}/proxyd.db"
    assert settings.mail.password == "a mail password"
    assert str(tmp_path / "live") not in (target / "proxyd.toml").read_text()
    assert await confirm(settings) == 1
    assert await confirm(settings) == 0
    assert [each.name for each in target.parent.iterdir()] == ["proxyd"]


async def test_a_ledger_that_does_not_agree_is_reported(target: Path, tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    funded(settings.storage.url)
    with closing(sqlite3.connect(tmp_path / "live" / "proxyd.db")) as connection, connection:
        connection.execute("UPDATE accounts SET balance = balance + 1 WHERE user_id IS NOT NULL")
    backup = (await back_up_all(settings, None, tmp_path / "backups")).path
    _, restored = await restore(backup, target, "")
    assert not restored.report.passed
    assert (target / "proxyd.db").exists()


async def test_nothing_that_exists_is_changed(backup: Path, target: Path) -> None:
    target.mkdir()
    (target / "precious").touch()
    await refused(backup, target, "not empty")
    await refused(backup, target / "precious" / "..", "not empty")
    await refused(backup, target / "precious", "not a folder")
    await refused(backup, target / "none" / "proxyd", "no such folder")
    await refused(target / "none", target / "new", "no such folder")
    await refused(target, target / "new", "has no MANIFEST, so it is no backup")
    await refused(target, backup, "is the backup, and comes first: proxyd restore BACKUP DIR")


async def test_a_folder_of_another_program_beside_the_new_one_stays(
    backup: Path, target: Path
) -> None:
    for name in ("proxyd.partial", "proxyd.tmp"):
        (target.parent / name).mkdir()
        (target.parent / name / "precious").touch()
    await restore(backup, target, "")
    assert len(list(target.parent.glob("*/precious"))) == 2


async def test_a_mounted_file_system_is_refused_at_once(backup: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        await refused(backup, disk, "a file system is mounted there")


async def test_a_table_that_the_manifest_lacks_is_named(
    postgres_server: str, empty_postgres: str, target: Path, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path, empty_postgres)
    funded(empty_postgres)
    backup = (await back_up_all(settings, None, tmp_path / "backups")).path

    def without(content: dict[str, Any]) -> None:
        for name in ("tables", "files"):
            content[name] = [each for each in content[name] if "log_head" not in each["path"]]

    rewritten(backup, without)
    async with postgres.database(postgres_server, "test_lacking") as url:
        await refused(backup, target, "MANIFEST has no table staff_log_head", url)


async def test_the_folder_may_be_the_current_one(
    backup: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.mkdir()
    monkeypatch.chdir(target)
    await restore(backup, Path(), "")
    assert (target / "proxyd.toml").exists()


async def test_a_damaged_backup_is_refused(backup: Path, target: Path, tmp_path: Path) -> None:
    database = backup / "database" / "proxyd.db"
    content = database.read_bytes()
    middle = len(content) // 2
    byte = bytes([content[middle] ^ 1])
    database.write_bytes(content[:middle] + byte + content[middle + 1 :])
    await refused(backup, target, r"database/proxyd\.db: its hash differs")
    database.write_bytes(content[:-1])
    await refused(backup, target, r"database/proxyd\.db: its size differs")
    database.write_bytes(content + b"x")
    await refused(backup, target, r"database/proxyd\.db: its size differs")
    database.unlink()
    await refused(backup, target, r"database/proxyd\.db: No such file")
    database.write_bytes(content)
    listed = backup / manifest.NAME
    text = listed.read_bytes()
    for wrong in (text[:-20], text.replace(b'"schema": ', b'"schema": 1'), b"", b"\n{}"):
        listed.write_bytes(wrong)
        await refused(backup, target, "was changed or cut off")
    listed.write_bytes(text)
    await restore(backup, target, "")


async def test_a_hostile_backup_reaches_no_other_file(
    backup: Path, target: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0")
    digest = hashlib.sha256(secret.read_bytes()).hexdigest()

    def adding(path: str) -> Callable[[dict[str, Any]], None]:
        entry = {"path": path, "size": secret.stat().st_size, "sha256": digest}
        return lambda content: content["files"].append(entry)

    original = (backup / manifest.NAME).read_bytes()
    for path in (
        "../secret",
        "work/blobs/../../../../secret",
        str(secret),
        "work/blobs//x",
        "work/./blobs/x",
        "",
        "MANIFEST",
        "database/proxyd.db",
        "proxyd.toml",
        "state/authorized_keys",
        "work/incoming/x",
        "tls/x.pem",
        "work/blobs/new\nline",
    ):
        rewritten(backup, adding(path))
        await refused(backup, target, "names a file that no backup has")
        (backup / manifest.NAME).write_bytes(original)
    rewritten(backup, adding("work/blobs/link"))
    link = backup / "work" / "blobs" / "link"
    for place in (secret, tmp_path / "nowhere"):
        link.symlink_to(place)
        await refused(backup, target, "a link, or not a folder")
        link.unlink()
    os.mkfifo(link)
    await refused(backup, target, "not a regular file")
    link.unlink()
    shutil.move(backup / "work", tmp_path / "elsewhere")
    (backup / "work").symlink_to(tmp_path / "elsewhere")
    await refused(backup, target, "a link, or not a folder")


async def test_a_hostile_manifest_is_refused(backup: Path, target: Path) -> None:
    original = (backup / manifest.NAME).read_bytes()
    for name, value, words in (
        ("format", 2, "has format 2"),
        ("schema", 9000, "schema version 9000, this program knows only"),
        ("schema", "x", "cannot be read"),
        ("engine", "mysql", "cannot be read"),
        ("database", "", "names a file that no backup has"),
        ("database", "settings/effective.toml", "names a file that no backup has"),
        ("files", [], "has no file"),
        ("program", "1.0\x1b]0;owned\x07", "wrong program or time"),
        ("copied_at", 1 << 60, "wrong program or time"),
        ("copied_at", -1, "wrong program or time"),
        ("files", [{"path": "state/signing.key", "size": -1, "sha256": "0" * 64}], "wrong size"),
    ):
        rewritten(backup, lambda content, name=name, value=value: content.update({name: value}))
        await refused(backup, target, words)
        (backup / manifest.NAME).write_bytes(original)


async def test_a_full_disk_leaves_nothing(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        (disk / "filler").write_bytes(bytes(512 * 1024))
        await refused(backup, disk / "proxyd", "bytes, .* are free")
        monkeypatch.setattr(files, "free_bytes", lambda folder: 1 << 60)
        await refused(backup, disk / "proxyd", "No space left")


async def test_postgresql_is_restored_into_an_empty_database(
    store_url: str, engine: str, empty_postgres: str, target: Path, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path, store_url)
    funded(store_url)
    backup = (await back_up_all(settings, None, tmp_path / "backups")).path
    if engine == "sqlite":
        await refused(backup, target, "without --database", empty_postgres)
        return
    await refused(backup, target, "needs an empty database")
    await refused(backup, target, "not empty", store_url)
    users = backup / "database" / "users.copy"
    content = users.read_bytes()
    users.write_bytes(content.replace(b"buyer@", b"owner@"))
    await refused(backup, target, r"users\.copy: its hash differs", empty_postgres)
    users.write_bytes(content)
    connection = await asyncpg.connect(empty_postgres)
    try:
        assert await connection.fetchval("SELECT to_regclass('users')") is None
        _, restored = await restore(backup, target, empty_postgres)
        assert restored.report.passed
        assert restored.report.transfers == 1
        assert await connection.fetchval("SELECT email FROM users") == "buyer@example.com"
        with pytest.raises(asyncpg.IntegrityConstraintViolationError, match="append_only"):
            await connection.execute("DELETE FROM entries")
    finally:
        await connection.close()
    assert load(target / "proxyd.toml", {}).storage.url == empty_postgres


async def test_an_older_schema_is_brought_up_to_date(
    store_url: str,
    engine: str,
    empty_postgres: str,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service with the new program starts from a backup of the old one."""
    await grown.grow(store_url, 100)
    backup = (await back_up_all(settings_for(tmp_path, store_url), None, tmp_path / "b")).path
    later = Migration(9001, "later", ("CREATE TABLE later (id TEXT PRIMARY KEY);",))
    name = "sqlite" if engine == "sqlite" else "postgres"
    steps = {each: (*migrate.migrations(each), later) for each in ("sqlite", "postgres")}
    monkeypatch.setattr(migrate, "migrations", steps.__getitem__)
    read, restored = await restore(backup, target, "" if engine == "sqlite" else empty_postgres)
    assert read.schema == steps[name][-2].version
    assert restored.report.passed


async def test_a_rolled_back_upgrade_has_the_earlier_state(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old program refuses the new database, and starts from the backup before the upgrade."""
    settings = settings_for(tmp_path)
    funded(settings.storage.url)
    backup = (await back_up_all(settings, None, tmp_path / "backups")).path
    live = settings.storage.url.removeprefix("sqlite:///")
    later = Migration(9001, "later", ("ALTER TABLE users ADD COLUMN later BIGINT;",))
    steps = migrate.migrations("sqlite")
    with monkeypatch.context() as upgraded:
        upgraded.setattr(migrate, "migrations", lambda engine: (*steps, later))
        funded(settings.storage.url, name="late")
        newer = (await back_up_all(settings, None, tmp_path / "newer")).path
    with pytest.raises(Exception, match="schema version 9001, this program knows only"):
        funded(settings.storage.url, name="refused")
    await refused(newer, target, "schema version 9001, this program knows only")
    Path(live).parent.rename(tmp_path / "failed")  # as the page for operators does
    _, restored = await restore(backup, Path(live).parent, "")
    assert restored.report.passed
    with closing(sqlite3.connect(live)) as connection:
        assert connection.execute("SELECT username FROM users").fetchall() == [("buyer",)]
    funded(settings.storage.url, name="next")
