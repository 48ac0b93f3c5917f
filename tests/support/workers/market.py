"""A marketplace as an agent sees it, over real HTTP in a thread, that a test can stop and start.

It keeps the state of a real one: the attempts that a device holds, their reports, and their logs by
offset. It records repeated reports, and reports of attempts that it has taken back.
"""

import json
import select
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.base.ports import free_port

TOKEN = "a worker token"
NOT_CURRENT = (400, "attempt_not_current", "This attempt is not the current one.")


@dataclass
class Job:
    """A job, and all reports about it."""

    work: dict[str, Any]
    attempt: int = 0
    is_held: bool = False
    started: list[int] = field(default_factory=list)
    reports: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    logs: dict[tuple[int, str], bytes] = field(default_factory=dict)
    end: str = ""

    @property
    def id(self) -> str:
        return str(self.work["job_id"])

    @property
    def outcome(self) -> str:
        return self.reports[-1][0] if self.reports else ""


class RefusalError(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code)
        self.answer = (status, {"ok": False, "error": {"code": code, "message": message}})


class WorkerMarket:
    """The marketplace; its address stays the same when it is stopped and started."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: dict[str, Job] = {}
        self.syncs: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        self.stale: list[str] = []
        self.is_revoked = False
        self.is_offline = False
        self.retries = False
        self.lease_s = 4
        self._server: ThreadingHTTPServer | None = None
        self._port = free_port()  # no other program gets it while this one is away
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Answer, at the port of before."""
        market = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def _answer(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if market._server is not self.server:
                    self.close_connection = True
                    return
                try:
                    status, reply = (
                        200,
                        market.answer(self.path, self.headers, body, self._is_there),
                    )
                except RefusalError as error:
                    status, reply = error.answer
                data = json.dumps(reply).encode()
                if market._server is not self.server:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _is_there(self) -> bool:
                return not select.select([self.connection], [], [], 0)[0]

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # an agent that is killed in the middle of a request is no news

        self._server = Server(("127.0.0.1", self._port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Go away: accept no connection, and answer none of the open ones."""
        server, self._server = self._server, None
        with self.changed:
            self.changed.notify_all()
        if server is not None:
            server.shutdown()
            server.server_close()

    def post(self, script: str = "", **fields: Any) -> Job:
        """Put a job up."""
        payload = {"script": script, **fields.pop("payload", {})}
        work = {
            "job_id": str(uuid.uuid4()),
            "title": "a job",
            "job_type": "script",
            "duration_hrs": 1,
            "price_credit": 1.0,
            "payload": payload,
            "resources": {},
            "timeout_s": 60,
            "inputs": [],
            **fields,
        }
        with self.changed:
            job = self.jobs[work["job_id"]] = Job(work)
            self.changed.notify_all()
        return job

    def take_back(self, job: Job, reason: str = "cancelled by its buyer") -> None:
        """End an attempt from here, as a cancelled job does."""
        with self.changed:
            job.is_held = False
            job.end = reason
            self.changed.notify_all()

    def answer(
        self, target: str, headers: Any, body: bytes, is_there: Callable[[], bool]
    ) -> dict[str, Any]:
        """Answer one request."""
        if self.is_revoked or headers.get("X-Worker-Token") != TOKEN:
            raise RefusalError(401, "worker_unauthorized", "The worker token is not valid.")
        parts = urlsplit(target)
        steps = parts.path.strip("/").split("/")
        if steps[-1] == "log":
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            return self._log(steps[3], query, body)
        fields = json.loads(body) if body else {}
        if steps[-1] == "next":
            return self._next(fields, is_there)
        if steps[-1] in ("sync", "offline"):
            return getattr(self, f"_{steps[-1]}")(fields)
        if len(steps) == 3:
            return {"ok": True, "jobs": []}
        return self._said(steps[3], steps[4], fields)

    def _next(self, fields: dict[str, Any], is_there: Callable[[], bool]) -> dict[str, Any]:
        slots, named = fields["capacity"]["slots"], fields["attempts"]
        with self.changed:
            self.questions.append(fields)
            self._lose({(each["job_id"], each["attempt"]) for each in named})
            self.changed.wait_for(
                lambda: (
                    self._server is None
                    or self.is_revoked
                    or self._stops(named)
                    or (slots and self._waiting())
                ),
                timeout=fields["wait_s"],
            )
            if self._server is None or not is_there():
                return {}
            given = self._waiting()[:slots]
            for job in given:
                job.attempt += 1
                job.is_held = True
                job.work = {**job.work, "attempt": job.attempt, "lease_s": self.lease_s}
            stops = self._stops(named)
        jobs = [job.work for job in given]
        return {"ok": True, "jobs": jobs, "actions": stops, "lease_s": self.lease_s, "seen": 1}

    def _lose(self, named: set[tuple[str, int]]) -> None:
        """Take back given attempts that the device does not list: they got lost."""
        for job in self.jobs.values():
            if job.is_held and (job.id, job.attempt) not in named:
                job.is_held = False

    def _stops(self, named: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a stop order for each attempt that the device names but no longer holds."""
        stops = []
        for each in named:
            job = self.jobs.get(each["job_id"])
            if job is None or not job.is_held or job.attempt != each["attempt"]:
                reason = "gone" if job is None else job.end or "taken back"
                stops.append({**each, "action": "stop", "reason": reason})
        return stops

    def _waiting(self) -> list[Job]:
        return [job for job in self.jobs.values() if not (job.is_held or job.reports or job.end)]

    def _sync(self, fields: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            self.syncs.append(fields)
            self.changed.notify_all()
        return {"ok": True, "lease_s": self.lease_s, "actions": []}

    def _offline(self, fields: dict[str, Any]) -> dict[str, Any]:
        self.is_offline = True
        return {"ok": True}

    def _held(self, job_id: str, attempt: int, verb: str) -> Job:
        job = self.jobs[job_id]
        if not job.is_held or attempt != job.attempt:
            self.stale.append(f"{verb} {job_id}-{attempt}")
            raise RefusalError(*NOT_CURRENT)
        return job

    def _said(self, job_id: str, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            job = self._held(job_id, fields["attempt"], verb)
            if verb in ("complete", "fail"):
                job.is_held = False
                if verb == "complete" or fields.get("kind") != "host" or not self.retries:
                    job.reports.append((verb, fields))
            elif verb == "started":
                job.started.append(fields["attempt"])
            self.changed.notify_all()
        return {"ok": True}

    def _log(self, job_id: str, query: dict[str, str], data: bytes) -> dict[str, Any]:
        with self.changed:
            attempt = int(query["attempt"])
            job = self._held(job_id, attempt, "log")
            key = (attempt, query["stream"])
            stored, offset = job.logs.get(key, b""), int(query["offset"])
            if offset <= len(stored):
                job.logs[key] = stored = stored + data[len(stored) - offset :]
        return {"ok": True, "offset": len(stored), "next_after_ms": 0, "is_full": False}


@contextmanager
def worker_market() -> Iterator[WorkerMarket]:
    """End it with the test."""
    market = WorkerMarket()
    try:
        yield market
    finally:
        market.stop()
