"""A backup of a live database is whole, private, and never takes the place of another file."""

import asyncio
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from support.base.mounts import small_disk
from support.daemons.service import running_in

from market.money.audit import audit_ledger
from storage.engines.backup import PAGES_PER_STEP, BackupError, back_up
from storage.engines.errors import CannotOpenError
from storage.engines.open import open_store

STEP_BYTES = PAGES_PER_STEP * 4096
MIB = 1024 * 1024


async def test_a_copy_made_under_load_agrees_with_itself(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        person = await service.person(usd="1000")
        url = service.daemon.settings.storage.url
        done = asyncio.Event()

        async def buy() -> int:
            bought = 0
            while not done.is_set():
                await service.buy(person, quota=10**6)
                bought += 1
            return bought

        buying = asyncio.create_task(buy())
        copies = [tmp_path / f"copy-{number}.db" for number in range(3)]
        for copy in copies:
            size = await asyncio.to_thread(back_up, url, copy)
            assert size == copy.stat().st_size
        done.set()
        assert await buying > 0
    for copy in copies:
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        store = await open_store(f"sqlite:///{copy}", create=False)
        report = await audit_ledger(store)
        await store.close()
        assert report.passed
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".copy")]


def test_a_copy_of_many_steps_ends_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "large.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = OFF")
        made.execute("CREATE TABLE pages (bytes BLOB)")
        made.execute("CREATE TABLE writes (number INTEGER)")
        for _ in range(8):
            made.execute("INSERT INTO pages VALUES (zeroblob(:size))", {"size": STEP_BYTES})
    done = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("PRAGMA synchronous = OFF")
            while not done.is_set():
                writer.execute("INSERT INTO writes VALUES (1)")

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write)
        copying = pool.submit(back_up, f"sqlite:///{path}", tmp_path / "copy.db")
        try:
            assert copying.result(timeout=20) > 8 * STEP_BYTES
        finally:
            done.set()
            writing.result()


async def test_no_file_is_overwritten(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    await (await open_store(url)).close()
    there = tmp_path / "there"
    there.write_text("precious")
    with pytest.raises(BackupError, match="file exists"):
        back_up(url, there)
    assert there.read_text() == "precious"


async def test_a_database_that_cannot_be_copied_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CannotOpenError, match="no database"):
        back_up(f"sqlite:///{tmp_path}/none.db", tmp_path / "copy.db")
    with pytest.raises(BackupError, match="pg_dump"):
        back_up("postgresql://host/database", tmp_path / "copy.db")
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 1000)
    with pytest.raises(BackupError, match="not a database"):
        back_up(f"sqlite:///{broken}", tmp_path / "copy.db")
    await (await open_store(f"sqlite:///{tmp_path}/proxyd.db")).close()
    with pytest.raises(BackupError, match="No such file"):
        back_up(f"sqlite:///{tmp_path}/proxyd.db", tmp_path / "no-folder" / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_a_full_disk_is_that_of_the_copy(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    await (await open_store(url)).close()
    with small_disk(tmp_path / "disk", 1) as disk:
        (disk / "filler").write_bytes(bytes(MIB - 32 * 1024))
        with pytest.raises(BackupError, match=rf"^{disk}/copy.db: .*(full|disk)"):
            back_up(url, disk / "copy.db")
        assert [each.name for each in disk.iterdir()] == ["filler"]
