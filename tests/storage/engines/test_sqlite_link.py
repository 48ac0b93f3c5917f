"""Several processes on one SQLite database: presence, notices, the sweepers' lock, and writing."""

import asyncio
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path

import pytest
from support.base.clock import Clock
from support.base.waiting import until
from support.database import sqlite

from market.money.audit import audit_ledger
from storage.bandwidth import nodes
from storage.engines.backup import back_up
from storage.engines.errors import CannotOpenError, ConstraintError, UnavailableError
from storage.engines.node_folder import NodeFolder, lock_within
from storage.engines.open import open_store
from storage.engines.sqlite import SqliteStore
from storage.engines.sqlite_link import SqliteLink
from storage.engines.store import Transaction

ROOT = Path(__file__).parent.parent.parent.parent
TIMEOUT_SECONDS = 15
SWEEP = """
import asyncio, sys
from storage.engines.open import open_store

async def sweep():
    store = await open_store(sys.argv[1], is_shared=True)
    link = store.link(15.0)
    await link.connect(print, print)
    await link.register("child")
    print(await link.try_to_sweep(), flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(sweep())
"""


class Member:
    """Store that others share, as a node, and the notices that it received."""

    def __init__(self, name: str, store: SqliteStore, link: SqliteLink) -> None:
        self.name = name
        self.store = store
        self.link = link
        self.heard: list[str] = []
        self.lost = 0
        self._is_closed = False

    @classmethod
    async def opened(cls, path: Path, name: str) -> "Member":
        store = await open_store(f"sqlite:///{path}", is_shared=True)
        assert isinstance(store, SqliteStore)
        link = store.link(TIMEOUT_SECONDS)
        assert link is not None
        member = cls(name, store, link)
        try:
            await link.connect(member.heard.append, member._on_lost)
            await link.register(name)
        except BaseException:
            await member.close()
            raise
        return member

    def _on_lost(self) -> None:
        self.lost += 1

    async def lose_store(self) -> None:
        """Close the store under the link, as a database that does not answer."""
        self._is_closed = True
        await self.store.close()

    async def close(self) -> None:
        """Leave; closing twice is harmless."""
        await self.link.close()
        if not self._is_closed:
            await self.lose_store()


