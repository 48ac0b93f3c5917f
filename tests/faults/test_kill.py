"""kill -9 at random moments under load, again and again: the books agree after every one.

In each life of the daemon no session is billed more than both ends of its transfers saw, and both
ends see no more than the rest of the bytes that it had bought. Where one of several processes is
killed, the others hand out its unreported bytes again, so only the first half holds. For bytes that
leave through exits, whose agents are also killed, the far end is the place where the daemon hands
them to an exit: bytes that an exit had taken and not passed on are used. `make crash` kills a
hundred times.
"""

import http.client
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.base.aside import run_aside
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import Process
from support.exits.process import ExitAgents, exit_agents
from support.exits.wire import wired
from support.targets.keyed import (
    CHUNK_BYTES,
    ENDLESS,
    QUIET_KEY,
    KeyedTarget,
    Tally,
    clog,
    converse,
    keyed,
)

from market.base.ids import Identifiers
from market.events.context import Context
from market.exits.earnings import AdvancePace, ExitAdvances
from market.money.audit import audit_ledger
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction

KILLS = {"sqlite": 3, "postgresql": 2, "processes": 4, "exits": 3, "processes with exits": 4}
MORE_KILLS = int(os.environ.get("PROXYD_CRASH_KILLS") or 0)  # a kill has taken 5 s, under load 15
PROCESSES = 3
SEVERAL = {
    process.PROCESSES: str(PROCESSES),
    "PROXYD_CLUSTER__NODE_TIMEOUT_SECONDS": "300",  # the dead are not seen by their silence
    "PROXYD_LIMITS__SESSIONS_PER_USER": "0",  # clients leave many sessions behind
}
# With exits: one has them, the other one asks it. On PostgreSQL the dead are seen by their silence.
TWO = {
    process.PROCESSES: "2",
    "PROXYD_CLUSTER__NODE_TIMEOUT_SECONDS": "2",
    "PROXYD_LIMITS__SESSIONS_PER_USER": "0",
}
CLIENTS = 6
EXITS = 2
EXIT_SHARE_PERCENT = 60
EXIT_WISHES = (
    "-country-xx",
    "-country-xx-session-a",
    "-country-xx-session-b",
    "-country-xx-rotate",
)
LOST_SHARE = 0.5  # of the exits go with their daemon
RESET_SHARE = 0.25  # of the lives have exits die by resets, which lose the bytes under way
FAILED_SECONDS = 0.02
LIFE_MAX_SECONDS = 1.0
STILLBORN_SHARE = 0.15  # of the daemons are killed while they start
TRANSFER_MAX_BYTES = 400_000
REST_SHARE = 0.05
CLOGGED_SHARE = 0.1
QUOTAS_GB = (0.0003, 0.002, 0.05)


class Sold(NamedTuple):
    """A session as the database knows it."""

    id: str
    quota_bytes: int
    bytes_used: int

    @property
    def is_spent(self) -> bool:
        return self.bytes_used == self.quota_bytes


