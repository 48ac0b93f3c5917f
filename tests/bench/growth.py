"""How long things take in markets of several sizes: requests, a start, an audit, a backup.

The market is written straight into the database (`support.database.grown`); it measures a daemon as
an operator runs it, and the commands beside it.
"""

import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from support.daemons import process
from support.daemons.process import ROOT, Process
from support.database import grown, postgres
from support.database.grown import Grown

from bench import growth_staff
from bench.report import progress, rewrite
from market.accounts.tokens import Claims, Tokens
from storage.engines.open import open_store

# The buyer has more open than one user may.
UNBOUNDED = {
    "PROXYD_LIMITS__SESSIONS_PER_USER": "0",
    "PROXYD_LIMITS__JOBS_PER_USER": "0",
    "PROXYD_LIMITS__FREE_JOBS_PER_USER": "0",
    "PROXYD_LIMITS__JOB_BYTES_PER_USER": "0",
}
SIZES = (1_000, 100_000, 1_000_000)
REQUESTS, STARTS = 101, 5
NEW_JOB = {"title": "x", "job_type": "script", "price_credit": 0.001, "duration_hrs": 1}
COMMAND_SECONDS = 900

LISTS = {
    "a hundred of my sessions": "/api/bandwidth/sessions",
    "a hundred of my jobs": "/api/jobs",
    "a hundred movements of my wallet": "/api/wallet/transactions",
    "a hundred of my deploys": "/api/deploy/jobs",
    "a hundred open jobs, asked again": "/api/marketplace/jobs",
    "a hundred running jobs": "/api/marketplace/jobs?status=running",
}

Figures = dict[str, float]


class Client:
    """One connection to the API that is kept alive, for the buyer of a market."""

    def __init__(self, daemon: Process, market: Grown) -> None:
        address = urlsplit(daemon.api)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, 60)
        tokens = Tokens(b"k" * 40, lifetime_seconds=86_400)
        claims = Claims(market.buyer_id, market.buyers_login_id, int(time.time()))
        self._headers = {"Authorization": f"Bearer {tokens.sign(claims, token_id='bench')}"}

    def ask(self, method: str, path: str, body: Any = None, worker: str = "") -> bytes:
        """Ask, and return the answer; every answer must be a good one."""
        headers = {"X-Worker-Token": worker} if worker else dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        self._connection.request(method, path, json.dumps(body) if body else None, headers)
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer

    def call(self, *arguments: Any) -> Any:
        """Send a request, and return the parsed answer."""
        return json.loads(self.ask(*arguments))

    def seconds(self, *arguments: Any) -> float:
        """Return how long an answer takes."""
        begin = time.perf_counter()
        self.ask(*arguments)
        return time.perf_counter() - begin


def median_ms(ask: Callable[[], float]) -> float:
    """Return the median of some requests, in milliseconds."""
    return statistics.median(ask() for _ in range(REQUESTS)) * 1000


