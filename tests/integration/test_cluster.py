"""Several daemons on one database: none overspends, none is missed, one sweeps.

On PostgreSQL they are daemons of their own; on SQLite processes of one service.
"""

import fcntl
import select
import signal
import socket
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.base.aside import run_aside
from support.base.brief import brief
from support.base.waiting import PATIENCE_SECONDS, until_true
from support.clients.downloads import completed, downloading, received
from support.clients.story import INSTANT_BYTES
from support.daemons import process
from support.daemons.process import Member, Process, running, serving
from support.database import postgres
from support.database.forwarder import Forwarder
from support.targets import threads

MB = 1_000_000
GB = 1_000 * MB
HOUR = 3_600
# A node that goes so slow does not run dry while it is cut off: only its fence stops it. One take
# is a fraction of its bytes of a second.
SLOW = {"PROXYD_LIMITS__SESSION_BYTES_PER_SECOND": "50000"}
# For nodes that are made to stand still for a few seconds, which must not count as dead.
PATIENT = {"PROXYD_CLUSTER__NODE_TIMEOUT_SECONDS": "15"}
HANDFUL_BYTES = 10_000
# A slow transfer leaves the processor to the rest of the test.
PACED = {"PROXYD_LIMITS__SESSION_BYTES_PER_SECOND": str(40 * MB)}
LEISURELY = {"PROXYD_LIMITS__SESSION_BYTES_PER_SECOND": str(5 * MB)}
# For processes that are seen to be dead by other means than their silence.
NEVER_TIMED_OUT = {"PROXYD_CLUSTER__NODE_TIMEOUT_SECONDS": "300"}
# Of the processes on SQLite, test_processes.py has the same claims in `make test`.
ENGINES = pytest.mark.parametrize("engine", brief(["postgres", "sqlite"]))


@pytest.fixture
async def url(empty_url: str) -> str:
    """The URL of an empty database, on each engine in turn."""
    return empty_url


