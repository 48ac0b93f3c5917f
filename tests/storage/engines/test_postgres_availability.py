"""Units of work while a PostgreSQL server dies, hangs, or accepts no writes."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import asyncpg
import pytest
from support.base.waiting import until
from support.database.forwarder import Forwarder
from support.database.postgres import KillableServer, execute, killable_server

from storage.engines.errors import Cause, ConstraintError, UnavailableError, UnknownOutcomeError
from storage.engines.open import open_store
from storage.engines.postgres import PostgresStore
from storage.engines.postgres_servers import Position, ServerConnection
from storage.engines.store import Transaction, probe

COUNT = "house:revenue:usd"


@pytest.fixture
def server() -> Iterator[KillableServer]:
    with killable_server() as running:
        yield running


@pytest.fixture
async def store(server: KillableServer) -> AsyncIterator[PostgresStore]:
    opened = await open_store(server.url)
    assert isinstance(opened, PostgresStore)
    yield opened
    await opened.close()


async def add(tx: Transaction) -> None:
    """Add one to a balance, for a count of commits; no test looks at the ledger."""
    await tx.run("UPDATE accounts SET balance = balance + 1 WHERE id = :id", id=COUNT)


async def balance(url: str) -> int:
    """Return the number of commits, over a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT balance FROM accounts WHERE id = $1", COUNT))
    finally:
        await connection.close()


async def end_connections(url: str) -> None:
    """End every connection of the store, as a server does that is shut down."""
    await execute(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
    )


async def set_server(url: str, name: str, value: str) -> None:
    """Change a setting of the server, on a connection that may always write."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET default_transaction_read_only = off")
        await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


async def lose_standby(url: str) -> None:
    """Have commits wait for a standby that does not exist; return once they do.

    The server's checkpointer switches it on, some time after the setting was changed.
    """
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE waited (n INT)")
    await set_server(url, "synchronous_standby_names", "lost")

    async def is_waited_for() -> bool:
        committing = asyncio.create_task(connection.execute("INSERT INTO waited VALUES (1)"))
        await asyncio.wait({committing}, timeout=0.2)
        if committing.done():
            return False
        await execute(
            url, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )
        await committing
        return True

    await until(is_waited_for, "commits wait for the standby")
    await connection.close()


async def waits(url: str, event: str) -> bool:
    """Return whether a connection waits for an event, by its name in PostgreSQL's activity."""
    connection = await asyncpg.connect(url)
    try:
        return bool(
            await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event = $1", event
            )
        )
    finally:
        await connection.close()