Join = Callable[[str], Awaitable[Member]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proxyd.db"


@pytest.fixture
async def join(path: Path) -> AsyncIterator[Join]:
    """Make a node on the database; however the test ends, nothing of it stays open."""
    sqlite.make(path)
    async with AsyncExitStack() as members:

        async def joined(name: str) -> Member:
            member = await Member.opened(path, name)
            members.push_async_callback(member.close)
            return member

        yield joined


@pytest.fixture
async def pair(join: Join) -> tuple[Member, Member]:
    """Two nodes on one database."""
    return await join("first"), await join("second")


async def send(tx: Transaction, *texts: str) -> None:
    await tx.notify(*texts)


async def send_and_fail(tx: Transaction, text: str) -> None:
    await tx.notify(text)
    raise LookupError


async def send_and_break(tx: Transaction, text: str) -> None:
    """Break a rule of the schema."""
    await tx.notify(text)
    await tx.run("INSERT INTO nodes (id, started_at, seen_at) VALUES ('first', 0, 0)")


async def row_count(tx: Transaction) -> int:
    return await tx.one(int, "SELECT COUNT(*) FROM schema_versions WHERE name = 'x'") or 0


# --- notices -------------------------------------------------------------------------------------


async def test_every_node_gets_committed_notices_and_no_rolled_back_one(
    pair: tuple[Member, Member],
) -> None:
    first, second = pair
    outcomes = await asyncio.gather(  # one group, with a savepoint for each
        first.store.write(send, "one", "two"),
        first.store.write(send_and_fail, "never"),
        first.store.write(send_and_break, "nor this"),
        first.store.write(send, "three"),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [
        type(None),
        LookupError,
        ConstraintError,
        type(None),
    ]
    await second.store.write(send, "four")
    for member in pair:
        await until(lambda member=member: len(member.heard) >= 4)
        assert member.heard == ["one", "two", "three", "four"]


async def test_a_notice_comes_after_the_commit(pair: tuple[Member, Member]) -> None:
    first, second = pair
    seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def look() -> None:
        seen.set_result(await second.store.read(row_count))

    def hear(_: str) -> None:
        looking.append(asyncio.get_running_loop().create_task(look()))

    async def insert_and_send(tx: Transaction) -> None:
        await tx.run("INSERT INTO schema_versions (version, name) VALUES (-1, 'x')")
        await tx.notify("inserted")

    looking: list[asyncio.Task[None]] = []
    await second.link.connect(hear, lambda: None)
    await first.store.write(insert_and_send)
    assert await seen == 1


async def test_a_commit_that_fails_sends_nothing(
    pair: tuple[Member, Member], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair

    async def abandon(tx: Transaction) -> None:
        await tx.notify("never")
        await tx.run("ROLLBACK")  # as SQLite does by itself when the disk is full
        raise LookupError

    outcomes = await asyncio.gather(
        first.store.write(send, "never"), first.store.write(abandon), return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [UnavailableError, UnavailableError]
    await first.store.write(send, "committed")
    await until(lambda: len(second.heard) > 0)
    assert second.heard == first.heard == ["committed"]


async def test_a_node_that_reads_too_late_holds_up_no_commit_and_catches_up(
    pair: tuple[Member, Member], path: Path
) -> None:
    first, second = pair
    loop = asyncio.get_running_loop()
    assert second.link._pipe is not None
    loop.remove_reader(second.link._pipe)  # it hangs
    sent = 0
    while not list(path.parent.glob("proxyd.db.nodes/*.missed")):
        await first.store.write(send, *(["x" * 2_000] * 100))
        sent += 100
    loop.add_reader(second.link._pipe, second.link._read)
    await until(lambda: second.lost > 0, "it hears that notices were missed")
    assert len(second.heard) < sent
    await until(lambda: len(first.heard) == sent, "the other has missed none")
    assert first.lost == 0
    await second.link.connect(second.heard.append, second._on_lost)
    await first.store.write(send, "again")
    await until(lambda: second.heard[-1] == "again")
    assert second.lost == 1


async def test_a_renewal_finds_notices_that_were_missed_without_a_sign(
    pair: tuple[Member, Member], path: Path
) -> None:
    _, second = pair
    Path(f"{path}.nodes/second.missed").touch()
    assert await second.link.renew("second")
    assert second.lost == 1
    assert await second.link.renew("second")
    assert second.lost == 1


async def test_a_database_of_one_daemon_has_no_link_no_folder_and_sends_nothing(
    path: Path,
) -> None:
    store = await open_store(f"sqlite:///{path}")
    assert store.link(TIMEOUT_SECONDS) is None
    await store.write(send, "to nobody")
    assert not Path(f"{path}.nodes").exists()
    await store.close()


# --- presence ------------------------------------------------------------------------------------


async def test_two_signs_of_life_within_a_second_are_two(pair: tuple[Member, Member]) -> None:
    first, second = pair
    known = [row for row in await second.store.read(nodes.seen) if row.id == "first"]
    for _ in range(20):
        assert await first.link.renew("first")
        known += [row for row in await second.store.read(nodes.seen) if row.id == "first"]
    assert len(set(known)) == 21


async def test_a_node_that_was_declared_dead_is_notified_and_registers_anew(
    pair: tuple[Member, Member],
) -> None:
    first, second = pair
    await second.store.write(nodes.remove, "first")
    assert not await first.link.renew("first")
    await first.link.register("third")
    assert await first.link.renew("third")
    assert await second.link.exited(["second", "third"]) == []
    await second.store.write(send, "to all")
    await until(lambda: first.heard == second.heard == ["to all"])


async def test_a_node_whose_folder_was_removed_makes_it_anew_and_is_not_taken_for_dead(
    pair: tuple[Member, Member], path: Path
) -> None:
    first, second = pair
    shutil.rmtree(f"{path}.nodes")
    assert await second.link.exited(["first", "second"]) == []
    for member in pair:
        with pytest.raises(UnavailableError, match="removed"):
            await member.link.renew(member.name)
        await member.link.connect(member.heard.append, member._on_lost)
        assert await member.link.renew(member.name)
        assert await member.link.try_to_sweep() is (member is first)
    assert await second.link.exited(["first", "second"]) == []
    await second.store.write(send, "to all")
    await until(lambda: first.heard == second.heard == ["to all"])


async def test_a_renewal_that_the_database_does_not_take_is_a_lost_connection(join: Join) -> None:
    member = await join("here")
    await member.lose_store()
    with pytest.raises(UnavailableError):
        await member.link.renew("here")


async def test_a_registration_that_the_database_refuses_looks_like_an_ended_node(
    join: Join, path: Path
) -> None:
    """Its row may be there all the same, so the others must not take it for alive."""
    member, other = await join("here"), await join("there")
    await member.lose_store()
    with pytest.raises(UnavailableError):
        await member.link.register("anew")
    assert await other.link.exited(["here", "there", "anew"]) == ["anew"]
    assert await other.link.exited(["here", "there"]) == []
    assert not Path(f"{path}.nodes/anew.pipe").exists(), "no row has this name"


async def test_a_node_that_leaves_in_order_leaves_nothing_in_the_folder(
    pair: tuple[Member, Member], path: Path
) -> None:
    first, second = pair
    await first.link.close()
    assert [each.name for each in Path(f"{path}.nodes").glob("*.pipe")] == ["second.pipe"]
    with pytest.raises(UnavailableError):
        await first.link.renew("first")
    await second.store.write(send, "alone")
    await until(lambda: second.heard == ["alone"])


# --- the sweepers' lock --------------------------------------------------------------------------


async def test_one_node_sweeps_and_another_does_when_it_closes(
    pair: tuple[Member, Member],
) -> None:
    first, second = pair
    assert await first.link.try_to_sweep()
    assert not await second.link.try_to_sweep()
    assert not await second.link.is_unswept()
    assert await first.link.try_to_sweep()
    await first.link.close()
    assert await second.link.is_unswept()
    assert await second.link.try_to_sweep()


async def test_the_sweepers_lock_of_a_process_that_is_killed_is_free(
    join: Join, path: Path
) -> None:
    member = await join("here")
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SWEEP,
        f"sqlite:///{path}",
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"True\n"
    assert not await member.link.try_to_sweep()
    assert await member.link.exited(["here", "child"]) == []
    child.kill()
    await child.wait()
    assert await member.link.try_to_sweep()
    assert await member.link.exited(["here", "child"]) == ["child"]
    # Once it is reaped, its pipe goes; not before, or the others would not notice.
    assert await member.link.exited(["here", "child"]) == ["child"]
    assert await member.link.exited(["here"]) == []
    assert [each.name for each in Path(f"{path}.nodes").glob("*.pipe")] == ["here.pipe"]


async def test_a_node_that_ends_may_have_committed_an_unsent_notice(join: Join) -> None:
    member, other = await join("here"), await join("there")
    assert await member.link.renew("here")
    assert member.lost == 0
    await other.close()
    assert await member.link.renew("here")
    assert member.lost == 1
    assert await member.link.renew("here")
    assert member.lost == 1


@pytest.fixture
def silence(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock for the silence of the lock's holder; only the test moves it."""
    monkeypatch.setattr("storage.engines.sqlite_link.time.monotonic", clock.steady)
    return clock


async def test_the_sweepers_lock_is_taken_from_a_node_that_hangs(
    pair: tuple[Member, Member], silence: Clock
) -> None:
    first, second = pair
    assert await first.link.try_to_sweep()
    for hanging, other in ((first, second), (second, first)):
        assert not await other.link.is_unswept(), "the silence begins now"
        silence.now += TIMEOUT_SECONDS - 1
        assert not await other.link.is_unswept()
        silence.now += 1
        assert not await other.link.is_unswept(), "the lock is taken away, and not kept"
        assert await other.link.try_to_sweep()
        assert not await hanging.link.try_to_sweep()


async def test_a_node_that_renews_the_sweepers_lock_keeps_it(
    pair: tuple[Member, Member], silence: Clock
) -> None:
    holder, other = pair
    for _ in range(10):
        assert await holder.link.try_to_sweep()
        assert not await other.link.try_to_sweep()
        silence.now += TIMEOUT_SECONDS - 1


# --- processes -----------------------------------------------------------------------------------


@contextmanager
def writers(path: Path, *units: tuple[int, int]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Run processes that have opened the same database, and that write after a signal."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.database.shared_writer",
                path,
                str(count),
                str(width),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for count, width in units
    ]
    try:
        assert [said(each) for each in processes] == ["here"] * len(processes)
        for process in processes:
            go(process)
        assert [said(each) for each in processes] == ["open"] * len(processes)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_that_open_a_new_file_at_once_make_it_once(path: Path) -> None:
    with writers(path, *[(1, 1)] * 4) as processes:
        for each in processes:
            go(each)
        assert [said(each) for each in processes] == ["1"] * 4
        assert [each.wait() for each in processes] == [0] * 4


async def test_a_file_that_another_process_is_opening_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself refuses some processes that make a new file at the same time."""
    folder, waiting = NodeFolder(path), asyncio.Event()
    folder.make()
    first = folder.open_lock("open")
    fcntl.flock(first, fcntl.LOCK_EX)
    loop = asyncio.get_running_loop()

    def lock_and_tell(seconds: float, descriptor: int, *, step_seconds: float) -> bool:
        loop.call_soon_threadsafe(waiting.set)
        return lock_within(seconds, descriptor, step_seconds=step_seconds)

    monkeypatch.setattr("storage.engines.sqlite.lock_within", lock_and_tell)
    second = loop.create_task(open_store(f"sqlite:///{path}", is_shared=True))
    await waiting.wait()
    with closing(sqlite3.connect(path)) as looking:
        assert looking.execute("SELECT COUNT(*) FROM sqlite_master").fetchone() == (0,)
    os.close(first)
    await (await second).close()


async def test_a_file_that_another_process_opens_for_ever_is_not_opened(path: Path) -> None:
    folder = NodeFolder(path)
    folder.make()
    first = folder.open_lock("open")
    fcntl.flock(first, fcntl.LOCK_EX)
    with pytest.raises(CannotOpenError, match="too long"):
        await SqliteStore.open(
            str(path), create=True, readers=1, is_shared=True, opening_seconds=0.01
        )
    os.close(first)


async def test_no_unit_fails_beside_processes_that_write_all_the_time(
    path: Path, tmp_path: Path
) -> None:
    """And beside them a backup is made, the ledger is audited, and every commit is noticed."""
    small, large = (100, 1), (6_000, 300)
    with writers(path, small, small, large, large) as processes:
        store = await open_store(f"sqlite:///{path}", is_shared=True)
        version = store.version()
        for each in processes:
            go(each)
        await until(lambda: store.version() != version, "others' commits are noticed")
        assert (await audit_ledger(store)).passed
        assert back_up(f"sqlite:///{path}", tmp_path / "copy.db") > 0
        counts = await asyncio.gather(*(asyncio.to_thread(said, each) for each in processes))
        assert counts == ["100", "100", "6000", "6000"]
        assert await store.read(row_count) == 12_200
        await store.close()
    copy = await open_store(f"sqlite:///{tmp_path}/copy.db")
    assert (await audit_ledger(copy)).passed
    await copy.close()


async def test_a_folder_that_cannot_be_made_is_named(path: Path) -> None:
    Path(f"{path}.nodes").touch()
    with pytest.raises(CannotOpenError, match="nodes"):
        await open_store(f"sqlite:///{path}", is_shared=True)