@pytest.fixture
async def server_url(postgres_server: str) -> AsyncIterator[str]:
    """The URL of an empty database on PostgreSQL, which daemons reach over a network."""
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a database on SQLite."""
    return tmp_path / "proxyd.db"


@contextmanager
def cluster(url: str, size: int, **settings: str) -> Iterator[list[Process]]:
    """Run daemons that start at once on one database."""
    with ExitStack() as stack:
        daemons = [stack.enter_context(running(Member(url, **settings))) for _ in range(size)]
        for daemon in daemons:
            daemon.wait_ready()
        yield daemons


def rows(url: str, sql: str, *arguments: object) -> list[Any]:
    """Ask the database itself."""
    if url.startswith("sqlite:"):
        file = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(file, isolation_level=None, timeout=20)) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(sql.replace("$", "?"), arguments).fetchall()

    async def ask() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetch(sql, *arguments)
        finally:
            await connection.close()

    return run_aside(ask())


def stored(url: str, session_id: str) -> Any:
    return rows(url, "SELECT * FROM bandwidth_sessions WHERE id = $1", session_id)[0]


@pytest.mark.both_engines
@ENGINES
async def test_a_killed_node_never_makes_more_of_a_session_and_loses_none_of_it(url: str) -> None:
    quota = 600 * MB
    email, password = process.funded(url)
    with ExitStack() as stack:
        target = stack.enter_context(threads.endless())
        nodes = stack.enter_context(cluster(url, 3))
        bought = nodes[0].buy(nodes[0].log_in(email, password), gb=quota / GB)
        session = bought["session_id"]
        downloads = stack.enter_context(downloading(nodes * 20, bought["proxy"], target.port))
        until_true(lambda: received(downloads) > quota // 3, "a third")
        victim = nodes[2]
        [victims_lease] = leases_of(url, session, victim)
        victim.stop(signal.SIGKILL)
        dead = [each for each in downloads if each.daemon_process is victim]
        delivered_by_dead = completed(dead)
        alive = [each for each in downloads if each.daemon_process is not victim]
        # The bytes of the dead node are not handed out twice before its time is over.
        most = 0
        while not is_closed(url, victims_lease):
            assert most <= quota
            most = received(downloads)
        delivered_by_alive = completed(alive)
        reported_by_dead = used_under(url, victims_lease)
        assert reported_by_dead <= delivered_by_dead
        until_true(lambda: stored(url, session)["status"] == "exhausted")
        row = stored(url, session)
        assert (row["bytes_used"], row["bytes_leased"]) == (quota, 0)
        assert delivered_by_alive + reported_by_dead == quota
    process.assert_audit(url)


def leases_of(url: str, session: str, node: Process) -> list[str]:
    return [
        row["id"]
        for row in rows(
            url,
            "SELECT l.id FROM bandwidth_leases AS l WHERE session_id = $1 AND node_id = $2",
            session,
            node.node_id,
        )
    ]


def is_closed(url: str, lease: str) -> bool:
    [row] = rows(url, "SELECT closed_at FROM bandwidth_leases WHERE id = $1", lease)
    return row["closed_at"] is not None


def used_under(url: str, lease: str) -> int:
    [row] = rows(url, "SELECT used_bytes FROM bandwidth_leases WHERE id = $1", lease)
    return int(row["used_bytes"])


@pytest.mark.both_engines
@ENGINES
async def test_parallel_downloads_over_four_nodes_stop_at_the_last_byte(url: str) -> None:
    quota = 300 * MB + 1
    email, password = process.funded(url)
    with threads.endless() as target, cluster(url, 4) as nodes:
        bought = nodes[0].buy(nodes[0].log_in(email, password), gb=quota / GB)
        with downloading(nodes * 15, bought["proxy"], target.port) as downloads:
            assert completed(downloads) == quota
        until_true(lambda: stored(url, bought["session_id"])["status"] == "exhausted")
        assert stored(url, bought["session_id"])["bytes_used"] == quota
    process.assert_audit(url)


@pytest.mark.both_engines
@ENGINES
async def test_ending_on_one_node_cuts_and_bills_on_the_others(url: str) -> None:
    email, password = process.funded(url)
    with ExitStack() as stack:
        target = stack.enter_context(threads.endless())
        first, second = stack.enter_context(cluster(url, 2))
        token = first.log_in(email, password)
        bought = first.buy(token, gb=100)
        downloads = stack.enter_context(
            downloading((first, second, second), bought["proxy"], target.port)
        )
        until_true(lambda: all(each.received > MB for each in downloads))
        # The node that serves no part of it shows the counts of the others while they serve.
        seen = first.used(token, bought["session_id"])
        until_true(lambda: first.used(token, bought["session_id"]) > seen + MB, "counts move")
        status, body = first.call(
            "POST", "/api/bandwidth/end", {"session_id": bought["session_id"]}, token
        )
        assert (status, body) == (200, {"ok": True})
        until_true(lambda: all(each.is_over for each in downloads), "all are cut")
        billed = stored(url, bought["session_id"])["bytes_used"]
        # Everything that clients have seen is billed; a cut takes back only bytes that never left.
        assert billed >= received(downloads) - len(downloads) * INSTANT_BYTES
        assert stored(url, bought["session_id"])["status"] == "ended"
        with pytest.raises(OSError):
            process.proxied(second, bought["proxy"], target.port)
    process.assert_audit(url)


@pytest.mark.both_engines
async def test_nodes_that_start_at_once_migrate_once(url: str) -> None:
    with cluster(url, 3) as nodes:
        assert all("ready" in node.output for node in nodes)
        versions = [row["version"] for row in rows(url, "SELECT version FROM schema_versions")]
        assert len(versions) == len(set(versions)) > 0
        assert len(rows(url, "SELECT id FROM nodes")) == 3
    # These nodes were killed; a later node buries them, and leaves no trace of itself.
    with cluster(url, 1) as [late]:
        until_true(lambda: len(rows(url, "SELECT id FROM nodes")) == 1, "the dead are reaped")
        assert late.stop() == 0
        assert rows(url, "SELECT id FROM nodes") == []


@pytest.mark.both_engines
@ENGINES
async def test_the_sweeper_moves_when_its_holder_is_killed(url: str) -> None:
    email, password = process.funded(url)
    with cluster(url, 1) as [first], cluster(url, 1) as [second]:
        bought = second.buy(second.log_in(email, password))
        until_true(lambda: sweepers(url) == 1)
        first.stop(signal.SIGKILL)
        rows(url, "UPDATE bandwidth_sessions SET expires_at = 1")
        until_true(lambda: stored(url, bought["session_id"])["status"] == "expired", "swept")
        assert sweepers(url) == 1
    process.assert_audit(url)


def sweepers(url: str) -> int:
    if url.startswith("sqlite:"):
        return int(is_locked(Path(url.removeprefix("sqlite:///") + ".nodes/sweeper")))
    return len(
        rows(
            url,
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())",
        )
    )


def is_locked(file: Path) -> bool:
    with file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.long
async def test_a_node_cut_off_from_the_store_stops_in_time_and_comes_back(server_url: str) -> None:
    url = server_url
    quota = 50_000 * MB
    email, password = process.funded(url)
    with ExitStack() as stack:
        target = stack.enter_context(threads.endless())
        forwarder = stack.enter_context(Forwarder.running(url))
        island = stack.enter_context(serving(forwarder.url, **SLOW))
        mainland = stack.enter_context(serving(url))
        token = mainland.log_in(email, password)
        bought = mainland.buy(token, gb=quota / GB)
        [download] = stack.enter_context(downloading([island], bought["proxy"], target.port))
        until_true(lambda: download.received > 10_000)
        [lease] = leases_of(url, bought["session_id"], island)
        forwarder.freeze()
        until_true(lambda: is_closed(url, lease), "declared dead")
        # It had stopped before that: another node cannot own any bytes that it delivers now.
        seen = download.received
        [other] = stack.enter_context(downloading([mainland], bought["proxy"], target.port))
        until_true(lambda: other.received > 10 * MB)
        assert download.received == seen
        forwarder.thaw()
        until_true(lambda: download.is_over, "its connections are cut")
        # In the database it is there before it knows that itself.
        until_true(lambda: island.output.count("this is node") == 2, "it has a new name")
        assert len(rows(url, "SELECT id FROM nodes")) == 2
        with downloading([island], bought["proxy"], target.port) as again:
            until_true(lambda: received(again) > 10_000, "it serves again")
    process.assert_audit(url)


@pytest.mark.long
async def test_a_lone_node_waits_for_the_store_and_goes_on(server_url: str) -> None:
    url = server_url
    email, password = process.funded(url)
    with ExitStack() as stack:
        target = stack.enter_context(threads.endless())
        forwarder = stack.enter_context(Forwarder.running(url))
        node = stack.enter_context(serving(forwarder.url))
        bought = node.buy(node.log_in(email, password), gb=100)
        with process.proxied(node, bought["proxy"], target.port) as connection:
            connection.settimeout(20)
            seen = len(connection.recv(65_536))
            forwarder.freeze()
            until_true(lambda: "is cut off" in node.output)
            seen += arriving(connection)
            name = node.node_id
            forwarder.thaw()
            while seen < 300 * MB:
                seen += len(connection.recv(262_144))
            assert node.node_id == name
    process.assert_audit(url)


async def test_a_connection_to_the_store_that_is_lost_is_made_again(server_url: str) -> None:
    url = server_url
    email, password = process.funded(url)
    with ExitStack() as stack:
        target = stack.enter_context(threads.endless())
        first, second = stack.enter_context(cluster(url, 2))
        token = first.log_in(email, password)
        bought = first.buy(token, gb=100)
        [download] = stack.enter_context(downloading([second], bought["proxy"], target.port))
        until_true(lambda: download.received > MB)
        name = url.rpartition("/")[2].partition("?")[0]
        rows(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = $1 AND pid <> pg_backend_pid()",
            name,
        )
        seen = download.received
        until_true(lambda: download.received > seen + 100 * MB, "it goes on")
        until_true(lambda: listening(url) == 2, "both listen again")
        body = {"session_id": bought["session_id"]}
        until_true(lambda: first.call("POST", "/api/bandwidth/end", body, token)[0] == 200)
        until_true(lambda: download.is_over, "it is cut")
    process.assert_audit(url)


def listening(url: str) -> int:
    return len(rows(url, "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%seen_at%RETURNING%'"))


@pytest.mark.both_engines
@ENGINES
async def test_an_unused_session_goes_back_to_the_others(url: str) -> None:
    email, password = process.funded(url)
    quota = 100_000
    with threads.web() as target, cluster(url, 2) as (first, second):
        bought = first.buy(first.log_in(email, password), gb=quota / GB)
        with process.proxied(first, bought["proxy"], target.port):
            assert stored(url, bought["session_id"])["bytes_leased"] >= 65_536
            # The other needs more than is left, while the first one holds most of it.
            with process.proxied(second, bought["proxy"], target.port) as connection:
                connection.settimeout(20)
                connection.sendall(b"GET /bytes/1000000 HTTP/1.1\r\nConnection: close\r\n\r\n")
                got = 0
                while data := connection.recv(65_536):
                    got += len(data)
        until_true(lambda: stored(url, bought["session_id"])["status"] == "exhausted")
        row = stored(url, bought["session_id"])
        assert (row["bytes_used"], row["bytes_leased"]) == (quota, 0)
        assert got == quota - len("GET /bytes/1000000 HTTP/1.1\r\nConnection: close\r\n\r\n")
    process.assert_audit(url)


@pytest.mark.long
async def test_devices_are_seen_by_every_node(server_url: str) -> None:
    # On SQLite one process has the API, however many have the proxy: it remembers devices itself.
    email, password = process.funded(server_url)
    with cluster(server_url, 2) as (first, second):
        token = first.log_in(email, password)
        _, made = first.call("POST", "/api/worker/token/create", {"name": "box"}, token)
        assert not online(second, token)
        assert beat(first, made["token"], "heartbeat", {"cpu_cores": 4}) == 200
        until_true(lambda: online(second, token), "heard of on the other")
        assert beat(second, made["token"], "heartbeat", {"ram_gb": 8.0}) == 200
        until_true(lambda: device(first, token)["ram_gb"] == 8.0)
        assert device(first, token)["cpu_cores"] == 4
        assert beat(second, made["token"], "offline") == 200
        assert not online(first, token)
        body = {"token_id": made["token_id"]}
        assert first.call("POST", "/api/worker/token/revoke", body, token)[0] == 200
        assert beat(second, made["token"], "heartbeat") == 401


def beat(node: Process, token: str, what: str, body: dict[str, Any] | None = None) -> int:
    return node.call("POST", f"/api/worker/{what}", body or {}, headers={"X-Worker-Token": token})[
        0
    ]


def device(node: Process, token: str) -> dict[str, Any]:
    _, body = node.call("GET", "/api/worker/devices", token=token)
    return dict(body["devices"][0])


def online(node: Process, token: str) -> bool:
    return bool(device(node, token)["is_online"])


@pytest.mark.long
async def test_a_frozen_node_wakes_up_to_hand_out_nothing(server_url: str) -> None:
    url = server_url
    email, password = process.funded(url)
    with ExitStack() as stack:
        target = stack.enter_context(threads.endless())
        forwarder = stack.enter_context(Forwarder.running(url))
        sleeper = stack.enter_context(serving(forwarder.url, **SLOW))
        other = stack.enter_context(serving(url))
        bought = other.buy(other.log_in(email, password), gb=100)
        connection = process.proxied(sleeper, bought["proxy"], target.port)
        stack.enter_context(connection)
        assert arriving(connection, enough=20_000, seconds=PATIENCE_SECONDS) >= 20_000
        [lease] = leases_of(url, bought["session_id"], sleeper)
        sleeper.process.send_signal(signal.SIGSTOP)
        until_true(lambda: is_closed(url, lease), "declared dead")
        arriving(connection)
        # It wakes up, and no message can reach it that it was declared dead.
        forwarder.freeze()
        sleeper.process.send_signal(signal.SIGCONT)
        assert arriving(connection, enough=HANDFUL_BYTES + 1) <= HANDFUL_BYTES
        forwarder.thaw()
        connection.settimeout(20)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    process.assert_audit(url)


def arriving(connection: socket.socket, enough: int = GB, seconds: float = 1.0) -> int:
    """Read until nothing comes for a while or it is enough. Return the number of bytes."""
    size = 0
    while size < enough and select.select([connection], [], [], seconds)[0]:
        size += len(connection.recv(262_144))
    return size


@pytest.mark.long
async def test_a_database_whose_clock_jumps_ahead_declares_no_node_dead(server_url: str) -> None:
    url = server_url
    email, password = process.funded(url)
    set_ahead(url, 0)
    with ExitStack() as stack:
        target = stack.enter_context(threads.endless())
        [sweeper] = stack.enter_context(cluster(url, 1, **PATIENT))
        other = stack.enter_context(serving(url, **PATIENT, **SLOW))
        names = {sweeper.node_id, other.node_id}
        bought = other.buy(other.log_in(email, password), gb=100)
        with process.proxied(other, bought["proxy"], target.port) as connection:
            assert arriving(connection, enough=20_000, seconds=PATIENCE_SECONDS) >= 20_000
            # For a moment the other cannot report its life by the new time.
            other.process.send_signal(signal.SIGSTOP)
            set_ahead(url, HOUR)
            until_true(lambda: seen(url, sweeper) > HOUR // 2 + time.time())
            later = seen(url, sweeper)
            until_true(lambda: seen(url, sweeper) > later + 1, "it has looked for dead nodes")
            assert {row["id"] for row in rows(url, "SELECT id FROM nodes")} == names
            other.process.send_signal(signal.SIGCONT)
            assert arriving(connection, enough=20_000, seconds=PATIENCE_SECONDS) >= 20_000
    process.assert_audit(url)


@pytest.mark.long
async def test_a_node_that_dies_before_the_databases_clock_is_set_back_is_buried(
    server_url: str,
) -> None:
    url = server_url
    set_ahead(url, HOUR)
    with cluster(url, 1), serving(url) as victim:
        victim.stop(signal.SIGKILL)
        set_ahead(url, 0)
        until_true(lambda: len(rows(url, "SELECT id FROM nodes")) == 1, "it is reaped")


def set_ahead(url: str, seconds: int) -> None:
    """Have the server's clock be ahead, as everybody reads it who connects from now on."""
    [row] = rows(url, "SELECT current_database() AS name")
    rows(url, f'ALTER DATABASE "{row["name"]}" SET search_path = public, pg_catalog')
    rows(
        url,
        "CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
        f"'SELECT pg_catalog.clock_timestamp() + make_interval(secs => {seconds})'",
    )


