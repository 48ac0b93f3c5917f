"""The store fails and comes back: traffic goes on, promises are refused, counts are kept."""

import asyncio
import logging
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import psutil
import pytest
from support.base import mounts
from support.base.waiting import until
from support.clients.socks import Client, tunnel
from support.daemons import process
from support.daemons.bounded import check_bounds
from support.daemons.service import Bought, Person, Service, running, running_in, settings_for
from support.targets import targets
from support.targets.targets import Target

from market.bandwidth.sessions import Bandwidth
from market.money.audit import audit_ledger
from storage.bandwidth.sessions import find
from storage.engines.errors import UnavailableError
from storage.engines.open import open_store
from storage.engines.postgres import PostgresStore
from storage.engines.store import Transaction

UNAVAILABLE = 5  # RFC 1929 status: the session cannot be looked up right now
BLOCK = bytes(10_000)


async def exchange(client: Client, size: int = len(BLOCK)) -> None:
    """Send bytes to an echo, and have them back."""
    await client.send(bytes(size))
    assert await client.receive(size) == bytes(size)


async def written(service: Service, bought: Bought) -> int | None:
    """Return the bytes that a session has used according to the database, if it answers."""
    try:
        row = await service.daemon.store.read(find, bought.id)
    except UnavailableError:
        return None
    assert row is not None
    return row.bytes_used


async def purchase(service: Service, person: Person, **headers: str) -> str:
    """Try to buy a byte; return the code of the refusal, or ""."""
    answer = await service.call(
        "POST",
        "/api/bandwidth/create",
        raw=b'{"gb": 0.000000001}',
        token=person.token,
        headers=headers,
    )
    if answer.status == 200:
        return ""
    assert (answer.status, answer.headers["Retry-After"]) == (500, "1")
    return answer.code


async def admitted(service: Service, bought: Bought) -> int:
    """Log in at the proxy; return the status of RFC 1929."""
    client = await Client.open(service.proxy_port)
    try:
        return await client.log_in(bought.username, bought.password)
    finally:
        await client.close()


class Trade:
    """A service in trade: a buyer, a session that relays, one that was never used."""

    def __init__(self, service: Service, target: Target, person: Person) -> None:
        self.service = service
        self.target = target
        self.person = person
        self.used: Bought
        self.unused: Bought
        self.client: Client

    async def open(self) -> None:
        self.used = await self.service.buy(self.person)
        self.unused = await self.service.buy(self.person)
        self.client = await self.tunnel()
        await exchange(self.client)
        await until(self.is_written, "what was used before is written down")

    async def tunnel(self) -> Client:
        """Return a connection to the echo."""
        used, target = self.used, self.target
        return await tunnel(
            self.service.proxy_port, used.username, used.password, target.host, target.port
        )

    async def is_written(self) -> bool:
        return await written(self.service, self.used) == self.target.received + self.target.sent

    async def goes_on(self) -> None:
        """See that bytes are relayed, on the old connection and on a new one."""
        await exchange(self.client)
        client = await self.tunnel()
        await exchange(client)
        await client.close()


@asynccontextmanager
async def trading(service: Service) -> AsyncIterator[Trade]:
    """Have a user trade; afterwards everything is written down and the books agree."""
    async with targets.echo() as target:
        trade = Trade(service, target, await service.person(usd="100"))
        await trade.open()
        try:
            yield trade
            await until(trade.is_written, "what could not be written is written")
            await trade.goes_on()
            await until(trade.is_written, "every byte is written down")
            await until(lambda: _sells(trade), "sessions are sold again")
            assert await admitted(service, trade.unused) == 0
        finally:
            await trade.client.close()
        await service.end(trade.person, trade.used)
        await service.assert_audit()


async def _sells(trade: Trade) -> bool:
    return await purchase(trade.service, trade.person) == ""


# --- a full disk ----------------------------------------------------------------------------------


