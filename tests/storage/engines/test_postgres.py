"""Behaviour of the store on PostgreSQL only."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import NamedTuple

import asyncpg
import pytest
from support.base.waiting import until
from support.database import postgres
from support.database.forwarder import Forwarder

from storage.bandwidth.nodes import seen
from storage.engines import migrate, postgres_link
from storage.engines.errors import CannotOpenError, ConstraintError, UnavailableError
from storage.engines.open import open_store
from storage.engines.postgres import PostgresStore
from storage.engines.postgres_link import PostgresLink
from storage.engines.postgres_servers import Servers
from storage.engines.store import Transaction, probe


class Linked(NamedTuple):
    """A link, the URL of its database, its wire, and the number of its losses as a list."""

    link: PostgresLink
    url: str
    wire: Forwarder
    losses: list[None]


def unexpected() -> None:
    raise AssertionError("the claim was lost")


async def test_any_number_of_daemons_claim_a_database(postgres_server: str) -> None:
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        first, second = await open_store(url), await open_store(url)
        await first.claim(unexpected)
        await second.claim(unexpected)
        await first.close()
        await second.close()


async def test_a_server_out_of_reach_is_named_without_its_password() -> None:
    with pytest.raises(CannotOpenError) as caught:
        await open_store("postgresql://proxyd:secret@127.0.0.1:1/proxyd")
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.long
async def test_a_migration_takes_longer_than_any_other_statement_may(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrate.migrations("postgres")
    slow = migrate.Migration(steps[-1].version + 1, "slow", ("SELECT pg_sleep(3)",))
    monkeypatch.setattr(migrate, "migrations", lambda _: [*steps, slow])
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        opening = (open_store(url, statement_seconds=2.5) for _ in range(2))
        for store in await asyncio.gather(*opening):
            await store.close()


async def test_a_migration_waits_for_a_table_no_longer_than_others_can(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later users of the table would wait for the same time."""
    steps = migrate.migrations("postgres")
    added = migrate.Migration(steps[-1].version + 1, "more", ("ALTER TABLE users ADD more TEXT",))
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        await (await open_store(url)).close()
        monkeypatch.setattr(migrate, "migrations", lambda _: [*steps, added])
        reader = await asyncpg.connect(url)
        async with reader.transaction():
            await reader.fetch("SELECT 1 FROM users")
            with pytest.raises(CannotOpenError, match="lock timeout"):
                await PostgresStore.open(url, pool_size=1, migration_lock_seconds=0.1)
        await reader.close()
        await (await open_store(url)).close()


async def test_an_error_is_reported_without_the_row(postgres_server: str) -> None:
    """An error goes to the log; a row can hold the hash of a password, or a user's address."""
    person = {"id": "1", "username_key": "ada", "email_key": "ada@example.com"}

    async def register(tx: Transaction, created_at: int | None) -> None:
        await tx.run(
            """
            INSERT INTO users (id, username, username_key, email, email_key, password_hash,
                created_at)
            VALUES (:id, :username_key, :username_key, :email_key, :email_key, 's3cr3t', :created)
            """,
            created=created_at,
            **person,
        )

    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        store = await open_store(url)
        await store.write(register, 1)
        for created_at, rule in ((None, "not-null"), (1, "users_pkey")):
            with pytest.raises(ConstraintError, match=rule) as caught:
                await store.write(register, created_at)
            assert not [text for text in ("s3cr3t", "ada") if text in str(caught.value)]
        await store.close()


async def test_connections_that_the_server_ended_are_replaced(postgres_server: str) -> None:
    name = f"test_{uuid.uuid4().hex}"
    async with postgres.database(postgres_server, name) as url:
        store = await open_store(url)
        await store.read(probe)
        admin = await asyncpg.connect(postgres_server)
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
        )
        await admin.close()

        async def eventually() -> None:
            while True:
                try:
                    await store.read(probe)
                except UnavailableError:
                    continue
                return

        async with asyncio.timeout(20):
            await eventually()
        await store.close()


