"""kill -9 of the daemon, of an exit and of both, under load: what exits carried is what was used.

`make crash` kills a hundred times.
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import process
from support.keyed import Tally, converse, keyed
from support.process import Process
from support.tls import make_certificate
from support.waiting import until_true

from market.audit import audit_ledger
from proxyctl.exit import files, record
from proxyctl.exit.limits import DeviceLimits
from storage.open import open_store
from storage.store import Store, Transaction

KILLS = 6
CLIENTS = 4
LIFE_MAX_SECONDS = 1.0
TRANSFER_MAX_BYTES = 400_000
TESTS = Path(__file__).parents[1]


class Sold(NamedTuple):
    """What a session has used, and what of that exits have carried."""

    id: str
    status: str
    bytes_used: int
    carried: int


def _call(daemon: Process, method: str, path: str, body: Any = None, token: str = "") -> Any:
    status, answer = daemon.call(method, path, body, token)
    assert status == 200, answer
    return answer


class Household:
    """An exit, a process of its own that is killed and started again.

    Args:
        folder: has what its owner agreed to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def agree(self, daemon: Process, port: int) -> None:
        """Agree in an account of its owner's, and at the device, to this port of targets."""
        owner = {"email": "owner@example.com", "username": "owner", "password": "long enough"}
        token = _call(daemon, "POST", "/auth/register", owner)["token"]
        box = {"name": "box", "device_type": "mini_pc"}
        made = _call(daemon, "POST", "/api/worker/token/create", box, token)
        [listed] = _call(daemon, "GET", "/api/worker/tokens", None, token)["tokens"]
        terms = _call(daemon, "GET", "/api/exits/terms")
        agreed = {
            "token_id": listed["token_id"],
            "terms_hash": terms["terms_hash"],
            "limits": {"connections": 1000, "bytes_per_day": 0},
        }
        _call(daemon, "POST", "/api/worker/exit/consent", agreed, token)
        consent = record.Consent(
            api=daemon.api,
            host=terms["host"],
            port=terms["port"],
            pin=terms["certificate_sha256"],
            token=made["token"],
            terms=terms["terms_hash"],
            agreed_at="2026-01-01T00:00:00+00:00",
            limits=DeviceLimits(
                connections=1000,
                bytes_per_day=0,
                dials_per_second=1000,
                ports=(port,),
            ),
        )
        record.save(self.folder / files.CONSENT, consent)

    @contextmanager
    def at_work(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the device, and kill it at the end."""
        with (self.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "support.exit_agent", str(self.folder), "all"],
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                stdout=log,
                stderr=log,
            )
        try:
            yield agent
        finally:
            agent.kill()
            agent.wait()


class Clients:
    """Clients that transfer through an exit until they are told to stop."""

    def __init__(self, daemon: Process, bought: list[dict[str, Any]], port: int) -> None:
        self.done = 0
        self._daemon, self._bought, self._port = daemon, bought, port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        chance, bought = random.Random(number), self._bought[number % len(self._bought)]
        proxy = {**bought["proxy"], "username": bought["proxy"]["username"] + "-kind-any"}

        def connect() -> socket.socket:
            return process.proxied(self._daemon, proxy, self._port)

        while not self._over.is_set():
            try:
                converse(connect, bought["session_id"], Tally(), chance, TRANSFER_MAX_BYTES)
                self.done += 1
            except OSError:
                self._over.wait(0.05)


async def _sold(tx: Transaction) -> list[Sold]:
    return await tx.all(
        Sold,
        """
        SELECT s.id, s.status, s.bytes_used,
            (SELECT CAST(COALESCE(SUM(u.used_bytes), 0) AS BIGINT) FROM exit_usage AS u
                WHERE u.session_id = s.id)
        FROM bandwidth_sessions AS s
        """,
    )


async def books(url: str) -> list[Sold]:
    """Check the ledger, and that exits have carried what was used; return every session."""
    store: Store = await open_store(url)
    try:
        report = await audit_ledger(store)
        assert report.passed, report
        sold = await store.read(_sold)
    finally:
        await store.close()
    for each in sold:
        assert each.carried == each.bytes_used, each
    return sold


@pytest.mark.timeout(600)
async def test_what_exits_carried_is_what_was_used_whoever_is_killed(
    store_url: str, tmp_path: Path
) -> None:
    seed = os.environ.get("PROXYD_CRASH_SEED", "1")
    kills = int(os.environ.get("PROXYD_CRASH_KILLS") or KILLS)
    print(f"PROXYD_CRASH_SEED={seed} PROXYD_CRASH_KILLS={kills}, of exits")  # noqa: T201
    chance = random.Random(seed)
    email, password = process.funded(store_url, "1000000")
    household = Household(tmp_path)
    bought: list[dict[str, Any]] = []
    certificate = make_certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]  # the exit has to find it again
    with keyed(Tally()) as target:
        settings = {
            "PROXYD_EXITS__HOST": "127.0.0.1",
            "PROXYD_EXITS__PORT": str(port),
            "PROXYD_EXITS__PORTS": f"[{target.port}]",
            "PROXYD_EXITS__TLS_CERT": str(certificate.path),
            "PROXYD_EXITS__TLS_KEY": str(tmp_path / "key.pem"),
        }

        def live() -> None:
            """Run a daemon and an exit under load, and kill the one, the other, or both."""
            daemon = Process(store_url, **settings)
            clients = None
            try:
                daemon.wait_ready()
                token = daemon.log_in(email, password)
                if not bought:
                    household.agree(daemon, target.port)
                    bought.extend(daemon.buy(token, 1000) for _ in range(2))
                with household.at_work():
                    clients = Clients(daemon, bought, target.port)
                    until_true(
                        lambda: clients.done > 2, lambda: f"something is carried: {daemon.output}"
                    )
                    time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
                    if is_daemons := chance.random() < 0.5:
                        daemon.stop(signal.SIGKILL)
                if not is_daemons:
                    time.sleep(chance.uniform(0, LIFE_MAX_SECONDS))
            finally:
                daemon.stop(signal.SIGKILL)
                if clients is not None:
                    clients.stop()
            assert "CRITICAL" not in daemon.output, daemon.output

        for _ in range(kills):
            await asyncio.to_thread(live)
            sold = await books(store_url)
        assert sum(each.bytes_used for each in sold) > 0