async def test_a_full_disk_stops_sales_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounts.small_disk(tmp_path / "disk", 8) as disk:
        async with running_in(disk) as service, trading(service) as trade:
            filler = mounts.fill(disk)
            await until(lambda: _refuses(trade), "there is no room for another sale")
            balance = await service.balance(trade.person)
            before = await written(service, trade.used)
            assert before is not None
            await trade.goes_on()
            await until(
                lambda: "byte counts wait in memory until the database is back" in caplog.text
            )
            assert await written(service, trade.used) == before
            assert await admitted(service, trade.unused) == UNAVAILABLE
            assert await purchase(service, trade.person) == "store_unavailable"
            assert await service.balance(trade.person) == balance
            assert (await service.session(trade.person, trade.used))["bytes_used"] > before
            ready = await service.call("GET", "/readyz")
            assert (ready.status, ready.code) == (503, "not_ready")
            assert "store: full" in str(ready.body)
            with caplog.at_level(logging.INFO):
                filler.unlink()
                await until(lambda: _is_ready(service), "the room is noticed without a sale")
                await until(lambda: "the store is back" in caplog.text, "the room is noticed")


async def _is_ready(service: Service) -> bool:
    return (await service.call("GET", "/readyz")).status == 200


async def _refuses(trade: Trade) -> bool:
    return await purchase(trade.service, trade.person) == "store_unavailable"


def test_a_disk_that_is_full_at_the_start_is_named(tmp_path: Path) -> None:
    with mounts.small_disk(tmp_path / "disk", 1) as disk:
        mounts.fill(disk)
        daemon = process.Process(f"sqlite:///{disk}/proxyd.db")
        assert daemon.wait() == 1
        daemon.stop()
        (line,) = daemon.output.splitlines()
        assert str(disk) in line
        assert "full" in line or "No space left" in line


