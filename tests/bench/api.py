"""The API beside a bare aiohttp handler and beside the same endpoints written the usual way.

Everything is on in proxyd: ledger, limits, durable commits. 32 connections kept alive, driven by
wrk; the three take turns, the median of the rounds counts, and only ratios mean anything.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import jwt
from support import process
from support.process import ROOT, Process

from bench import report, usual_constants

ROUNDS, SECONDS, CONNECTIONS = 5, 3, 32
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
    "POST /api/jobs": (0.06, 10),
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


@contextmanager
def serving(module: str, port: int, *arguments: str) -> Iterator[str]:
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
        yield url
    finally:
        running.kill()
        running.wait()


def measured(daemon: Process, token: str, worker: str, usual: str) -> dict[str, dict[str, float]]:
    """Take turns on every endpoint, and return the median of each."""
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
    results: dict[str, dict[str, float]] = {}
    for name, (our_headers, their_headers, body) in endpoints.items():
        method, _, path = name.partition(" ")
        size = 18_800 if "marketplace" in path else 160
        with serving("bare.py", BARE_PORT, str(size)) as bare:
            rounds = [
                (
                    wrk(f"{bare}/", "GET", {}, None),
                    wrk(daemon.api + path, method, our_headers, body),
                    wrk(usual + path, method, their_headers, body),
                )
                for _ in range(ROUNDS)
            ]
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        results[name] = dict(zip(("bare", "proxyd", "usual"), medians, strict=True))
        print(name, {key: round(value) for key, value in results[name].items()}, flush=True)
    return results


def table(results: dict[str, dict[str, float]]) -> str:
    """Return the results as Markdown, with what is wanted beside."""
    columns = ["request", "bare aiohttp /s", "proxyd /s", "the usual way /s"]
    columns += ["of bare (wanted)", "times the usual way (wanted)"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, rates in results.items():
        of_bare, times = WANTED[name]
        lines.append(
            f"| `{name}` | {rates['bare']:,.0f} | {rates['proxyd']:,.0f} | {rates['usual']:,.0f} | "
            f"{rates['proxyd'] / rates['bare']:.3f} ({of_bare}) | "
            f"{rates['proxyd'] / rates['usual']:.1f} ({times}) |"
        )
    return "\n".join(lines)


def main() -> None:
    if shutil.which("wrk") is None:
        sys.exit("bench-api needs wrk: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/proxyd.db"
        email, password = process.funded(url)
        process.run(url, "wallet", "deposit", email, "--credits", "100000000")
        with (
            process.serving(url, **UNBOUNDED) as daemon,
            serving("usual.py", USUAL_PORT, f"{folder}/usual.db") as usual,
        ):
            token = daemon.log_in(email, password)
            for number in range(100):
                job = {**NEW_JOB, "title": f"job {number}"}
                assert daemon.call("POST", "/api/jobs", job, token)[0] == 200
            _, made = daemon.call("POST", "/api/worker/token/create", {"name": "rig"}, token)
            results = measured(daemon, token, made["token"], usual)
        audit = process.run(url, "ledger", "audit")
        assert audit.returncode == 0, audit.stdout
    written = table(results)
    print(written)
    report.rewrite("bench-api", written)


if __name__ == "__main__":
    main()
