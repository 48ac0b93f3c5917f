"""The API beside a bare aiohttp handler and beside the same endpoints written the usual way.

Everything is on in proxyd: ledger, limits, durable commits. 32 connections kept alive, driven by
wrk. The three take turns; a ratio is the median of the rounds' ratios, and only ratios mean
anything. The bare handler gets the very request that proxyd gets and gives the same answer.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import jwt
from support.daemons import process
from support.daemons.process import ROOT, Process

from bench import report, usage, usual_constants
from bench.report import Samples

# Short rounds and many: other programs also use the cores, and a slow moment should slow every
# server of the round.
ROUNDS, SECONDS, CONNECTIONS = 15, 1, 32
SERVERS = ("bare", "proxyd", "usual")
BARE_PORT, USUAL_PORT = 18_431, 18_432
JSON = {"Content-Type": "application/json"}
# One user puts up more jobs in a second than anybody in a day.
UNBOUNDED = {
    "PROXYD_LIMITS__REQUESTS_PER_SECOND": "1000000",
    "PROXYD_LIMITS__JOBS_PER_USER": "0",
    "PROXYD_LIMITS__FREE_JOBS_PER_USER": "0",
    "PROXYD_LIMITS__JOB_BYTES_PER_USER": "0",
}
NEW_JOB = {"title": "x", "job_type": "docker", "price_credit": 0.001, "duration_hrs": 1}
REPORTED = {"cpu_pct": 12.5, "ram_pct": 50}
WANTED = {
    "GET /api/marketplace/jobs": (0.85, 12),
    "GET /auth/me": (0.85, 12),
    "POST /api/worker/heartbeat": (0.35, 12),
    "POST /api/jobs": (0.2, 10),
}


def wrk(url: str, method: str, headers: dict[str, str], body: object) -> float:
    """Return the requests per second that a server answers; every answer must be a good one."""
    lines = [f"wrk.method = {json.dumps(method)}"]
    lines += [f"wrk.headers[{json.dumps(k)}] = {json.dumps(v)}" for k, v in headers.items()]
    if body is not None:
        lines.append(f"wrk.body = {json.dumps(json.dumps(body))}")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write("\n".join(lines))
        script.flush()
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", script.name, url]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in printed, printed
    found = re.search(r"Requests/sec:\s+([\d.]+)", printed)
    assert found is not None, printed
    return float(found[1])


class Server(NamedTuple):
    """A server that is measured."""

    url: str
    pid: int


@contextmanager
def serving(module: str, port: int, *arguments: str) -> Iterator[Server]:
    """Run one of the other servers."""
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "bench" / module), str(port)]
    running = subprocess.Popen([*command, *arguments])
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{url}/", timeout=1).close()
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.05)
            else:
                break
        yield Server(url, running.pid)
    finally:
        running.kill()
        running.wait()


def yardstick(url: str, method: str, headers: dict[str, str], body: object) -> str:
    """Return an answer of proxyd as `bare.py` reads it: the headers that are its own, the body."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data=data, headers=headers, method=method)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        kept = {name: answer.headers[name] for name in ("Content-Type", "Server", "X-Request-Id")}
        return json.dumps([kept, answer.read().decode()])


def measured(daemon: Process, token: str, worker: str, usual: Server, folder: str) -> Samples:
    """Let all take turns on every endpoint.

    The bare handler gets the request that proxyd gets, and gives the same answer.
    """
    signed = jwt.encode({"sub": usual_constants.USER}, usual_constants.KEY, algorithm="HS256")
    ours, theirs = {"Authorization": f"Bearer {token}"}, {"Authorization": f"Bearer {signed}"}
    device = {"X-Worker-Token": worker, **JSON}
    their_device = {"X-Worker-Token": usual_constants.WORKER_TOKEN, **JSON}
    endpoints = {
        "GET /api/marketplace/jobs": ({}, {}, None),
        "GET /auth/me": (ours, theirs, None),
        "POST /api/worker/heartbeat": (device, their_device, REPORTED),
        "POST /api/jobs": ({**ours, **JSON}, {**theirs, **JSON}, NEW_JOB),
    }
    samples = Samples()
    answer = Path(folder) / "answer.json"
    proxyd = Server(daemon.api, daemon.process.pid)
    for name, (our_headers, their_headers, body) in endpoints.items():
        method, _, path = name.partition(" ")
        answer.write_text(yardstick(daemon.api + path, method, our_headers, body))
        with serving("bare.py", BARE_PORT, path, str(answer)) as bare:
            for _ in range(ROUNDS):
                for who, server, headers in (
                    ("bare", bare, our_headers),
                    ("proxyd", proxyd, our_headers),
                    ("usual", usual, their_headers),
                ):
                    before = usage.cpu_seconds([server.pid])
                    rate = wrk(server.url + path, method, headers, body)
                    spent = usage.cpu_seconds([server.pid]) - before
                    samples.add(name, who, rate)
                    samples.add(f"{name}, seconds", who, spent / (rate * SECONDS))
        print(name, {who: round(samples.median(name, who) or 0) for who in SERVERS}, flush=True)
    return samples


def table(samples: Samples) -> str:
    """Return the results as Markdown, beside the wanted figures."""
    columns = ["request", "bare aiohttp /s", "proxyd /s", "the usual way /s"]
    columns += ["of bare (wanted)", "times the usual way (wanted)", "µs of processor: proxyd, bare"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, (wanted_of_bare, wanted_times) in WANTED.items():
        rates = " | ".join(f"{samples.median(name, who) or 0:,.0f}" for who in SERVERS)
        of_bare = samples.ratio(name, "proxyd", "bare") or 0
        times = samples.ratio(name, "proxyd", "usual") or 0
        seconds = f"{name}, seconds"
        spent = [(samples.median(seconds, who) or 0) * 1e6 for who in ("proxyd", "bare")]
        lines.append(
            f"| `{name}` | {rates} | {of_bare:.2f} ({wanted_of_bare}) | "
            f"{times:.1f} ({wanted_times}) | {spent[0]:,.0f}, {spent[1]:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    if shutil.which("wrk") is None:
        sys.exit("bench-api needs wrk: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/proxyd.db"
        email, password = process.funded(url, credit="900000")
        with (
            process.serving(url, **UNBOUNDED) as daemon,
            serving("usual.py", USUAL_PORT, f"{folder}/usual.db") as usual,
        ):
            token = daemon.log_in(email, password)
            for number in range(100):
                job = {**NEW_JOB, "title": f"job {number}"}
                assert daemon.call("POST", "/api/jobs", job, token)[0] == 200
            _, made = daemon.call("POST", "/api/worker/token/create", {"name": "rig"}, token)
            samples = measured(daemon, token, made["token"], usual, folder)
        audit = process.run(url, "ledger", "audit")
        assert audit.returncode == 0, audit.stdout
    written = table(samples)
    print(written)
    report.rewrite("bench-api", written)


if __name__ == "__main__":
    main()