def seen(url: str, node: Process) -> int:
    [row] = rows(url, "SELECT seen_at FROM nodes WHERE id = $1", node.node_id)
    return int(row["seen_at"])


# --- processes on one SQLite database ------------------------------------------------------------


@pytest.mark.long
async def test_bytes_of_killed_processes_are_usable_without_waiting_for_their_timeout(
    path: Path,
) -> None:
    """The victims: the sweeping process, another one, or all before some start again."""
    url, quota = f"sqlite:///{path}", 400 * MB
    email, password = process.funded(url)
    with threads.endless() as target:
        # So slow that no client uses up the quota before the last part.
        with cluster(url, 3, **NEVER_TIMED_OUT, **LEISURELY) as nodes:
            bought = nodes[0].buy(nodes[0].log_in(email, password), gb=quota / GB)
            session = bought["session_id"]
            alive = list(nodes)
            while len(alive) > 1:
                before = stored(url, session)["bytes_used"]
                with downloading(alive, bought["proxy"], target.port):
                    until_true(lambda before=before: stored(url, session)["bytes_used"] > before)
                    victim = alive.pop(0)
                    # The only count so far may be another node's report.
                    until_true(lambda victim=victim: leases_of(url, session, victim), "it leases")
                    [lease] = leases_of(url, session, victim)
                    victim.stop(signal.SIGKILL)
                    until_true(lambda lease=lease: is_closed(url, lease), "it is reaped")
            [last] = alive
            with downloading([last], bought["proxy"], target.port):
                until_true(lambda: bool(leases_of(url, session, last)))
                last.stop(signal.SIGKILL)
        process.assert_audit(url)
        used = stored(url, session)["bytes_used"]
        with cluster(url, 2, **NEVER_TIMED_OUT) as nodes:
            with downloading(nodes, bought["proxy"], target.port) as downloads:
                assert completed(downloads) == quota - used
            until_true(lambda: stored(url, session)["status"] == "exhausted")
    process.assert_audit(url)


