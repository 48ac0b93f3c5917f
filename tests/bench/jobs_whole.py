"""A job from its buyer to a device and back: how long a buyer waits, with all that is between.

A real daemon, a real agent and bubblewrap, all on this machine; a buyer who speaks HTTP and follows
the log as events. One job at a time, an agent that has just had one before. ROUNDS=3 measures less;
each commit costs the disk's time, so the folder can be set: BENCH_FOLDER.
"""

import http.client
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from support.daemons import process
from support.daemons.process import Process
from support.workers.process import environment

from bench import report
from bench.api import UNBOUNDED
from bench.report import Bound, Part, Samples, progress
from proxyctl.worker.base import names
from proxyctl.worker.base.record import Consent, Lend, Sandbox, save
from proxyctl.worker.executors.base.base import LABEL

ROUNDS = int(os.environ.get("ROUNDS", "21"))
LINES = 40  # of the log that is measured while it comes
START, PYTHON = "post to first line, ms", "post to first line of python3, ms"
LINE, GONE = "a line while it runs, ms", "cancel to gone, ms"
WANTED_MS = {START: 30, PYTHON: 30, LINE: 40, GONE: 50}
ONLY = tuple(filter(None, os.environ.get("ONLY", "").split(",")))
PATIENCE_SECONDS = 30.0
REST_SECONDS = 1.0  # in which the agent lays the job before aside, and makes the next sandbox
OURS = "proxyd, bwrap"
BARE = "only bwrap"
JOB = {"title": "x", "job_type": "script", "price_credit": 0.02, "duration_hrs": 1}
HELLO = {START: ("bash", "echo hello\n"), PYTHON: ("python3", "print('hello')\n")}
# The clock is that of the whole machine, so both ends may look at it.
CLOCK = """\
import sys, time
for _ in range({lines}):
    sys.stdout.write(f"{{time.monotonic_ns()}}\\n")  # in one piece
    time.sleep(0.05)
"""
STAYS = "trap '' TERM\nsleep 600 &\necho here\nwait\n"


class Buyer:
    """A buyer that puts up jobs and follows their logs, over a connection that is kept open.

    Args:
        daemon: the marketplace.
        token: of the buyer.
    """

    def __init__(self, daemon: Process, token: str) -> None:
        self._host = urlsplit(daemon.api).netloc
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection(self._host, timeout=PATIENCE_SECONDS)

    def post(self, path: str, fields: object) -> dict[str, Any]:
        """Send a request; its answer must be a good one."""
        self._connection.request("POST", path, json.dumps(fields), self._headers)
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return dict(json.loads(body))

    def job(self, script: str, interpreter: str = "bash") -> str:
        """Put up a job; return its identifier."""
        payload = {"script": script, "interpreter": interpreter, "grace_s": 0}
        return str(self.post("/api/jobs", {**JOB, "payload": payload})["job_id"])

    def lines(self, job_id: str) -> Iterator[tuple[str, int]]:
        """Yield the lines of a log as they come, and when each came (ns of the machine's clock)."""
        with closing(http.client.HTTPConnection(self._host, timeout=PATIENCE_SECONDS)) as own:
            headers = {**self._headers, "Accept": "text/event-stream"}
            own.request("GET", f"/api/jobs/{job_id}/log", headers=headers)
            response = own.getresponse()
            assert response.status == 200, response.read()
            name = ""
            while line := response.readline():
                word, _, value = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name = value
                elif word == "data" and name == "log":
                    came = time.monotonic_ns()
                    for each in str(json.loads(value)["text"]).splitlines():
                        yield each, came
                elif word == "data" and name == "end":
                    return

    def close(self) -> None:
        """Ask for nothing more."""
        self._connection.close()


def start(samples: Samples, buyer: Buyer) -> None:
    """Measure from the first byte of a post to the first line of the log."""
    for number in range(ROUNDS + 1):
        for what, (interpreter, script) in HELLO.items():
            began = time.monotonic_ns()
            with closing(buyer.lines(buyer.job(script, interpreter))) as lines:
                line, came = next(lines)
                assert line == "hello", line
                for _ in lines:
                    pass  # to its end
            if number:  # the first one has found nothing warm
                samples.add(what, OURS, (came - began) / 1e6)
            time.sleep(REST_SECONDS)


def alone(samples: Samples, folder: Path) -> None:
    """Start the same programs under bubblewrap with nothing around it."""
    script = folder / "hello"
    links = [("usr/bin", "/bin"), ("usr/lib", "/lib"), ("usr/lib64", "/lib64")]
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    command += [each for link in links for each in ("--symlink", *link)]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    command += ["--ro-bind", str(script), "/hello", "--"]
    for what, (interpreter, text) in HELLO.items():
        script.write_text(text)
        for _ in range(ROUNDS):
            began = time.monotonic_ns()
            with subprocess.Popen(
                [*command, interpreter, "/hello"], stdout=subprocess.PIPE
            ) as program:
                assert program.stdout is not None
                assert program.stdout.readline() == b"hello\n"
                samples.add(what, BARE, (time.monotonic_ns() - began) / 1e6)


