"""How fast a log comes in over HTTP: of one job, and of a thousand; beside a bare aiohttp handler.

A device sends as the agent does, chunks of 1 MiB over one connection that is kept. The two servers
take turns; only ratios mean anything. The daemon has an operator's settings, except for the rate
limit of an attempt's log, because the rate is measured.
"""

import http.client
import os
import tempfile
import time
from contextlib import closing
from typing import NamedTuple
from urllib.parse import urlsplit

from support.daemons import process
from support.daemons.process import Process

from bench import report, usage
from bench.api import UNBOUNDED, Server, serving
from bench.report import Samples

MIB = 1024 * 1024
ROUNDS, SECONDS = 7, 2.0
JOBS = 1_000
DEVICE_SLOTS = 4  # jobs of a new device
BARE_PORT = 18_433
WANTED_MB = 200  # a second, of one job
WANTED_MANY_MB = 50  # of a thousand in all
SETTINGS = {
    **UNBOUNDED,
    "PROXYD_WORK__LOG_BYTES_PER_SECOND": "0",
    "PROXYD_LIMITS__REQUESTS_PER_SECOND_OF_USER": "0",
}
NEW_JOB = {"title": "x", "job_type": "script", "price_credit": 0.02, "duration_hrs": 1}


class Sender(NamedTuple):
    """The job that a log belongs to, and the token of its device."""

    job_id: str
    token: str


class Result(NamedTuple):
    """Megabytes (10^6 bytes) a second, and seconds of the server's processor for each gigabyte."""

    rate: float
    cost: float
    memory_bytes: int


def pour(server: Server, senders: list[Sender], offsets: dict[str, int]) -> Result:
    """Send chunks for a while, of each job in turn; every answer must be a good one."""
    chunk = memoryview(os.urandom(MIB))
    before, began = usage.cpu_seconds([server.pid]), time.monotonic()
    sent = turn = 0
    with closing(http.client.HTTPConnection(urlsplit(server.url).netloc)) as connection:
        while time.monotonic() - began < SECONDS:
            sender = senders[turn % len(senders)]
            offset = offsets.get(sender.job_id, 0)
            path = f"/api/worker/jobs/{sender.job_id}/log?attempt=1&offset={offset}"
            connection.request("POST", path, chunk, {"X-Worker-Token": sender.token})
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            offsets[sender.job_id] = offset + MIB
            sent, turn = sent + MIB, turn + 1
    spent = usage.cpu_seconds([server.pid]) - before
    memory = usage.memory_bytes([server.pid])
    return Result(sent / 1e6 / (time.monotonic() - began), spent / (sent / 1e9), memory)


def running(daemon: Process, token: str, count: int) -> list[Sender]:
    """Put jobs up and have devices accept them."""
    senders: list[Sender] = []
    device = ""
    for number in range(count):
        if number % DEVICE_SLOTS == 0:
            _, made = daemon.call("POST", "/api/worker/token/create", {"name": "rig"}, token)
            device = made["token"]
        _, posted = daemon.call("POST", "/api/jobs", NEW_JOB, token)
        senders.append(Sender(posted["job_id"], device))
        path = f"/api/jobs/{posted['job_id']}/accept"
        accepted = daemon.call("POST", path, headers={"X-Worker-Token": device})
        assert accepted[0] == 200, accepted
    return senders


def measured(daemon: Process, senders: list[Sender]) -> Samples:
    """Let both take turns."""
    samples, offsets = Samples(), dict[str, int]()
    proxyd = Server(daemon.api, daemon.process.pid)
    with (
        tempfile.NamedTemporaryFile() as file,
        serving("bare_put.py", BARE_PORT, file.name) as bare,
    ):
        for _ in range(ROUNDS):
            for measure, some in (("one job", senders[:1]), (f"{len(senders):,} jobs", senders)):
                for who, server in (("bare", bare), ("proxyd", proxyd)):
                    result = pour(server, some, offsets if who == "proxyd" else {})
                    samples.add(measure, who, result.rate)
                    samples.add(f"{measure}, seconds", who, result.cost)
                    samples.add(f"{measure}, memory", who, result.memory_bytes / 1e6)
    return samples


def table(samples: Samples) -> str:
    """Return the results as Markdown, beside the wanted figures."""
    columns = ["log of", "bare aiohttp MB/s", "proxyd MB/s (wanted)", "of bare"]
    columns += ["s of processor for 1 GB: proxyd, bare", "MB of memory, proxyd"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for measure, wanted in (("one job", WANTED_MB), (f"{JOBS:,} jobs", WANTED_MANY_MB)):
        bare, ours = (samples.median(measure, who) or 0 for who in ("bare", "proxyd"))
        spent = [samples.median(f"{measure}, seconds", who) or 0 for who in ("proxyd", "bare")]
        memory = samples.median(f"{measure}, memory", "proxyd") or 0
        lines.append(
            f"| {measure} | {bare:,.0f} | {ours:,.0f} ({wanted}) | "
            f"{samples.ratio(measure, 'proxyd', 'bare') or 0:.2f} | "
            f"{spent[0]:.2f}, {spent[1]:.2f} | {memory:,.0f} |"
        )
    return "\n".join(lines)


def measure() -> str:
    """Run it, and return its results."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/proxyd.db"
        email, password = process.funded(url, credit="900000")
        with process.serving(url, **SETTINGS) as daemon:
            samples = measured(daemon, running(daemon, daemon.log_in(email, password), JOBS))
    return table(samples)


def main() -> None:
    written = measure()
    print(written)
    report.rewrite("bench-job-logs", written)


if __name__ == "__main__":
    main()
