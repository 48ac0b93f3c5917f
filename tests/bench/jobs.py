"""Jobs given to devices that wait for them, by HTTP; beside other queues, and the cost of waiting.

10,000 jobs wait and 1,000 devices ask, one job at a time, each naming all that it holds. ROUNDS=3,
ENGINES=sqlite, RIVALS=0 and ONLY=claims (or idle) measure less.

1,000 other jobs run already. Without a running job, PostgreSQL would plan with the statistics of a
market in which none runs, and read every running job for each transaction.
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

from support.base.clock import Clock
from support.daemons import process
from support.daemons.process import ROOT, Process
from support.database import postgres
from support.market.market import Market

from bench import report, usage
from bench.report import Bound, Part, Samples, progress
from market.accounts.bounds import Bounds
from market.jobs.postings import NewJob
from market.jobs.specs import Spec
from market.money.money import MICRO
from proxyctl.protocol.jobspec import Resources, payload_of
from storage.devices import devices as device_queries
from storage.dispatch import claims as claim_queries
from storage.dispatch.claims import PairRow
from storage.engines.open import open_store
from storage.engines.store import Transaction

ROUNDS = int(os.environ.get("ROUNDS", "3"))
ENGINES = tuple(os.environ.get("ENGINES", "sqlite,postgres").split(","))
HAS_RIVALS = os.environ.get("RIVALS", "1") != "0"
ONLY = tuple(filter(None, os.environ.get("ONLY", "").split(",")))
JOBS, DEVICES, OWNERS = 10_000, 1_000, 100
RUNNING, RUNNERS = 1_000, 100  # jobs that run already, and their devices
RIVAL_JOBS = 3_000
AT_ONCE = 50  # jobs that are put up together: more would wait for a connection to the database
# One network may have half of the connections, which are half of 20,000 descriptors at most.
IDLE_DEVICES, IDLE_SECONDS = 4_500, 20.0
PATIENCE_SECONDS = 90.0  # for immediate events, on a machine with other work
ROUND_SECONDS = 300.0  # in which every device is answered once, and asks again
WAITING = "proxyd_dispatch_devices "
REGISTRATION_SECONDS = 3_700  # a single address never registers a hundred times an hour
WANTED_CLAIMS, WANTED_KB, WANTED_PERCENT = 3_000, 20, 2
SETTINGS = {
    "PROXYD_JOBS__NEW_DEVICE_SLOTS": "16",
    "PROXYD_JOBS__NEW_OWNER_SLOTS": "128",  # above the 110 jobs of each owner: all are counted
    "PROXYD_LIMITS__API_CONNECTIONS_PER_NETWORK": "100000",
    "PROXYD_LIMITS__API_CONNECTIONS_TOTAL": "1000000",
    "PROXYD_API__METRICS_ALLOW": '["127.0.0.0/8"]',
}


def token(number: int) -> str:
    """Return the token of a device."""
    return f"token-{number:06}"


async def prepare(url: str, *, jobs: int, devices: int, running: int = 0) -> None:
    """Make buyers, owners, devices and jobs, straight in the database.

    Args:
        url: of the database.
        jobs: how many wait.
        devices: how many ask for them.
        running: how many more jobs run, on devices that do not ask.
    """
    store = await open_store(url)
    clock = Clock()
    market = Market(store, clock)
    market.change_bounds(Bounds(jobs=0, free_jobs=0, job_bytes=0, devices=0))
    now = int(time.time())
    owners = []
    for number in range(OWNERS):
        clock.now = now - (OWNERS - number) * REGISTRATION_SECONDS
        owners.append(await market.person())
    clock.now = now
    buyer = await market.person(credit="1000000")
    made = await market.devices.create(
        owners[0], name="rig", device_type="server", min_price_usd=None
    )
    row = await market.devices.authenticate(made.token)
    runners = RUNNERS if running else 0
    device_ids = [market.identifiers.new() for _ in range(devices + runners)]

    async def register(tx: Transaction) -> None:
        for number, device_id in enumerate(device_ids):
            token_hash = hashlib.sha256(token(number).encode()).hexdigest()
            device = row._replace(
                id=device_id,
                user_id=owners[number % OWNERS],
                token_hash=token_hash,
            )
            await device_queries.insert(tx, device)

    await store.write(register)
    payload = payload_of({"script": "print('hello')"})
    spec = Spec(payload, Resources(cores=1, ram_gb=1), timeout_seconds=3_600)
    new = NewJob("hello", "script", MICRO, 1, "", "", spec)
    job_ids: list[str] = []
    while len(job_ids) < jobs + running:
        some = min(AT_ONCE, jobs + running - len(job_ids))
        job_ids += await asyncio.gather(*(market.jobs.create(buyer, new) for _ in range(some)))
    pairs = [
        PairRow(job_id, device_id, attempts=0)
        for job_id, device_id in zip(job_ids[jobs:], cycle(device_ids[devices:]), strict=False)
    ]
    if pairs:
        await store.write(claim_queries.start, pairs, now=now)
    market.passwords.close()
    await store.close()


class Pollers:
    """Devices that ask a daemon, in a process of their own."""

    def __init__(self, daemon: Process, folder: Path, **order: Any) -> None:
        port = int(daemon.api.rsplit(":", 1)[1])
        order = {"host": "localhost", "address": "127.0.0.1", "port": port, "wait": 300, **order}
        path = folder / f"{uuid4()}.json"
        path.write_text(json.dumps(order))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.jobs_pollers", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._expect("connected")

    def ask(self) -> None:
        """Have all of them ask."""
        self._tell("ask")
        self._expect("asked")

    def end(self) -> None:
        """End them in any state."""
        self._tell("end")

    def seen(self) -> dict[str, Any]:
        """Return their results, once they are done."""
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.process.wait()
        assert not told["refusals"], told
        return dict(told)

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _expect(self, line: str) -> None:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == f"{line}\n", said


def metric(daemon: Process, name: str) -> float:
    """Return a metric of a daemon."""
    with urllib.request.urlopen(f"{daemon.api}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name)))


@contextmanager
def databases(engine: str, folder: Path) -> Iterator[list[str]]:
    """Yield the URLs of databases with the same jobs in them, one a round."""
    if engine == "sqlite":
        first = folder / "first.db"
        asyncio.run(prepare(f"sqlite:///{first}", jobs=JOBS, devices=DEVICES, running=RUNNING))
        copies = [folder / f"round{number}" / "proxyd.db" for number in range(ROUNDS)]
        for copy in copies:
            copy.parent.mkdir()
            shutil.copy(first, copy)
        yield [f"sqlite:///{copy}" for copy in copies]
        return
    with postgres.server(is_durable=True) as server:
        made = [f"round{number}" for number in range(ROUNDS)]
        urls = [server.replace("/postgres?", f"/{name}?") for name in made]
        for name, template in zip(made, ("template0", *made[:1] * (ROUNDS - 1)), strict=True):
            create = f'CREATE DATABASE "{name}" TEMPLATE "{template}"'
            asyncio.run(postgres.execute(server, create))
            if name == made[0]:
                asyncio.run(prepare(urls[0], jobs=JOBS, devices=DEVICES, running=RUNNING))
                asyncio.run(postgres.execute(urls[0], "ANALYZE"))
        yield urls


def claims(samples: Samples, engine: str, folder: Path) -> None:
    """Let a thousand devices take ten thousand jobs."""
    name = f"proxyd, {engine}"
    with databases(engine, folder) as urls:
        for url in urls:
            with process.serving(url, **SETTINGS) as daemon:
                _until(lambda: metric(daemon, "proxyd_dispatch_jobs ") == JOBS)
                tokens = [token(number) for number in range(DEVICES)]
                capacity = {"slots": 1, "cores": 16, "ram_gb": 64, "disk_gb": 100}
                pollers = Pollers(daemon, folder, tokens=tokens, jobs=JOBS, capacity=capacity)
                pids = usage.tree(daemon.process.pid)
                before = usage.cpu_seconds(pids)
                pollers.ask()
                seen = pollers.seen()
                spent = usage.cpu_seconds(pids) - before
            assert seen["jobs"] == seen["different"] == JOBS, seen
            samples.add("jobs a second", name, JOBS / seen["seconds"])
            samples.add("µs of the daemon's processor for each", name, spent * 1e6 / JOBS)
            samples.add("answer to a request, p50 ms", name, seen["p50_ms"])
            samples.add("answer to a request, p99 ms", name, seen["p99_ms"])
            process.assert_audit(url)
            progress(f"jobs: {name}: {JOBS / seen['seconds']:,.0f} a second")


def rivals(samples: Samples) -> None:
    """Let other queues give jobs to their workers."""
    from bench import jobs_rivals  # noqa: PLC0415 - their packages are not those of the tests

    with postgres.server(is_durable=True) as server:
        for number in range(ROUNDS):
            for name, rate in (
                ("procrastinate", jobs_rivals.procrastinate_rate),
                ("pgqueuer", jobs_rivals.pgqueuer_rate),
            ):
                database = f"{name}{number}"
                asyncio.run(
                    postgres.execute(server, f'CREATE DATABASE "{database}" TEMPLATE template0')
                )
                url = server.replace("/postgres?", f"/{database}?")
                samples.add("jobs a second", name, asyncio.run(rate(url, RIVAL_JOBS)))
    for _ in range(ROUNDS):
        samples.add("jobs a second", "dask", jobs_rivals.dask_rate(RIVAL_JOBS))


def idle(part: Part, folder: Path) -> None:
    """Measure the cost of devices that wait, and ask again when no job has arrived."""
    url = f"sqlite:///{folder}/idle.db"
    asyncio.run(prepare(url, jobs=0, devices=IDLE_DEVICES))
    with process.serving(url, **SETTINGS) as daemon:
        pids = usage.tree(daemon.process.pid)
        before = usage.memory_bytes(pids)
        tokens = [token(number) for number in range(IDLE_DEVICES)]
        capacity = {"slots": 1, "cores": 16, "ram_gb": 64, "disk_gb": 100}
        pollers = Pollers(daemon, folder, tokens=tokens, jobs=0, capacity=capacity)
        pollers.ask()
        _until(lambda: metric(daemon, WAITING) == IDLE_DEVICES)
        each = (usage.memory_bytes(pids) - before) / IDLE_DEVICES / 1024
        cpu, began = usage.cpu_seconds(pids), time.monotonic()
        time.sleep(IDLE_SECONDS)
        waiting = (usage.cpu_seconds(pids) - cpu) / (time.monotonic() - began)
        # All have asked together, and ask again together: once in this time.
        time.sleep(ROUND_SECONDS - (time.monotonic() - began))
        whole = (usage.cpu_seconds(pids) - cpu) / (time.monotonic() - began)
        pollers.end()
        pollers.seen()
    ten_thousand = 10_000 / IDLE_DEVICES
    part.notes.append(
        f"{IDLE_DEVICES:,} devices wait, and the processor has"
        f" {100 * waiting * ten_thousand:.2f} % of a core per 10,000 until they ask again."
    )
    part.bounds += [
        Bound("KB of memory for each device that waits", each, WANTED_KB, at_most=True),
        Bound(
            "% of a core per 10,000 devices that ask each 300 s",
            100 * whole * ten_thousand,
            WANTED_PERCENT,
            at_most=True,
        ),
    ]


def is_wanted(part: str) -> bool:
    """Return whether a part is measured."""
    return not ONLY or part in ONLY


def _until(condition: Callable[[], bool]) -> None:
    """Wait for a condition without using the processor much."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def main() -> None:
    part = Part("jobs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for engine in ENGINES if is_wanted("claims") else ():
            claims(part.samples, engine, folder)
            rate = part.samples.median("jobs a second", f"proxyd, {engine}")
            promise = f"jobs given to devices a second, by HTTP, {engine}"
            part.bounds.append(Bound(promise, rate, WANTED_CLAIMS))
        if HAS_RIVALS and is_wanted("rivals"):
            rivals(part.samples)
        if is_wanted("idle"):
            idle(part, folder)
    written = part.markdown()
    print(written)
    if ROUNDS > 1 and HAS_RIVALS and not ONLY:
        report.rewrite("bench-jobs", f"{report.machine()}\n\n{written}")


if __name__ == "__main__":
    main()
