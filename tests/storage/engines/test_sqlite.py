"""Behaviour of the store on SQLite only."""

import asyncio
import sqlite3
import stat
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.base.mounts import fill, small_disk
from support.database.sqlite import database

from storage.engines import sqlite
from storage.engines.errors import AlreadyClaimedError, CannotOpenError, Cause, UnavailableError
from storage.engines.open import open_store
from storage.engines.sqlite import BUSY_TIMEOUT_SECONDS, GROUP_MAX_UNITS, SqliteStore
from storage.engines.store import Transaction


def unexpected() -> None:
    raise AssertionError("the claim was lost")


async def insert(tx: Transaction, number: int) -> None:
    await tx.run(
        "INSERT INTO schema_versions (version, name) VALUES (:version, 'x')", version=-1 - number
    )


async def refused(tx: Transaction) -> None:
    raise ZeroDivisionError


async def count(tx: Transaction) -> int:
    found = await tx.one(int, "SELECT COUNT(*) FROM schema_versions WHERE name = 'x'")
    return found or 0


async def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "proxyd.db"
    store = await open_store(f"sqlite:///{path}")
    await store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_long_read_holds_up_no_short_one(tmp_path: Path) -> None:
    over = threading.Event()

    async def last(_: Transaction) -> bool:
        return over.wait(30)  # in the thread of its connection

    store = await open_store(f"sqlite:///{tmp_path}/proxyd.db")
    lasting = asyncio.create_task(store.read(last))
    try:
        await asyncio.sleep(0)  # it has its connection
        async with asyncio.timeout(20):
            assert await store.read(count) == 0
    finally:
        over.set()
        assert await lasting
        await store.close()