async def test_a_unit_that_lost_against_another_is_run_again(postgres_server: str) -> None:
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        store = await open_store(url)
        runs = 0
        both_hold_one = asyncio.Barrier(2)

        async def cross(tx: Transaction, first: str, second: str) -> None:
            nonlocal runs
            runs += 1
            await tx.run("UPDATE accounts SET balance = balance + 1 WHERE id = :id", id=first)
            if runs <= 2:
                await both_hold_one.wait()
            await tx.run("UPDATE accounts SET balance = balance + 1 WHERE id = :id", id=second)

        one, two = "house:revenue:usd", "house:rewards:usd"
        await asyncio.gather(store.write(cross, one, two), store.write(cross, two, one))
        assert runs > 2  # a retried transaction can meet the other one again before it is done

        async def balances(tx: Transaction) -> list[int]:
            return await tx.all(int, "SELECT balance FROM accounts WHERE balance <> 0")

        assert await store.read(balances) == [2, 2]
        await store.close()


async def test_two_signs_of_life_within_a_second_are_two(postgres_server: str) -> None:
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        store = await open_store(url)
        link = store.link(15.0)
        assert link is not None
        await link.connect(lambda _: None, lambda: None)
        await link.register("here")
        known = await store.read(seen)
        for _ in range(20):
            assert await link.renew("here")
            known += await store.read(seen)
        assert len(set(known)) == 21
        await link.close()
        await store.close()


async def waiting_for(tx: Transaction, go: asyncio.Event, begun: list[None]) -> None:
    """Keep a connection until a test lets go."""
    await tx.run("SELECT 1")
    begun.append(None)
    await go.wait()


async def connections(tx: Transaction) -> int:
    """Return how many connections this database has."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    return await tx.one(int, sql) or 0


@pytest.mark.parametrize(("pool_size", "left"), [(2, 1), (10, 7)])
async def test_a_store_set_aside_answers_while_every_other_connection_is_taken(
    postgres_server: str, pool_size: int, left: int
) -> None:
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        store = await open_store(url, pool_size=pool_size)
        go, begun = asyncio.Event(), []
        many = [
            asyncio.create_task(store.read(waiting_for, go, begun)) for _ in range(pool_size + 1)
        ]
        await until(lambda: len(begun) == left, "no more get a connection")
        answers = await asyncio.gather(*(store.set_aside().read(connections) for _ in range(20)))
        assert max(answers) <= pool_size
        assert len(begun) == left
        go.set()
        await asyncio.gather(*many)
        await store.close()


async def test_one_connection_is_shared_by_all(postgres_server: str) -> None:
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        store = await open_store(url, pool_size=1)
        assert store.set_aside() is store
        assert await store.read(connections) == 1
        await store.close()


async def test_a_sweeper_is_looked_for_without_taking_the_lock(
    postgres_server: str,
) -> None:
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        sweeper, other = (PostgresLink(Servers(url), 15.0, on_lost=lambda: None) for _ in range(2))
        for link in (sweeper, other):
            await link.connect(print, print)
        for _ in range(2):
            assert await other.is_unswept()
        assert await sweeper.try_to_sweep()
        assert not await other.is_unswept()
        await sweeper.close()
        await until(other.is_unswept, "the server has seen the end")
        await other.close()


class FreezingForwarder(Forwarder):
    """A wire that freezes, when armed, behind the preparation of a statement."""

    is_armed = False

    def may_pass(self, data: bytes) -> bool:
        if self.is_armed and data.endswith(b"H\x00\x00\x00\x04"):  # Flush
            self.is_armed = False
            self.freeze()
        return True


async def lock_node(tx: Transaction) -> None:
    await tx.lock("nodes", ["here"])


async def test_the_locks_of_a_daemon_that_hangs_within_a_statement_are_freed(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's limit of an idle transaction begins after a statement, not within one."""
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        with FreezingForwarder.running(url) as wire:
            store, other = await open_store(wire.url), await open_store(url)
            link = other.link(15.0)
            assert link is not None
            await link.connect(print, print)
            await link.register("here")

            async def hang(tx: Transaction) -> None:
                await tx.lock("nodes", ["here"])
                wire.is_armed = not begun
                begun.append(None)
                await tx.run("SELECT 1 WHERE :text = ''", text="")

            begun: list[None] = []
            hanging = asyncio.create_task(store.write(hang))
            await until(lambda: bool(begun) and not wire.is_armed, "it hangs")
            owner = await asyncpg.connect(url)
            await owner.execute("BEGIN; SELECT 1")
            assert await link.end_hanging() == 0  # five seconds are not over
            with monkeypatch.context() as patch:
                patch.setattr(postgres_link, "IDLE_TRANSACTION_SECONDS", 0.01)
                waiting = asyncio.create_task(other.write(lock_node))
                await until(link.end_hanging, "the transaction is ended")
                await waiting
            await owner.execute("SELECT 1; COMMIT")  # no daemon's, so not ours to end
            await owner.close()
            wire.thaw()
            await hanging
            assert len(begun) == 2  # its unit was run again
            await link.close()
            await store.close()
            await other.close()