def cpu_seconds(pid: int) -> float:
    """Return how long all threads of a process have run, which other work does not change much."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


def requests(daemon: Process, client: Client) -> Figures:
    """Ask for lists, and have work put up and accepted."""
    figures = {}
    for name, path in LISTS.items():
        before = cpu_seconds(daemon.process.pid)
        figures[f"{name}, ms"] = median_ms(lambda path=path: client.seconds("GET", path))
        used = cpu_seconds(daemon.process.pid) - before
        figures[f"{name}, CPU ms"] = used / REQUESTS * 1000
    created: list[str] = []

    def create() -> float:
        begin = time.perf_counter()
        created.append(client.call("POST", "/api/jobs", NEW_JOB)["job_id"])
        return time.perf_counter() - begin

    figures["put a job up, ms"] = median_ms(create)
    worker = client.call("POST", "/api/worker/token/create", {"name": "rig"})["token"]
    figures["accept a job, ms"] = median_ms(
        lambda: client.seconds("POST", f"/api/jobs/{created.pop()}/accept", None, worker)
    )

    def list_after_a_change() -> float:
        client.call("POST", "/api/jobs", NEW_JOB)
        return client.seconds("GET", "/api/marketplace/jobs")

    figures["a hundred open jobs, after a change, ms"] = median_ms(list_after_a_change)
    return figures


def start_seconds(url: str) -> float:
    """Return how long a daemon takes until it serves, the median of some starts."""
    taken = []
    for _ in range(STARTS):
        begin = time.perf_counter()
        with process.serving(url):
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


class Run(NamedTuple):
    """A command that was run: seconds, those of its own CPU, and the most memory it had, in MB."""

    seconds: float
    cpu_seconds: float
    megabytes: float


def command(url: str, *arguments: str) -> Run:
    """Run a command to its end."""
    begin = time.perf_counter()
    running = subprocess.Popen(
        [sys.executable, "-m", "proxyd", *arguments],
        cwd=ROOT,
        env=process.environment(url),
        stdout=subprocess.PIPE,
    )
    timer = threading.Timer(COMMAND_SECONDS, running.kill)
    timer.start()
    assert running.stdout is not None
    printed = running.stdout.read().decode()
    _, status, usage = os.wait4(running.pid, 0)
    timer.cancel()
    assert status == 0, printed
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Run(time.perf_counter() - begin, cpu_seconds, usage.ru_maxrss / 1024)


def audit(url: str, client: Client) -> Figures:
    """Audit the ledger while jobs are put up, and see how long those wait."""
    over, waits = threading.Event(), []

    def trade() -> None:
        while not over.is_set():
            waits.append(client.seconds("POST", "/api/jobs", NEW_JOB))

    thread = threading.Thread(target=trade)
    thread.start()
    try:
        run = command(url, "ledger", "audit")
    finally:
        over.set()
        thread.join()
    return {
        "ledger audit beside traffic, s": run.seconds,
        "its own CPU, s": run.cpu_seconds,
        "its memory, MB": run.megabytes,
        "jobs put up meanwhile, /s": len(waits) / run.seconds,
        "the slowest of those, ms": max(waits) * 1000,
    }


def measured(url: str, size: int, folder: Path) -> Figures:
    """Grow a market, and measure everything in it."""
    # In a process of its own: the peak memory of a process is inherited by the processes that it
    # starts.
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        market = other.submit(_grow, url, size).result()
    if os.environ.get("ONLY") == "staff":
        return growth_staff.figures(url, market)
    figures = {"start, s": start_seconds(url)}
    with process.serving(url, **UNBOUNDED) as daemon:
        client = Client(daemon, market)
        figures |= requests(daemon, client)
        figures |= audit(url, client)
        if url.startswith("sqlite"):
            figures["backup, s"] = command(url, "backup", str(folder / "backup.db")).seconds
        backups = folder / "backups"
        figures["backup --all, s"] = command(url, "backup", "--all", str(backups)).seconds
    if url.startswith("sqlite"):
        (backup,) = backups.iterdir()
        restored = command(url, "restore", str(backup), str(folder / "restored"))
        figures["restore with its audit, s"] = restored.seconds
        with postgres.server(is_durable=True) as target:
            moved = command(url, "storage", "move", "--to", target)
        figures["storage move to PostgreSQL, s"] = moved.seconds
        figures["memory of the move, MB"] = moved.megabytes
    return figures | growth_staff.figures(url, market)


def _grow(url: str, size: int) -> Grown:
    async def grow() -> Grown:
        store = await open_store(url)
        await store.close()
        return await grown.grow(url, size)

    return asyncio.run(grow())


@contextmanager
def _databases(engine: str, folder: Path) -> Iterator[Callable[[], str]]:
    """Yield a function that creates a database of an engine."""
    if engine == "sqlite":
        yield lambda: f"sqlite:///{folder}/{uuid.uuid4().hex}.db"
        return

    def made() -> str:
        name = f"grown_{uuid.uuid4().hex}"
        asyncio.run(postgres.execute(server, f'CREATE DATABASE "{name}"'))
        return server.replace("/postgres?", f"/{name}?")

    with postgres.server(is_durable=True) as server:
        yield made


def table(figures: dict[int, Figures]) -> str:
    """Return the figures as Markdown, a column for each size."""
    sizes = list(figures)
    names = list(dict.fromkeys(name for each in figures.values() for name in each))
    lines = [f"| {' | '.join(['transfers', *(f'{size:,}' for size in sizes)])} |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    lines += [
        f"| {' | '.join([name, *(f'{figures[size][name]:.3g}' for size in sizes)])} |"
        for name in names
    ]
    return "\n".join(lines)


def main() -> None:
    sizes = [int(size) for size in os.environ.get("SIZES", "").split(",") if size] or list(SIZES)
    for engine in os.environ.get("ENGINES", "sqlite,postgres").split(","):
        figures: dict[int, Figures] = {}
        for size in sizes:
            progress(f"{engine}: {size:,} transfers")
            with (
                tempfile.TemporaryDirectory() as folder,
                _databases(engine, Path(folder)) as new_database,
            ):
                figures[size] = measured(new_database(), size, Path(folder))
        print(table(figures), flush=True)
        rewrite(f"bench-growth-{engine}", table(figures))


if __name__ == "__main__":
    main()