async def test_the_operators_commands_work_beside_processes_that_write(
    path: Path, tmp_path: Path
) -> None:
    url, copy = f"sqlite:///{path}", tmp_path / "copy.db"
    email, password = process.funded(url)
    with threads.endless() as target, cluster(url, 3, **PACED) as nodes:
        bought = nodes[0].buy(nodes[0].log_in(email, password), gb=100)
        with downloading(nodes, bought["proxy"], target.port):
            until_true(lambda: stored(url, bought["session_id"])["bytes_used"] > MB, "they report")
            process.assert_audit(url)
            backup = process.run(url, "backup", str(copy))
            assert backup.returncode == 0, backup.stderr
            deposit = process.run(url, "wallet", "deposit", email, "--usd", "1")
            assert deposit.returncode == 0, deposit.stderr
    process.assert_audit(url)
    process.assert_audit(f"sqlite:///{copy}")


@pytest.mark.long
async def test_one_daemon_takes_up_the_rest_of_several_and_several_that_of_one(path: Path) -> None:
    url, quota = f"sqlite:///{path}", 60 * MB
    email, password = process.funded(url)
    with threads.endless() as target:
        with cluster(url, 2, **NEVER_TIMED_OUT) as nodes:
            bought = nodes[0].buy(nodes[0].log_in(email, password), gb=quota / GB)
            session = bought["session_id"]
            for node in nodes:
                process.proxied(node, bought["proxy"], target.port).close()
            assert len(open_leases(url, session)) == 2
        with serving(url) as alone:
            assert open_leases(url, session) == []
            assert rows(url, "SELECT id FROM nodes") == []
            process.proxied(alone, bought["proxy"], target.port).close()
            [left] = open_leases(url, session)
            assert left["node_id"] is None
            alone.stop(signal.SIGKILL)
        used = stored(url, session)["bytes_used"]
        with cluster(url, 2, **NEVER_TIMED_OUT) as nodes:
            with downloading(nodes, bought["proxy"], target.port) as downloads:
                assert completed(downloads) == quota - used
    process.assert_audit(url)