# --- a database that another program holds --------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the database as another program would that writes for long."""
    other = sqlite3.connect(folder / "proxyd.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


async def test_a_lock_that_is_released_in_time_only_delays(
    service: Service, tmp_path: Path
) -> None:
    async with trading(service) as trade:
        with locked(tmp_path):
            buying = asyncio.create_task(purchase(service, trade.person))
            await trade.goes_on()
            assert not buying.done()
        assert await buying == ""


async def test_a_lock_that_stays_stops_sales_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_in(tmp_path) as service, trading(service) as trade:
        await change_patience(service, 0.1)
        balance = await service.balance(trade.person)
        with locked(tmp_path):
            assert await purchase(service, trade.person) == "store_unavailable"
            assert await admitted(service, trade.unused) == UNAVAILABLE
            await trade.goes_on()
            await until(
                lambda: "byte counts wait in memory until the database is back" in caplog.text
            )
            assert await service.balance(trade.person) == balance
        assert await service.balance(trade.person) == balance


async def change_patience(service: Service, seconds: float) -> None:
    """Have units of a daemon on SQLite wait for a lock for another time than usual."""
    store = service.daemon.store._store
    milliseconds = int(seconds * 1000)
    await store._writer.call(lambda made: made.execute(f"PRAGMA busy_timeout = {milliseconds}"))


# --- a server that is out of reach ----------------------------------------------------------------


@asynccontextmanager
async def on_postgres(url: str) -> AsyncIterator[Service]:
    """Run a daemon that loses patience with its database soon."""
    async with running(settings_for(url)) as service:
        store = service.daemon.store._store
        assert isinstance(store, PostgresStore)
        # A busy server takes a second for a statement, and does not hang.
        for each in (store, store.set_aside()):
            each._unit_seconds = 3.0
        store._database.direct.round_seconds = 3.0
        yield service


@contextmanager
def frozen(server: psutil.Process) -> Iterator[None]:
    """Stop a server and all of its processes, as a machine that hangs would."""
    stopped = [server, *server.children(recursive=True)]
    try:
        for each in stopped:
            each.send_signal(signal.SIGSTOP)
        yield
    finally:
        for each in stopped:
            if each.is_running():
                each.send_signal(signal.SIGCONT)


async def postmaster(url: str) -> psutil.Process:
    """Return the process of a PostgreSQL server."""
    connection = await asyncpg.connect(url)
    try:
        return psutil.Process(await connection.fetchval("SELECT pg_backend_pid()")).parent()
    finally:
        await connection.close()


@pytest.mark.both_engines
@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_server_that_hangs_stops_sales_and_nothing_else(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = await postmaster(store_url)
    async with on_postgres(store_url) as service, trading(service) as trade:
        balance = await service.balance(trade.person)
        with frozen(server):
            assert await purchase(service, trade.person) == "store_unavailable"
            await trade.goes_on()
            assert await admitted(service, trade.unused) == UNAVAILABLE
            await until(lambda: "database unavailable: " in caplog.text)
        await until(lambda: "database available again" in caplog.text)
        assert await service.balance(trade.person) == balance


@pytest.mark.long
@pytest.mark.both_engines
@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_buyer_that_repeats_a_purchase_by_its_key_buys_once(store_url: str) -> None:
    """A server that hangs in the middle of a commit leaves both sides in doubt."""
    server = await postmaster(store_url)
    async with on_postgres(store_url) as service, trading(service) as trade:
        before = len(await service.sessions(trade.person))
        buying = [
            asyncio.create_task(
                purchase(service, trade.person, **{"Idempotency-Key": f"k{number}"})
            )
            for number in range(20)
        ]
        await until(lambda: any(each.done() for each in buying), "some are bought")
        with frozen(server):
            await asyncio.gather(*buying)
        for number in range(20):

            async def bought(key: str = f"k{number}") -> bool:
                return await purchase(service, trade.person, **{"Idempotency-Key": key}) == ""

            await until(bought, "it is answered in the end")
        assert len(await service.sessions(trade.person)) == before + 20


@pytest.mark.both_engines
@pytest.mark.parametrize("engine", ["postgres"])
async def test_connections_that_the_server_ends_are_made_anew(store_url: str) -> None:
    async with on_postgres(store_url) as service, trading(service) as trade:
        for _ in range(3):
            await terminate_all(store_url)
            await trade.goes_on()
            await until(trade.is_written, "it is written down over new connections")


async def terminate_all(url: str) -> None:
    """End every connection to a database but those that hold a lock of a daemon's."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"
        )
    finally:
        await connection.close()


# --- a daemon that ends without its store ---------------------------------------------------------


async def test_a_store_that_is_away_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def fail(_: Bandwidth) -> int:
        nonlocal tries
        tries += 1
        raise UnavailableError("database or disk is full")

    monkeypatch.setattr(Bandwidth, "expire", fail)
    async with running_in(tmp_path, bounds=check_bounds(expiry_seconds=0.01)):
        await until(lambda: tries > 5)
    told = [each for each in caplog.messages if each.startswith("expired sessions wait")]
    assert told == ["expired sessions wait for the store to return: database or disk is full"]


async def test_a_daemon_that_ends_without_its_store_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its unwritten counts are lost, as after a crash: never billed, and logged."""
    with mounts.small_disk(tmp_path / "disk", 8) as disk:
        async with running_in(disk) as service, targets.echo() as target:
            trade = Trade(service, target, await service.person(usd="100"))
            await trade.open()
            filler = mounts.fill(disk)
            await until(lambda: _refuses(trade), "there is no room for another sale")
            await trade.goes_on()
            await trade.client.close()
        assert "the last counts could not be written" in caplog.text
        filler.unlink()
        store = await open_store(f"sqlite:///{disk}/proxyd.db")
        try:
            row = await store.read(find, trade.used.id)
            assert row is not None
            assert row.bytes_used <= target.received + target.sent
            assert (await audit_ledger(store)).passed
        finally:
            await store.close()


@pytest.mark.both_engines
@pytest.mark.parametrize("engine", ["postgres"])
async def test_an_api_with_all_its_connections_keeps_no_client_from_the_proxy(
    store_url: str,
) -> None:
    go = asyncio.Event()

    async def stay(tx: Transaction) -> None:
        await tx.run("SELECT 1")
        await go.wait()

    async with running(settings_for(store_url)) as service:
        bought = await service.buy(await service.person("10"))
        staying = [asyncio.create_task(service.daemon.store.read(stay)) for _ in range(20)]
        try:
            assert await admitted(service, bought) == 0
        finally:
            go.set()
            await asyncio.gather(*staying)