def test_an_interrupted_opening_ends_with_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, failures = threading.Event(), list[object]()
    connect = sqlite._connect
    url = database(tmp_path)  # on a busy machine the steps of a schema take longer than the wait

    def connect_slowly(path: Path, busy_seconds: float) -> sqlite3.Connection:
        connected.set()
        time.sleep(0.1)  # the loop would be closed by then
        return connect(path, busy_seconds)

    async def interrupted() -> None:
        opening = asyncio.create_task(open_store(url))
        await asyncio.to_thread(connected.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    monkeypatch.setattr(sqlite, "_connect", connect_slowly)
    monkeypatch.setattr(threading, "excepthook", failures.append)
    earlier = set(threading.enumerate())
    asyncio.run(interrupted())
    for thread in set(threading.enumerate()) - earlier:
        thread.join(10)
        assert not thread.is_alive()
    assert not failures


async def test_a_commit_is_synchronised_to_the_disk(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/proxyd.db")

    async def pragmas(tx: Transaction) -> tuple[int, int, str]:
        values = [
            await tx.one(lambda value: value, f"PRAGMA {name}")
            for name in ("synchronous", "foreign_keys", "journal_mode")
        ]
        return values[0], values[1], values[2]

    assert await store.write(pragmas) == (2, 1, "wal")
    await store.close()


async def test_more_units_than_a_group_holds_are_all_written(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/proxyd.db")
    number = 3 * GROUP_MAX_UNITS + 7
    await asyncio.gather(*(store.write(insert, index) for index in range(number)))
    assert await store.read(count) == number
    await store.close()


async def test_closing_finishes_begun_work(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    store = await open_store(url)
    writing = [asyncio.create_task(store.write(insert, index)) for index in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writing)
    store = await open_store(url)
    assert await store.read(count) == 50
    await store.close()


async def test_a_unit_that_awaits_something_else_is_refused(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/proxyd.db")

    async def dawdle(tx: Transaction) -> None:
        await insert(tx, 0)
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaited something other"):
        await store.write(dawdle)
    assert await store.read(count) == 0
    await store.close()


async def test_one_daemon_claims_a_database_until_it_closes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    first, second = await open_store(url), await open_store(url)
    await first.claim(unexpected)
    with pytest.raises(AlreadyClaimedError, match="another proxyd"):
        await second.claim(unexpected)
    await first.close()
    await second.claim(unexpected)
    await second.close()


async def test_a_write_waits_for_another_program_and_then_gives_up(tmp_path: Path) -> None:
    assert BUSY_TIMEOUT_SECONDS >= 5
    path = tmp_path / "proxyd.db"
    store = await SqliteStore.open(str(path), create=True, readers=1, busy_seconds=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    outcomes = await asyncio.gather(
        *(store.write(insert, index) for index in range(5)), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {UnavailableError}
    other.execute("ROLLBACK")
    other.close()
    await store.write(insert, 0)
    assert await store.read(count) == 1
    await store.close()


@pytest.mark.parametrize(
    "content", [b"not a database, whatever it says " * 100, b"SQLite format 3"]
)
async def test_another_kind_of_file_is_not_opened_and_not_changed(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "proxyd.db"
    path.write_bytes(content)
    with pytest.raises(CannotOpenError, match=r"proxyd\.db"):
        await open_store(f"sqlite:///{path}")
    assert path.read_bytes() == content


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(CannotOpenError, match="Is a directory"):
        await open_store(f"sqlite:///{tmp_path}")


async def test_the_version_changes_with_every_commit_of_any_process_and_only_then(
    tmp_path: Path,
) -> None:
    path = tmp_path / "proxyd.db"
    store = await open_store(f"sqlite:///{path}")
    seen = [store.version()]
    await store.read(count)
    assert store.version() == seen[-1]
    with pytest.raises(LookupError):
        await store.write(fail)
    for number in range(200):
        await store.write(insert, number)
        seen.append(store.version())
    program = f"import sqlite3; sqlite3.connect({str(path)!r}).execute('PRAGMA user_version = 7')"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0
    seen.append(store.version())
    assert None not in seen
    assert len(set(seen)) == len(seen)
    assert await store.read(count) == 200
    await store.close()
    assert store.version() is None


async def fail(tx: Transaction) -> None:
    raise LookupError


async def test_the_version_survives_the_log_starting_over(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/proxyd.db")
    seen = set()
    for number in range(3_000):
        await store.write(insert, number)
        seen.add(store.version())
    assert len(seen) == 3_000
    await store.close()


async def test_a_start_waits_for_a_program_that_holds_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "proxyd.db"
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    asyncio.get_running_loop().call_later(0.3, holder.execute, "COMMIT")
    store = await open_store(f"sqlite:///{path}")
    await store.close()
    holder.close()


async def test_deleted_text_is_in_no_file_after_a_scrub(tmp_path: Path) -> None:
    path = tmp_path / "proxyd.db"
    store = await SqliteStore.open(str(path), create=True, readers=1)
    try:

        async def write(tx: Transaction) -> None:
            await tx.run("CREATE TABLE notes (text TEXT NOT NULL)")
            for number in range(200):
                await tx.run("INSERT INTO notes (text) VALUES (:text)", text=f"zebrafish {number}")

        async def delete(tx: Transaction) -> None:
            await tx.run("DELETE FROM notes WHERE text <> 'zebrafish 7'")
            await tx.run("UPDATE notes SET text = ''")

        await store.write(write)
        assert await store.scrub(("notes",))
        assert b"zebrafish" in path.read_bytes()
        await store.write(delete)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM notes").fetchone()
            await store.write(insert, 1)
            assert not await store.scrub(("notes",))
        assert await store.scrub(("notes",))
        for each in (path, path.with_name("proxyd.db-wal")):
            assert b"zebrafish" not in each.read_bytes()
        assert path.with_name("proxyd.db-wal").stat().st_size == 0
    finally:
        await store.close()


async def test_a_full_disk_is_trouble_until_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        store = await open_store(f"sqlite:///{disk}/proxyd.db")
        try:
            filler, errors = fill(disk), list[UnavailableError]()
            for number in range(1_000):  # the log has some room of its own
                try:
                    await store.write(insert, number)
                except UnavailableError as error:
                    errors.append(error)
                    break
            assert [each.cause for each in errors] == [Cause.FULL]
            assert (store.health().trouble, store.health().failures) == (Cause.FULL, {"full": 1})
            with pytest.raises(ZeroDivisionError):
                await store.write(refused)
            await store.write(count)  # writes nothing, so it succeeds
            assert store.health().trouble is Cause.FULL
            filler.unlink()
            assert store.health().trouble is None  # without a write
        finally:
            await store.close()