def open_leases(url: str, session: str) -> list[Any]:
    return rows(
        url,
        "SELECT id, node_id FROM bandwidth_leases WHERE session_id = $1 AND closed_at IS NULL",
        session,
    )


@pytest.mark.long
async def test_a_process_that_hangs_is_dead_after_the_timeout_and_hands_out_nothing(
    path: Path,
) -> None:
    url = f"sqlite:///{path}"
    email, password = process.funded(url)
    with (
        threads.endless() as target,
        cluster(url, 1, **SLOW) as [sleeper],
        cluster(url, 1) as [other],
    ):
        bought = other.buy(other.log_in(email, password), gb=100)
        assert sweepers(url) == 1  # the sleeper, which came first
        with process.proxied(sleeper, bought["proxy"], target.port) as connection:
            assert arriving(connection, enough=20_000, seconds=PATIENCE_SECONDS) >= 20_000
            [lease] = leases_of(url, bought["session_id"], sleeper)
            with stopped_outside_a_commit(path, sleeper):
                until_true(lambda: is_closed(url, lease), "declared dead")
                arriving(connection)
            # It wakes up behind its fence, hears that it was declared dead, and cuts everything.
            assert until_reset(connection) <= HANDFUL_BYTES
        until_true(lambda: sleeper.output.count("this is node") == 2, "it has a new name")
        with downloading([sleeper], bought["proxy"], target.port) as again:
            until_true(lambda: received(again) > 10_000, "it serves again")
    process.assert_audit(url)


def until_reset(connection: socket.socket) -> int:
    """Read until the connection is reset, and return how much came before."""
    size = 0
    connection.settimeout(20)
    with suppress(ConnectionResetError):
        while data := connection.recv(262_144):
            size += len(data)
        raise AssertionError("it ended in order")
    return size


@contextmanager
def stopped_outside_a_commit(path: Path, daemon: Process) -> Iterator[None]:
    """Have a process stand still that holds no lock of SQLite: of the gate it may."""
    with Path(f"{path}.nodes/turn").open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        daemon.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)
