"""Devices that ask a daemon for work, all from one process, each on a connection of its own.

`python -m bench.jobs_pollers ORDER` reads a line before it begins, so that the start of the program
is not measured, and prints its results as JSON.
"""

import asyncio
import json
import os
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

_LENGTH = re.compile(rb"(?i)content-length: (\d+)")
_JOB = re.compile(rb'"job_id":"([0-9a-f-]+)","attempt":(\d+)')
AT_ONCE = 250  # connections that are made together: more would wait in the daemon's queue


class Device(asyncio.Protocol):
    """A device that asks again whenever it is answered."""

    def __init__(self, order: dict[str, Any], token: str, seen: "Seen") -> None:
        self._head = (
            f"POST /api/worker/next HTTP/1.1\r\nHost: {order['host']}\r\n"
            f"X-Worker-Token: {token}\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()
        # Made once: the asking process uses processor time that the answering one could use.
        capabilities = {"executors": ["bwrap"], "job_types": ["script"], "arch": "x86_64"}
        asked = {
            "capacity": order["capacity"],
            "capabilities": capabilities,
            "wait_s": order["wait"],
        }
        self._start = json.dumps(asked)[:-1].encode() + b',"attempts":['
        self._seen = seen
        self._attempts: list[bytes] = []
        self._buffer = b""
        self._asked_at = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._seen.lost += 1

    def ask(self) -> None:
        """Ask for work, naming everything that it holds."""
        body = b"".join((self._start, b",".join(self._attempts), b"]}"))
        assert self.transport is not None
        self._asked_at = time.perf_counter()
        self.transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None:  # an answer that was long in coming, in pieces with spaces before
            found = self._buffer.endswith(b"\r\n0\r\n\r\n")
        if not found or (length is not None and len(body) < int(length[1])):
            return
        self._buffer = b""
        if not head.startswith(b"HTTP/1.1 200"):
            raise AssertionError(self._seen.refused(head, body))
        now = time.perf_counter()
        jobs = _JOB.findall(body)
        self._seen.answers += 1
        for job_id, attempt in jobs:
            self._attempts.append(b'{"job_id":"%b","attempt":%b}' % (job_id, attempt))
            self._seen.jobs.append(job_id)
        if jobs:
            self._seen.took.append(now - self._asked_at)
            self._seen.last_at = now
        self._seen.look()
        if not self._seen.over.is_set():
            self.ask()


class Seen:
    """Answers of all devices."""

    def __init__(self, jobs_wanted: int) -> None:
        self._jobs_wanted = jobs_wanted
        self.jobs: list[bytes] = []
        self.took: list[float] = []
        self.answers = 0
        self.last_at = 0.0
        self.lost = 0
        self.refusals: list[str] = []
        self.over = asyncio.Event()

    def refused(self, head: bytes, body: bytes) -> str:
        self.refusals.append(f"{head[:40]!r} {body[:200]!r}")
        self.over.set()
        return self.refusals[-1]

    def look(self) -> None:
        """End everything once the wanted number of jobs has come."""
        if self._jobs_wanted and len(self.jobs) >= self._jobs_wanted:
            self.over.set()


async def main(order: dict[str, Any]) -> None:
    loop, seen = asyncio.get_running_loop(), Seen(order["jobs"])
    devices: list[Device] = []
    tokens = order["tokens"]
    for start in range(0, len(tokens), AT_ONCE):
        made = await asyncio.gather(
            *(
                loop.create_connection(
                    lambda token=token: Device(order, token, seen),
                    order["address"],
                    order["port"],
                    local_addr=None,
                )
                for token in tokens[start : start + AT_ONCE]
            )
        )
        devices += [protocol for _, protocol in made]
    print("connected", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    began = time.perf_counter()
    for device in devices:
        device.ask()
    print("asked", flush=True)
    ended = loop.run_in_executor(None, sys.stdin.readline)  # the measuring process may end it
    over = loop.create_task(seen.over.wait())
    await asyncio.wait([over, ended], return_when=asyncio.FIRST_COMPLETED)
    took = sorted(seen.took)
    result = {
        "seconds": seen.last_at - began,
        "jobs": len(seen.jobs),
        "different": len(set(seen.jobs)),
        "answers": seen.answers,
        "p50_ms": 1e3 * took[len(took) // 2] if took else 0.0,
        "p99_ms": 1e3 * took[len(took) * 99 // 100] if took else 0.0,
        "lost": seen.lost,
        "refusals": seen.refusals,
    }
    print(json.dumps(result), flush=True)
    sys.stdout.flush()
    os._exit(0)  # thousands of connections need not be closed one by one


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(main(json.loads(Path(sys.argv[1]).read_text())))