@dataclass
class Load:
    """Clients that buy, use and end sessions until their daemon is killed.

    Some rest at some point, and have nothing on its way that could hide a byte too many. `held` are
    the sessions that each client goes on with in the next life. `wishes` are endings of user names,
    drawn by chance: the exits of the connection. If it `clogs`, some connections are full in both
    directions when the daemon is killed.
    """

    target: KeyedTarget
    tally: Tally
    seed: str
    held: list[dict[str, Any] | None]
    wishes: Sequence[str] = ("",)
    clogs: bool = False

    def run(self, daemon: Process, token: str) -> list[threading.Thread]:
        """Start the clients."""
        threads = [
            threading.Thread(target=self._client, args=(daemon, token, number))
            for number in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        return threads

    def has_counted(self, url: str) -> bool:
        """Say whether the database knows of bytes that were used."""
        known = [each["session_id"] for each in self.held if each is not None]
        return any(process.bytes_used(url, each) for each in known)

    def _client(self, daemon: Process, token: str, number: int) -> None:
        chance = random.Random(f"{self.seed}:{daemon.process.pid}:{number}")
        while daemon.process.poll() is None:
            # The second error comes in the middle of an answer. Of several processes others go on.
            with suppress(OSError, http.client.HTTPException):
                try:
                    self._step(daemon, token, number, chance)
                except AssertionError:  # refused by a process that drains without its supervisor
                    daemon.process.wait(timeout=20)
            if number % 2 and chance.random() < REST_SHARE:
                daemon.process.wait()  # for the kill

    def _step(self, daemon: Process, token: str, number: int, chance: random.Random) -> None:
        bought = self.held[number]
        if bought is None:
            bought = self.held[number] = daemon.buy(token, chance.choice(QUOTAS_GB))
        session, proxy = bought["session_id"], wishing(bought["proxy"], chance.choice(self.wishes))

        def connect() -> socket.socket:
            return process.proxied(daemon, proxy, self.target.port)

        try:
            if self.clogs and number % 2 and chance.random() < CLOGGED_SHARE:
                clog(connect, session, self.tally, daemon.process.wait)
            else:
                converse(connect, session, self.tally, chance, TRANSFER_MAX_BYTES)
        except OSError as error:  # it is used up, its exit is gone, or the daemon is
            if process.is_refused(error):
                self.held[number] = None
            time.sleep(FAILED_SECONDS)
        if chance.random() < 0.05:
            self.held[number] = None
            daemon.call("POST", "/api/bandwidth/end", {"session_id": session}, token)


def wishing(proxy: dict[str, Any], wish: str) -> dict[str, Any]:
    """Return credentials with a suffix of the user name that chooses the exits."""
    return {**proxy, "username": proxy["username"] + wish}


async def _sold(tx: Transaction) -> list[Sold]:
    return await tx.all(Sold, "SELECT id, quota_bytes, bytes_used FROM bandwidth_sessions")


async def books(store: Store) -> dict[str, Sold]:
    """Check the ledger, and return every session."""
    report = await audit_ledger(store)
    assert report.passed, report
    return {each.id: each for each in await store.read(_sold)}


def assert_fair(
    before: dict[str, Sold], after: dict[str, Sold], seen: dict[str, int], *, is_one: bool = True
) -> None:
    """Compare the bytes that one life billed, delivered and, with one process, had to sell."""
    for session in after.values():
        earlier = before.get(session.id)
        used = earlier.bytes_used if earlier is not None else 0
        delivered = seen.get(session.id, 0)
        assert 0 <= session.bytes_used - used <= delivered, session
        assert not is_one or delivered <= session.quota_bytes - used, session


@pytest.mark.timeout(300 + 20 * MORE_KILLS)
async def test_killed_at_random_moments_under_load(store_url: str) -> None:
    seed = os.environ.get("PROXYD_CRASH_SEED", "1")
    engine = store_url.partition(":")[0]
    kills = int(os.environ.get("PROXYD_CRASH_KILLS") or KILLS[engine])
    print(f"PROXYD_CRASH_SEED={seed} PROXYD_CRASH_KILLS={kills} on {engine}")  # noqa: T201
    chance = random.Random(seed)
    email, password = process.funded(store_url, "900000")
    tally = Tally()
    before: dict[str, Sold] = {}
    with keyed(tally) as target:
        load = Load(target, tally, seed, [None] * CLIENTS)
        for number in range(kills):
            tally.seen.clear()
            live(load, chance, store_url, email, password, is_first=number == 0)
            store = await open_store(store_url)
            try:
                after = await books(store)
            finally:
                await store.close()
            assert_fair(before, after, dict(tally.seen))
            before = after
    assert sum(each.bytes_used for each in before.values()) > 0
    await end_all(store_url, email, password, before)


class Carried(NamedTuple):
    """Bytes of an exit under a lease, as the database knows them; amounts in micro-USD."""

    session_id: str
    price_per_gb: int
    used_bytes: int
    earned: int


async def _carried(tx: Transaction) -> tuple[list[Sold], list[Carried]]:
    rows = await tx.all(
        Carried,
        """
        SELECT s.id, s.price_per_gb, u.used_bytes, u.earned
        FROM exit_usage AS u JOIN bandwidth_sessions AS s ON s.id = u.session_id
        """,
    )
    return await _sold(tx), rows


async def assert_shared(store: Store) -> list[Carried]:
    """Check that exits carried all that was used, to the byte, and earn a share of each count."""
    sold, carried = await store.read(_carried)
    sums = dict.fromkeys((each.id for each in sold), 0)
    for each in carried:
        sums[each.session_id] += each.used_bytes
        share = each.used_bytes * each.price_per_gb * EXIT_SHARE_PERCENT // (10**9 * 100)
        assert each.earned == share, each
    assert sums == {each.id: each.bytes_used for each in sold}
    return carried


def live(
    load: Load, chance: random.Random, url: str, email: str, password: str, *, is_first: bool
) -> None:
    """Run a daemon under load, and kill it; wait until both ends have noticed.

    The first one lives until something was written down, so that the kill can lose something.
    """
    daemon = Process(url)
    threads: list[threading.Thread] = []
    try:
        if not is_first and chance.random() < STILLBORN_SHARE:
            time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
        else:
            daemon.wait_ready()
            threads = load.run(daemon, daemon.log_in(email, password))
            if is_first:
                until_true(lambda: load.has_counted(url), "something is written down")
            time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
    finally:
        daemon.stop(signal.SIGKILL)
        for thread in threads:
            thread.join()
    assert "CRITICAL" not in daemon.output, daemon.output
    load.target.wait_quiet()


def assert_books(url: str, *, is_shared: bool = False) -> None:
    """Check the ledger while others write; and that exits carried everything, if they should.

    Their earnings until now are posted first, as if an hour were over.
    """

    async def check() -> None:
        store = await open_store(url)
        try:
            if is_shared:
                identifiers = Identifiers(lambda: time.time_ns() // 1_000_000)
                context = Context(store, identifiers, lambda: int(time.time()))
                await ExitAdvances(context, AdvancePace(least=1)).advance()
            await books(store)
            if is_shared:
                await assert_shared(store)
        finally:
            await store.close()

    run_aside(check())


@pytest.mark.long
@pytest.mark.timeout(900 + 20 * MORE_KILLS)
async def test_any_process_or_the_supervisor_killed_at_random_moments_under_load(
    tmp_path: Path,
) -> None:
    """Each life ends by a kill of the supervisor: its processes leave by themselves."""
    seed = os.environ.get("PROXYD_CRASH_SEED", "1")
    kills = int(os.environ.get("PROXYD_CRASH_KILLS") or KILLS["processes"])
    print(f"PROXYD_CRASH_SEED={seed} PROXYD_CRASH_KILLS={kills} of processes")  # noqa: T201
    chance, url = random.Random(seed), f"sqlite:///{tmp_path}/proxyd.db"
    email, password = process.funded(url, "900000")
    tally = Tally()
    before: dict[str, Sold] = {}
    with keyed(tally) as target:
        load = Load(target, tally, seed, [None] * CLIENTS)
        while kills > 0:
            tally.seen.clear()
            victims = [
                chance.randrange(PROCESSES) for _ in range(min(kills - 1, chance.randrange(5)))
            ]
            live_as_several(load, chance, url, email, password, victims)
            kills -= len(victims) + 1
            store = await open_store(url)
            try:
                after = await books(store)
            finally:
                await store.close()
            assert_fair(before, after, dict(tally.seen), is_one=False)
            before = after
    assert sum(each.bytes_used for each in before.values()) > 0
    await end_all(url, email, password, before)


def live_as_several(
    load: Load, chance: random.Random, url: str, email: str, password: str, victims: Sequence[int]
) -> None:
    """Run several processes under load, kill some of them one after the other, then the supervisor.

    Every life lasts until something was written down, so that the kill can lose something.
    """
    daemon = Process(url, **SEVERAL)
    threads: list[threading.Thread] = []
    try:
        daemon.wait_ready()
        threads = load.run(daemon, daemon.log_in(email, password))
        until_true(lambda: load.has_counted(url), "something is written down")
        for victim in victims:
            time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
            pid = daemon.pid_of(victim)
            daemon.kill(victim)
            daemon.wait_renewed(victim, pid or 0)
            assert_books(url)
        time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
    finally:
        daemon.stop(signal.SIGKILL)  # its last line is that of the last process to leave
        for thread in threads:
            thread.join()
    assert "CRITICAL" not in daemon.output, daemon.output
    load.target.wait_quiet()


@pytest.mark.long
@pytest.mark.timeout(300 + 20 * MORE_KILLS)
async def test_daemon_or_exits_killed_at_random_moments_under_load(
    store_url: str, tmp_path: Path
) -> None:
    """Each life ends by a kill of the daemon, alone or with exits; in between exits are killed."""
    seed = os.environ.get("PROXYD_CRASH_SEED", "1")
    engine = store_url.partition(":")[0]
    kills = int(os.environ.get("PROXYD_CRASH_KILLS") or KILLS["exits"])
    print(f"PROXYD_CRASH_SEED={seed} PROXYD_CRASH_KILLS={kills} of exits on {engine}")  # noqa: T201
    chance = random.Random(seed)
    email, password = process.funded(store_url, "900000")
    owner, _ = process.funded(store_url, "0.01", "owner")
    tally, arrived = Tally(), Tally()
    before: dict[str, Sold] = {}
    with (
        keyed(arrived) as target,
        wired(tally, EXITS) as wire,
        exit_agents(tmp_path, wire, [target.port]) as exits,
    ):
        load = Load(target, tally, seed, [None] * CLIENTS, EXIT_WISHES, clogs=True)
        with process.serving(store_url, **exits.settings) as daemon:
            for agent in exits.agents:
                agent.agree(daemon, daemon.log_in(owner, password))
        while kills > 0:
            tally.seen.clear()
            victims = chance.choices(range(EXITS), k=min(kills - 1, chance.randrange(4)))
            wire.passes_resets = chance.random() < RESET_SHARE
            live_with_exits(load, exits, chance, store_url, (email, password), victims)
            kills -= len(victims) + 1
            before = await fair_and_shared(store_url, before, tally, resets=wire.passes_resets)
        assert sum(each.bytes_used for each in before.values()) > 0
        tally.seen.clear()
        spend_all(load, exits, store_url, email, password)
        before = await fair_and_shared(store_url, before, tally)
        left = [each for each in load.held if each is not None]
        assert all(before[each["session_id"]].is_spent for each in left)
        came = sum(size for key, size in arrived.seen.items() if key != QUIET_KEY)
        print(f"{wire.handed_over - came} of {wire.handed_over} bytes were lost with exits")  # noqa: T201
        assert came <= wire.handed_over
    await end_all(store_url, email, password, before)
    await assert_earned(store_url, owner, password)


@pytest.mark.long
@pytest.mark.timeout(600 + 20 * MORE_KILLS)
async def test_processes_with_exits_killed_at_random_moments_under_load(
    store_url: str, tmp_path: Path
) -> None:
    """Either of two processes or an exit is killed, again and again, and then the supervisor."""
    seed = os.environ.get("PROXYD_CRASH_SEED", "1")
    engine = store_url.partition(":")[0]
    kills = int(os.environ.get("PROXYD_CRASH_KILLS") or KILLS["processes with exits"])
    print(f"PROXYD_CRASH_SEED={seed} PROXYD_CRASH_KILLS={kills} with exits on {engine}")  # noqa: T201
    chance = random.Random(seed)
    email, password = process.funded(store_url, "900000")
    owner, _ = process.funded(store_url, "0.01", "owner")
    tally = Tally()
    before: dict[str, Sold] = {}
    with (
        keyed(Tally()) as target,
        wired(tally, EXITS) as wire,
        exit_agents(tmp_path, wire, [target.port]) as exits,
    ):
        load = Load(target, tally, seed, [None] * CLIENTS, EXIT_WISHES)
        with process.serving(store_url, **exits.settings) as daemon:
            for agent in exits.agents:
                agent.agree(daemon, daemon.log_in(owner, password))
        while kills > 0:
            tally.seen.clear()
            victims = [*range(2), chance.randrange(2, 2 + EXITS)][: kills - 1]
            chance.shuffle(victims)
            live_as_two_with_exits(load, exits, chance, store_url, (email, password), victims)
            kills -= len(victims) + 1
            before = await fair_and_shared(store_url, before, tally, is_one=False)
        assert sum(each.bytes_used for each in before.values()) > 0
    await end_all(store_url, email, password, before)
    await assert_earned(store_url, owner, password)


def live_as_two_with_exits(
    load: Load,
    exits: ExitAgents,
    chance: random.Random,
    url: str,
    buyer: tuple[str, str],
    victims: Sequence[int],
) -> None:
    """Run two processes with exits under load, kill some one after the other, then the supervisor.

    Victims 0 and 1 are processes, those above are exits.
    """
    daemon = Process(url, **exits.settings, **TWO)
    threads: list[threading.Thread] = []
    try:
        daemon.wait_ready()
        exits.serve(daemon)
        threads = load.run(daemon, daemon.log_in(*buyer))
        until_true(lambda: load.has_counted(url), "something is written down")
        for victim in victims:
            time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
            if victim < 2:
                pid = daemon.pid_of(victim)
                daemon.kill(victim)
                daemon.wait_renewed(victim, pid or 0)
                exits.wait_attached(daemon)
            else:
                exits.agents[victim - 2].kill()
                exits.start()
            assert_books(url, is_shared=True)
        time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
    finally:
        daemon.stop(signal.SIGKILL)  # its last line is that of the last process to leave
        for thread in threads:
            thread.join()
    assert "CRITICAL" not in daemon.output, daemon.output
    assert "Traceback" not in daemon.output, daemon.output
    exits.lose()
    load.target.wait_quiet()


async def fair_and_shared(
    url: str,
    before: dict[str, Sold],
    tally: Tally,
    *,
    resets: bool = False,
    is_one: bool = True,
) -> dict[str, Sold]:
    """Check the books after a life through exits, and return every session.

    Where deaths are resets, the bytes under way were counted nowhere.
    """
    store = await open_store(url)
    try:
        after = await books(store)
        await assert_shared(store)
    finally:
        await store.close()
    seen = dict(tally.seen)
    if resets:
        seen = {each.id: each.quota_bytes for each in after.values()}
    assert_fair(before, after, seen, is_one=is_one and not resets)
    return after


def live_with_exits(
    load: Load,
    exits: ExitAgents,
    chance: random.Random,
    url: str,
    buyer: tuple[str, str],
    victims: Sequence[int],
) -> None:
    """Run a daemon with exits under load; kill some exits one after the other, then the daemon."""
    daemon = Process(url, **exits.settings)
    threads: list[threading.Thread] = []
    try:
        daemon.wait_ready()
        exits.serve(daemon)
        threads = load.run(daemon, daemon.log_in(*buyer))
        until_true(lambda: load.has_counted(url), "something is written down")
        for victim in victims:
            time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
            exits.agents[victim].kill()
            assert_books(url, is_shared=True)
            exits.start()
        time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
    finally:
        with_it = [each for each in exits.agents if chance.random() < LOST_SHARE]
        first = with_it if chance.random() < 0.5 else []
        for agent in first:
            agent.kill()
        daemon.stop(signal.SIGKILL)
        for agent in with_it:
            agent.kill()
        for thread in threads:
            thread.join()
    assert "CRITICAL" not in daemon.output, daemon.output
    exits.lose()
    load.target.wait_quiet()


def spend_all(load: Load, exits: ExitAgents, url: str, email: str, password: str) -> None:
    """Use up the rest of every session that clients hold, and stop as an operator does."""
    with process.serving(url, **exits.settings) as daemon:
        exits.serve(daemon)
        for each in load.held:
            if each is not None:
                proxy = wishing(each["proxy"], EXIT_WISHES[0])
                spend(daemon, proxy, load, each["session_id"])
        assert daemon.stop(signal.SIGTERM) == 0, daemon.output
    exits.lose()
    load.target.wait_quiet()


def spend(daemon: Process, proxy: dict[str, Any], load: Load, session: str) -> None:
    """Download until a session is used up; none is left if it was already."""
    while True:
        try:
            with process.proxied(daemon, proxy, load.target.port) as client:
                client.settimeout(30)
                client.sendall(f"{session[::-1]} 0 {ENDLESS}\n".encode())
                while data := client.recv(CHUNK_BYTES):
                    load.tally.add(session, len(data))
        except OSError as error:
            if process.is_refused(error):
                return
            time.sleep(FAILED_SECONDS)


async def assert_earned(url: str, email: str, password: str) -> None:
    """Check that an owner's exits have earned their share of all bytes, and nothing else."""
    store = await open_store(url)
    try:
        carried = await assert_shared(store)
    finally:
        await store.close()
    with process.serving(url) as daemon:
        _, wallet = daemon.call("GET", "/api/wallet", token=daemon.log_in(email, password))
    earned = sum(each.earned for each in carried)
    assert earned > 0
    assert round(wallet["usd_pending"] * 1_000_000) == earned


async def end_all(url: str, email: str, password: str, sold: dict[str, Sold]) -> None:
    """End every session after the last kill: nothing stays held, and the sum is the used bytes."""
    with process.serving(url) as daemon:
        token = daemon.log_in(email, password)
        for session_id in sold:
            status, _ = daemon.call("POST", "/api/bandwidth/end", {"session_id": session_id}, token)
            assert status == 200
        _, me = daemon.call("GET", "/auth/me", token=token)
        daemon.stop(signal.SIGTERM)
    store = await open_store(url)
    try:
        after = await books(store)
    finally:
        await store.close()
    assert {each.id: each.bytes_used for each in after.values()} == {
        each.id: each.bytes_used for each in sold.values()
    }
    spent = sum(each.bytes_used * 1_000_000 // 10**9 for each in after.values())
    assert round(me["usd_balance"] * 1_000_000) == 900_000_000_000 - spent
