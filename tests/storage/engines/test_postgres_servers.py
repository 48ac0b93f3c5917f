"""The choice of a server of a PostgreSQL cluster."""

import asyncio
import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import asyncpg
import pytest
from support.base.cases import cases
from support.base.ports import closed_port
from support.base.waiting import until
from support.database.forwarder import Forwarder
from support.database.postgres import execute, killable_server
from support.database.silent import silent_server

from storage.engines import postgres_servers
from storage.engines.errors import Cause, UnavailableError
from storage.engines.place import UrlError
from storage.engines.postgres_servers import (
    CONNECT_ERRORS,
    TCP_USER_TIMEOUT_SECONDS,
    Position,
    Server,
    Servers,
    WentBackError,
    accepts_writes,
    servers_of,
)

M1, M2 = Server("m1", 5432), Server("m2", 5433)


@cases(
    ("url", "expected"),
    [
        ("postgresql://u@m1,m2:5433/db", [M1, M2]),
        ("postgresql://u:a,b@m1,m2:5433/db", [M1, M2]),
        ("postgresql:///db?host=m1,m2&port=5432,5433", [M1, M2]),
        ("postgresql:///db?host=m1:5432,m2:5433", [M1, M2]),
        ("postgresql:///db?host=m1,m2&port=7", [Server("m1", 7), Server("m2", 7)]),
        ("postgresql://u@[::1]:7,[::2]/db", [Server("::1", 7), Server("::2", 5432)]),
        ("postgresql:///db?host=/run/a,/run/b", [Server("/run/a", 5432), Server("/run/b", 5432)]),
        ("postgresql://u@m%31,m2:5433/db", [M1, M2]),
        (
            "postgresql://u@%2Frun%2Fa:5433,%2Frun%2Fb/db",
            [Server("/run/a", 5433), Server("/run/b", 5432)],
        ),
        # The driver finds one server by itself, by its variables and files too.
        ("postgresql://u@m1/db", [None]),
        ("postgresql:///db?host=/run/a", [None]),
        ("postgresql:///db", [None]),
        ("postgresql:///db?service=mine", [None]),
    ],
)
def test_the_servers_of_a_url(url: str, expected: list[Server | None]) -> None:
    assert list(servers_of(url)) == expected


@cases(
    "url",
    [
        "postgresql://u@m1,,m2/db",
        "postgresql://u@m1,m2:x/db",
        "postgresql:///db?host=m1,m2&port=1,2,3",
        "postgresql://u@[::1,m2/db",
        "postgresql://u:pa@ssword@m1,m2/db",
        "postgresql://u:12,pass/word@m1/db",
        "mysql://u@m1,m2/db",
        "postgresql://u@m1,m2%0AFORGED/db",
        "postgresql://u:1#s3@m1/db",
        "postgresql://localhost:1?a=s3@m1/db",
    ],
)
def test_a_list_of_servers_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(UrlError) as caught:
        servers_of(url)
    assert "s3" not in str(caught.value)


def test_line_breaks_in_a_list_are_dropped_as_the_driver_drops_them() -> None:
    assert list(servers_of("postgresql://u@m1,\nm2:5433/db")) == [M1, M2]