async def test_a_unit_that_loses_its_connection_before_the_commit_is_run_again(
    server: KillableServer, store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def lose_once(tx: Transaction) -> int:
        nonlocal runs
        runs += 1
        await add(tx)
        if runs == 1:
            await end_connections(server.url)
        await tx.run("SELECT 1")
        return runs

    assert await store.write(lose_once) == 2
    assert await balance(server.url) == 1
    assert store.health().repeated == 1
    assert store.health().failures == {}
    assert "database unavailable" not in caplog.text


async def test_a_unit_whose_connection_ends_within_a_statement_is_run_again(
    server: KillableServer, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search ends all older connections after an outage, even within a statement."""
    prepare = ServerConnection._get_statement
    ended: list[str] = []

    async def ended_once(
        connection: ServerConnection, query: str, *args: object, **options: object
    ) -> object:
        statement = await prepare(connection, query, *args, **options)
        if not ended and query.startswith("UPDATE accounts"):
            ended.append(query)
            connection.terminate()
        return statement

    # The driver has no other place between a statement's preparation and its execution.
    monkeypatch.setattr(ServerConnection, "_get_statement", ended_once)
    await store.write(add)
    assert ended
    assert await balance(server.url) == 1
    assert store.health().repeated == 1


async def test_a_unit_that_always_loses_its_connection_is_refused(
    server: KillableServer, store: PostgresStore
) -> None:
    runs = 0

    async def lose(tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        await end_connections(server.url)
        await tx.run("SELECT 1")

    with pytest.raises(UnavailableError):
        await store.write(lose)
    assert runs == 4
    await store.write(add)


async def test_a_short_outage_is_waited_for_and_refuses_nothing(
    server: KillableServer, store: PostgresStore
) -> None:
    await store.write(add)
    server.kill()
    writing = asyncio.create_task(store.write(add))
    await until(lambda: store.health().trouble is Cause.UNREACHABLE, "the outage is noticed")
    await asyncio.to_thread(server.start)
    await writing
    assert await balance(server.url) == 2


@pytest.mark.long
async def test_a_long_outage_refuses_at_once_and_is_logged_in_two_lines(
    server: KillableServer,
    store: PostgresStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store._availability.patience_seconds = 0.5
    caplog.set_level(logging.INFO)
    await store.write(add)
    server.kill()
    began = time.monotonic()
    results = await asyncio.gather(*(store.write(add) for _ in range(30)), return_exceptions=True)
    assert {type(each) for each in results} == {UnavailableError}
    assert time.monotonic() - began < 4
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(UnavailableError):
            await store.set_aside().read(probe)
    assert time.monotonic() - began < 1
    health = store.health()
    assert (health.trouble, sum(health.failures.values())) == (Cause.UNREACHABLE, 50)
    await asyncio.to_thread(server.start)
    await until(lambda: store.health().trouble is None, "the search finds the server")
    await store.write(add)
    lines = [each.getMessage() for each in caplog.records if each.name == "storage"]
    assert len(lines) == 2
    assert lines[0].startswith("database unavailable: ")
    assert lines[1].startswith("database available again after ")
    assert lines[1].endswith(": 50 requests refused, 30 repeated")
    assert "Traceback" not in caplog.text


@pytest.mark.long
async def test_a_database_that_went_back_in_the_middle_of_an_outage_is_logged(
    server: KillableServer, store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    server.kill()
    with pytest.raises(UnavailableError):
        await store.write(add)
    servers = store._database.direct
    servers._seen = Position(servers._seen.timeline + 1, 0)
    server.start()
    await until(lambda: store.health().trouble is Cause.WENT_BACK, "it is known")
    lines = [each for each in caplog.messages if "the database went back in time" in each]
    assert len(lines) == 1


async def test_a_server_that_turns_read_only_is_left_until_it_writes_again(
    server: KillableServer, store: PostgresStore
) -> None:
    store._availability.patience_seconds = 0.5
    await store.write(add)
    await set_server(server.url, "default_transaction_read_only", "on")

    async def is_refused() -> bool:
        try:
            await store.write(add)
        except UnavailableError as error:
            return error.cause is Cause.READ_ONLY
        return False

    await until(is_refused, "the server has read its settings")
    with pytest.raises(UnavailableError):  # a read there may be old
        await store.read(probe)
    await set_server(server.url, "default_transaction_read_only", "off")
    await until(lambda: store.health().trouble is None, "the server accepts writes")
    await store.write(add)


async def test_an_unanswered_commit_is_neither_cancelled_nor_done(
    server: KillableServer, store: PostgresStore
) -> None:
    """A commit that waits for a standby, and is cancelled, is done here and nowhere else."""
    await lose_standby(server.url)
    store._unit_seconds = 0.5
    with pytest.raises(UnknownOutcomeError):
        await store.write(add)
    # The server goes on waiting, with its locks: the change is invisible, and a repetition waits.
    assert await waits(server.url, "SyncRep")
    assert await balance(server.url) == 0
    with pytest.raises(UnavailableError) as caught:
        await store.write(add)
    assert caught.value.cause is Cause.SILENT
    await set_server(server.url, "synchronous_standby_names", "")

    async def is_done() -> bool:
        return await balance(server.url) == 1

    await until(is_done, "the commit ends when the standby is not awaited any more")
    store._unit_seconds = 10
    await store.write(add)
    assert await balance(server.url) == 2


async def test_a_commit_goes_on_when_its_task_is_cancelled(
    server: KillableServer, store: PostgresStore
) -> None:
    await lose_standby(server.url)
    writing = asyncio.create_task(store.write(add))

    async def has_begun() -> bool:
        return await waits(server.url, "SyncRep")

    await until(has_begun, "the commit waits for a standby")
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await waits(server.url, "SyncRep")
    await set_server(server.url, "synchronous_standby_names", "")
    await store.write(add)  # waits for the lock of the other
    assert await balance(server.url) == 2


@pytest.mark.long
async def test_a_statement_that_waits_for_a_lock_disturbs_no_other_connection(
    server: KillableServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_store(server.url, statement_seconds=0.5)
    blocker = await asyncpg.connect(server.url)
    async with blocker.transaction():
        await blocker.execute("SELECT 1 FROM accounts WHERE id = $1 FOR UPDATE", COUNT)
        with pytest.raises(UnavailableError) as caught:
            await store.write(add)
        assert caught.value.cause is Cause.SILENT
        assert store.health().trouble is None
    await blocker.close()
    await store.write(add)
    await store.close()
    assert "database unavailable" not in caplog.text


async def test_a_frozen_server_is_noticed_and_left(server: KillableServer) -> None:
    with Forwarder.running(server.url) as wire:
        store = await open_store(wire.url)
        assert isinstance(store, PostgresStore)
        await store.write(add)
        store._unit_seconds = 0.5
        store._database.direct.round_seconds = 1.0
        wire.freeze()
        with pytest.raises(UnavailableError) as caught:
            await store.write(add)
        assert caught.value.cause is Cause.SILENT
        await until(lambda: store.health().trouble is Cause.SILENT, "a new connection is silent")
        wire.thaw()
        await until(lambda: store.health().trouble is None, "the server answers")
        store._unit_seconds = 10
        await store.write(add)
        await store.close()


async def test_a_unit_that_hides_a_failed_statement_is_not_taken_for_committed(
    store: PostgresStore,
) -> None:
    async def hide(tx: Transaction) -> None:
        with suppress(ConstraintError):  # the mistake that is tested
            await tx.run("INSERT INTO accounts (id) VALUES (NULL)")

    with pytest.raises(UnavailableError, match="rolled the transaction back"):
        await store.write(hide)