def line_by_line(samples: Samples, buyer: Buyer) -> None:
    """Measure how long each line of a running job takes to its buyer."""
    for _ in range(max(1, ROUNDS // 5)):
        script = CLOCK.format(lines=LINES)
        for line, came in list(buyer.lines(buyer.job(script, "python3")))[1:]:
            samples.add(LINE, OURS, (came - int(line)) / 1e6)
        time.sleep(REST_SECONDS)


def cancel(samples: Samples, buyer: Buyer) -> None:
    """Measure from a cancellation to the end of the last process of the job."""
    for _ in range(ROUNDS):
        job_id = buyer.job(STAYS)
        with closing(buyer.lines(job_id)) as lines:
            assert next(lines)[0] == "here"
            processes = [os.pidfd_open(pid) for pid in processes_of(job_id)]
            assert len(processes) >= 3, processes  # the sandbox's own, the script, and its child
            began = time.monotonic_ns()
            gone = threading.Thread(target=until_gone, args=(processes,))
            gone.start()
            buyer.post(f"/api/jobs/{job_id}/cancel", {})
            gone.join()
            samples.add(GONE, OURS, (time.monotonic_ns() - began) / 1e6)
        time.sleep(REST_SECONDS)


def processes_of(job_id: str) -> list[int]:
    """Return all processes that a sandbox of a job is made of."""
    mark = f"{LABEL}={job_id}-1".encode()
    found = set()
    for member in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if mark in Path(f"/proc/{member.pid}/environ").read_bytes().split(b"\0"):
                around = [each for each in member.parents() if each.name() == "bwrap"]
                found |= {member.pid, *(each.pid for each in around)}
    return sorted(found)


def until_gone(processes: list[int]) -> None:
    """Return when all of these have ended."""
    waiting = select.poll()
    for each in processes:
        waiting.register(each, select.POLLIN)
    left = len(processes)
    while left:
        ended = waiting.poll(PATIENCE_SECONDS * 1000)
        assert ended, "they do not end"
        for each, _ in ended:
            waiting.unregister(each)
            os.close(each)
        left -= len(ended)


@contextmanager
def working(
    daemon: Process, token: str, folder: Path, *, program: str = "proxyctl", **variables: str
) -> Iterator[None]:
    """Run an agent of a new device, until the block is left.

    Args:
        daemon: that the agent works for.
        token: of the owner.
        folder: of the agent.
        program: the module of the agent.
        variables: of its environment.
    """
    _, made = daemon.call("POST", "/api/worker/token/create", {"name": "rig"}, token)
    folder.mkdir(mode=0o700)
    lend = Lend(cores=2, ram_gb=0.5, disk_gb=1)
    agreed_at = "2026-01-01T00:00:00+00:00"
    consent = Consent(daemon.api, made["token"], agreed_at, lend, sandbox=Sandbox("bwrap"))
    save(folder / names.CONSENT, consent)
    log = folder / "log"
    with log.open("wb") as file:
        agent = subprocess.Popen(
            [sys.executable, "-m", program, "worker", "run", "--folder", str(folder)],
            env={**environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    except BaseException:
        progress(log.read_text())
        raise
    finally:
        for _ in range(2):  # the second one stops the jobs
            agent.send_signal(signal.SIGTERM)
            time.sleep(REST_SECONDS)
        agent.wait(PATIENCE_SECONDS)


def measure(folder: Path) -> Samples:
    """Run it, and return its results."""
    samples = Samples()
    url = f"sqlite:///{folder}/proxyd.db"
    email, password = process.funded(url, credit="1000")
    with process.serving(url, **UNBOUNDED) as daemon:
        token = daemon.log_in(email, password)
        with working(daemon, token, folder / "agent"), closing(Buyer(daemon, token)) as buyer:
            for step in (start, line_by_line, cancel):
                if not ONLY or step.__name__ in ONLY:
                    step(samples, buyer)
                    progress(f"jobs: {step.__name__} is measured")
    alone(samples, folder)
    return samples


def main() -> None:
    part = Part("jobs-whole")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        part.samples = measure(Path(folder))
    part.bounds += [
        Bound(f"{what}, median", part.samples.median(what, OURS), most, at_most=True)
        for what, most in WANTED_MS.items()
    ]
    written = part.markdown()
    print(written)
    if ROUNDS > 1 and not ONLY:
        report.rewrite("bench-job-whole", f"{report.machine()}\n\n{written}")


if __name__ == "__main__":
    main()