@cases(
    "url",
    [
        "postgresql://ada:s3cr3t\uff1a9@127.0.0.1:1,127.0.0.1:2/db",
        "postgresql://ada:s3[cr3t]@127.0.0.1:1,127.0.0.1:2/db",
        "postgresql://ada@127.0.0.1:1,127.0.0.1:2/db?password=s3&cr3t",
    ],
)
async def test_a_url_that_the_driver_refuses_is_not_repeated(url: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        await Servers(url).connect()
    assert "fails (the URL cannot be read)" in str(caught.value)
    assert "cr3t" not in str(caught.value)


async def test_each_server_of_a_list_is_tried_at_its_own_address() -> None:
    servers = Servers("postgresql://ada:s3cr3t@127.0.0.1:1,[::1]:2/books?sslmode=disable")
    with pytest.raises(UnavailableError) as caught:
        await servers.connect()
    assert "127.0.0.1:1 fails (" in str(caught.value)
    assert "[::1]:2 fails (" in str(caught.value)


def test_a_position_is_written_as_postgresql_writes_it() -> None:
    assert str(Position(29, (3 << 32) + 0xAB)) == "timeline 29, 3/AB"
    assert Position(29, 0) > Position(28, 1 << 40)


def url_of(server_url: str, *ports: int) -> str:
    """Return a URL of closed or silent ports, and of the real server behind them."""
    folder = server_url.partition("host=")[2]
    hosts = ",".join([*("127.0.0.1" for _ in ports), folder])
    numbers = ",".join([*map(str, ports), "5432"])
    return f"postgresql://postgres:@/postgres?host={hosts}&port={numbers}"


async def test_a_server_that_refuses_does_not_delay_the_next(postgres_server: str) -> None:
    with closed_port() as refusing:
        servers = Servers(url_of(postgres_server, refusing))
        connection = await servers.connect()
    assert servers.current.endswith(":5432")
    await connection.close()


async def test_a_silent_server_delays_the_next_once(postgres_server: str) -> None:
    with silent_server() as port:
        servers = Servers(url_of(postgres_server, port))
        began = time.monotonic()
        await (await servers.connect()).close()
        assert 0.9 < time.monotonic() - began < 5
        # The server that answered is first now, so nothing is sent to the silent one.
        with count_of(servers) as attempts:
            await (await servers.connect()).close()
        assert attempts == ["5432"]


@contextmanager
def count_of(servers: Servers) -> Iterator[list[str]]:
    """Count attempts by the port of their server."""
    seen: list[str] = []
    attempt = servers._attempt

    async def counted(server: Server | None, options: dict[str, object]) -> asyncpg.Connection:
        seen.append(str(server).rpartition(":")[2])
        return await attempt(server, options)

    servers._attempt = counted  # type: ignore[method-assign, assignment]
    yield seen


@pytest.mark.long
async def test_every_server_is_named_when_none_accepts_writes() -> None:
    with killable_server() as server, silent_server() as silent, closed_port() as refusing:
        await execute(server.url, "ALTER SYSTEM SET default_transaction_read_only = on")
        await execute(server.url, "SELECT pg_reload_conf()")
        await until(partial(is_read_only, server.url), "the server has read its settings")
        with pytest.raises(UnavailableError) as caught:
            await Servers(url_of(server.url, refusing, silent)).connect()
    assert caught.value.cause is Cause.READ_ONLY
    assert f"127.0.0.1:{refusing} fails (Connection refused)" in str(caught.value)
    assert f"127.0.0.1:{silent} does not answer" in str(caught.value)
    assert ":5432 is a standby, or read-only" in str(caught.value)


async def is_read_only(url: str) -> bool:
    connection = await asyncpg.connect(url)
    try:
        return not accepts_writes(connection)
    finally:
        await connection.close()


async def test_a_lone_server_fails_with_its_own_words() -> None:
    with closed_port() as port, pytest.raises(OSError, match="refused"):
        await Servers(f"postgresql://u@127.0.0.1:{port}/db").connect()


async def went_back(servers: Servers) -> WentBackError:
    """Connect, and return the refusal; a connection is closed before the test fails."""
    try:
        await (await servers.connect()).close()
    except WentBackError as error:
        return error
    raise AssertionError("a database that went back in time was accepted")


async def test_a_database_that_lost_changes_is_refused_for_good_once_that_lasts(
    postgres_server: str,
) -> None:
    servers = Servers(postgres_server)
    await (await servers.connect()).close()
    seen = servers._seen
    assert seen.timeline == 1
    servers._seen = later = Position(2, 1)
    error = await went_back(servers)
    assert error.cause is Cause.WENT_BACK
    assert "it is at timeline 1, " in str(error)
    assert f"and was at {later}" in str(error)
    # A balancer has led to an old server for a moment: the right one is accepted again.
    servers._seen = seen
    await (await servers.connect()).close()
    servers._seen = later
    servers.latch_seconds = 0.0
    await went_back(servers)
    servers._seen = seen  # also when it has grown past the position since
    assert f"and was at {later}" in str(await went_back(servers))


async def test_connections_that_are_made_at_once_raise_no_false_alarm(postgres_server: str) -> None:
    """The answers of a busy server are read in another order than it gave them."""
    servers = Servers(postgres_server)
    await execute(postgres_server, "CREATE TABLE busy (id INT)")
    is_busy = True

    async def write() -> None:
        connection = await asyncpg.connect(postgres_server)
        while is_busy:
            await connection.execute("INSERT INTO busy VALUES (1)")
        await connection.close()

    writing = asyncio.create_task(write())
    try:
        for _ in range(10):
            made = await asyncio.gather(*(servers.connect() for _ in range(8)))
            await asyncio.gather(*(each.close() for each in made))
    finally:
        is_busy = False
        await writing
        await execute(postgres_server, "DROP TABLE busy")


async def test_a_connection_to_an_old_server_ends_when_another_one_wins(
    postgres_server: str,
) -> None:
    servers = Servers(postgres_server)
    moves: list[str] = []
    servers.on_moved = lambda: moves.append(servers.current)
    old = await servers.connect()
    servers.current = "another:5432"  # where it has led until now
    old.server = "another:5432"
    new = await servers.connect()
    assert old.is_closed()
    assert not new.is_closed()
    assert len(moves) == 1
    await new.close()


async def test_an_answer_that_is_read_late_is_no_way_back(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two connections that are made at once, the one that asked first may be read last."""
    servers = Servers(postgres_server)
    position, is_asked, goes_on = postgres_servers._position, asyncio.Event(), asyncio.Event()

    async def read_late(connection: asyncpg.Connection) -> Position | None:
        found = await position(connection)
        is_asked.set()
        await goes_on.wait()
        return found

    monkeypatch.setattr(postgres_servers, "_position", read_late)
    first = asyncio.create_task(servers.connect())
    await is_asked.wait()
    monkeypatch.setattr(postgres_servers, "_position", position)
    await execute(postgres_server, "CREATE TABLE later (id INT)")
    await execute(postgres_server, "CHECKPOINT")  # and with it a flush of the log
    await (await servers.connect()).close()
    goes_on.set()
    await (await first).close()
    await execute(postgres_server, "DROP TABLE later")


async def test_a_primary_is_left_when_another_one_is_promoted_while_it_answers(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(postgres_server)
    position = postgres_servers._position

    async def promoted(connection: asyncpg.Connection) -> Position | None:
        servers._seen = Position(2, 1)
        return await position(connection)

    monkeypatch.setattr(postgres_servers, "_position", promoted)
    with pytest.raises(UnavailableError, match="another server was promoted since") as caught:
        await servers.connect()
    assert caught.value.cause is Cause.READ_ONLY


@pytest.mark.parametrize("way", ["end_older", "end_others"])
async def test_a_statement_whose_connection_ends_before_its_execution_fails_as_any_lost_one(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A new statement is two messages, and another task may end the connection between them."""
    servers = Servers(postgres_server)
    connection = await servers.connect()
    prepare = connection._get_statement

    async def ended_meanwhile(*args: object, **options: object) -> object:
        statement = await prepare(*args, **options)
        if way == "end_older":
            servers.end_older(math.inf)
        else:
            servers.current = "another"
            servers.end_others()
        return statement

    # The driver has no other place between the two.
    monkeypatch.setattr(connection, "_get_statement", ended_meanwhile)
    with pytest.raises(CONNECT_ERRORS, match="connection is closed"):
        await connection.fetch("SELECT 1")
    assert connection.is_closed()


async def test_a_server_on_a_socket_of_the_file_system_is_used_as_it_is(
    postgres_server: str,
) -> None:
    connection = await Servers(postgres_server).connect()
    assert accepts_writes(connection)
    await connection.close()


async def test_the_kernel_ends_a_tcp_connection_that_acknowledges_nothing(
    postgres_server: str,
) -> None:
    with Forwarder.running(postgres_server) as wire:
        connection = await Servers(wire.url).connect()
        sock = connection._transport.get_extra_info("socket")
        option = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert option == TCP_USER_TIMEOUT_SECONDS * 1000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await connection.close()