@pytest.fixture
async def link(postgres_server: str) -> AsyncIterator[Linked]:
    """A link to a new database, over a wire that may freeze."""
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url:
        with Forwarder.running(url) as wire:
            store = await open_store(url)
            losses: list[None] = []
            servers = Servers(wire.url)
            link = PostgresLink(servers, 3.0, on_lost=lambda: None)
            await link.connect(print, lambda: losses.append(None))
            await link.register("here")
            yield Linked(link, url, wire, losses)
            await link.close()
            await store.close()


async def test_a_link_answers_two_tasks_at_the_same_time(link: Linked) -> None:
    """One task renews the row of the node, and another one ends hanging transactions."""
    for _ in range(20):
        renewals = asyncio.gather(*(link.link.renew("here") for _ in range(2)))
        endings = asyncio.gather(*(link.link.end_hanging() for _ in range(2)))
        assert (await renewals, await endings) == ([True, True], [0, 0])
    assert not link.losses


async def test_a_transaction_that_goes_on_between_two_looks_is_left_alone(
    link: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads the states of connections before it reads what each one waits for.

    So a long statement that ends in between is taken for a silence by one look.
    """
    monkeypatch.setattr(postgres_link, "IDLE_TRANSACTION_SECONDS", 0.0)
    daemon = await asyncpg.connect(link.url, server_settings={"application_name": "proxyd"})
    await daemon.execute("BEGIN; SELECT 1")
    loop = asyncio.get_running_loop()
    looks: list[None] = []

    def go_on(data: bytes) -> bool:
        if b"pg_terminate_backend" in data:
            looks.append(None)
            asyncio.run_coroutine_threadsafe(daemon.execute("SELECT 1"), loop).result()
        return True

    monkeypatch.setattr(link.wire, "may_pass", go_on)
    assert await link.link.end_hanging() == 0
    assert looks
    await daemon.execute("COMMIT")
    await daemon.close()


async def test_a_silent_transaction_of_another_program_is_left_alone(
    link: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "IDLE_TRANSACTION_SECONDS", 0.01)
    names = "proxyd-console", "proxyd", "proxyd - 127.0.0.1:5432"
    console, *daemons = [
        await asyncpg.connect(link.url, server_settings={"application_name": name})
        for name in names
    ]
    for each in (console, *daemons):
        await each.execute("BEGIN; SELECT 1")

    async def are_ended() -> bool:
        await link.link.end_hanging()
        return all(each.is_closed() for each in daemons)

    await until(are_ended, "a pooler adds the address of its client")
    await console.execute("COMMIT")
    for each in (console, *daemons):
        await each.close()


async def test_a_role_that_may_end_no_connection_keeps_its_link(
    link: Linked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_link, "IDLE_TRANSACTION_SECONDS", 0.01)
    role = f"role_{uuid.uuid4().hex}"
    owner = await asyncpg.connect(link.url)
    await owner.execute(
        f"""
        REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM PUBLIC;
        CREATE ROLE {role} LOGIN
        """
    )
    url = link.url.replace("//postgres:", f"//{role}:")
    hanging = await asyncpg.connect(url, server_settings={"application_name": "proxyd"})
    await hanging.execute("BEGIN; SELECT 1")
    limited = PostgresLink(Servers(url), 3.0, on_lost=unexpected)
    await limited.connect(print, unexpected)
    await asyncio.sleep(0.1)  # the transaction is silent for longer than the limit
    for _ in range(3):
        assert await limited.end_hanging() == 0
    assert caplog.text.count("permission denied for function pg_terminate_backend") == 1
    assert await limited.try_to_sweep()
    await hanging.execute("COMMIT")
    await hanging.close()
    await limited.close()
    await owner.execute(f"DROP ROLE {role}")
    await owner.close()


async def test_a_link_that_does_not_answer_the_second_task_is_lost_for_the_first(
    link: Linked,
) -> None:
    """The lock of the sweeper is lost with the connection, and the renewing task is idle."""
    link.wire.freeze()
    with pytest.raises(UnavailableError):
        await link.link.end_hanging()
    assert link.losses == [None]
    link.wire.thaw()
    with pytest.raises(UnavailableError, match="not connected"):
        await link.link.end_hanging()
    assert link.losses == [None]
