"""The part of the API that an exit's agent asks: the terms, and the end of a consent."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TERMS = "Strangers' traffic will leave from your address.\n\x1b[2JYou can stop at any time.\n"


class ExitApi(ThreadingHTTPServer):
    """Answers with `terms`; `revoked` are the tokens that a consent was withdrawn with.

    `tried` are those that a device asked something with; `token_refusal` is the answer.
    """

    daemon_threads = True

    def __init__(self, **fields: object) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.terms: dict[str, Any] = {
            "ok": True,
            "text": TERMS,
            "terms_hash": hashlib.sha256(TERMS.encode()).hexdigest(),
            "host": "127.0.0.1",
            "port": 1090,
            "certificate_sha256": "",
            **fields,
        }
        self.location = ""
        self.refusal: dict[str, Any] | None = None
        self.revoked: list[str | None] = []
        self.token_refusal: dict[str, Any] | None = None
        self.tried: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ExitApi

    def do_GET(self) -> None:
        if self.path == "/api/worker/jobs?limit=1":
            self.server.tried.append(self.headers["X-Worker-Token"])
            refusal = self.server.token_refusal
            self._reply(200 if refusal is None else 401, refusal or {"ok": True, "jobs": []})
            return
        assert self.path == "/api/exits/terms"
        self._reply(200, self.server.terms)

    def do_POST(self) -> None:
        assert self.path == "/api/worker/exit/revoke"
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.revoked.append(self.headers["X-Worker-Token"])
        if self.server.location:
            self._reply(302, {}, self.server.location)
        elif self.server.refusal is not None:
            self._reply(400, self.server.refusal)
        else:
            self._reply(200, {"ok": True})

    def _reply(self, status: int, fields: dict[str, Any], location: str = "") -> None:
        data = json.dumps(fields).encode()
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def exit_api(**fields: object) -> Iterator[ExitApi]:
    """Serve the terms, with `fields` in place of theirs."""
    api = ExitApi(**fields)
    thread = threading.Thread(target=api.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield api
    finally:
        api.shutdown()
        thread.join()
        api.server_close()
