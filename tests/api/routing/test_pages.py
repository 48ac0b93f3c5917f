"""The page on which a person tries the API: served whole from here, and seen in a real browser."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from support.console.browser import CHROMIUM, FLAGS, needs_chromium
from support.daemons.service import Service

from api import openapi
from api.routing import pages
from api.server import Face, HttpServer
from market.events.idempotency import Seal


async def get(service: Service, path: str) -> tuple[int, str, str]:
    async with service.http.get(service.url + path) as response:
        return response.status, response.headers["Content-Type"], await response.text("latin-1")


async def test_everything_that_the_page_needs_is_served_here(service: Service) -> None:
    status, content_type, html = await get(service, "/docs")
    assert (status, content_type) == (200, "text/html; charset=utf-8")
    needed = re.findall(r'(?:href|src)="([^"]+)"', html)
    assert len(needed) == 4
    for path in needed:
        assert path.startswith("/docs/")
        status, _, body = await get(service, path)
        assert status == 200
        assert body


async def test_the_page_takes_nothing_from_elsewhere(service: Service) -> None:
    async with service.http.get(service.url + "/docs") as response:
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert response.headers["Server"] == "proxyd"


async def test_the_document_of_the_api_is_sent_compressed(service: Service) -> None:
    bodies = []
    for coding in ("identity", "gzip"):
        asking = service.http.get(
            service.url + "/openapi.json", headers={"Accept-Encoding": coding}
        )
        async with asking as response:
            assert response.headers["Vary"] == "Accept-Encoding"
            assert response.headers.get("Content-Encoding", "identity") == coding
            bodies.append((int(response.headers["Content-Length"]), await response.read()))
    (plain, text), (packed, same) = bodies
    assert text == same
    assert packed * 5 < plain


async def test_no_page_beside_the_console_is_framed_or_keeps_tokens(service: Service) -> None:
    for path in ("/docs", "/docs/start.js", "/docs/swagger-ui.css", "/openapi.json"):
        async with service.http.get(service.url + path) as response:
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Referrer-Policy"] == "no-referrer"
            assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert response.headers["Cache-Control"] in (pages.CACHE, "no-cache")
            assert "persist" not in (await response.text())[:2_000]
    async with service.http.get(service.url + "/docs") as response:
        policy = response.headers["Content-Security-Policy"]
    for rule in ("frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert rule in policy


async def nobody(token: str) -> Any:
    raise AssertionError(token)


def test_the_api_is_described_on_request_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def document(routes: Any, *, version: str, base_url: str) -> dict[str, Any]:
        made.append(version)
        return {"openapi": "3.1.0"}

    monkeypatch.setattr(openapi, "document", document)
    server = HttpServer(
        [],
        authenticate=nobody,
        authenticate_key=nobody,
        authenticate_worker=nobody,
        is_current=nobody,
        body_max_bytes=1024,
        seal=Seal(b"k" * 40),
        now=lambda: 0,
        face=Face(version="1"),
    )
    assert made == []
    page = server._fixed._pages["/openapi.json"]
    assert [page.body for _ in range(2)] == [b'{"openapi":"3.1.0"}\n'] * 2
    assert made == ["1"]


async def test_pages_are_only_looked_at(service: Service) -> None:
    for path in ("/docs", "/openapi.json"):
        answer = await service.call("POST", path, {})
        assert (answer.status, answer.code) == (405, "method_not_allowed")
        assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.long
@needs_chromium
async def test_a_browser_shows_every_operation(service: Service, tmp_path: Path) -> None:
    running = await asyncio.create_subprocess_exec(
        str(CHROMIUM),
        *FLAGS,
        "--virtual-time-budget=20000",
        "--dump-dom",
        f"--user-data-dir={tmp_path}/profile",
        f"{service.url}/docs",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    out, _ = await running.communicate()
    page = out.decode()
    for path, operations in service.daemon.http.openapi["paths"].items():
        for operation in operations.values():
            assert operation["summary"] in page, path
