"""The configuration of nginx that the operator's guide shows, in front of a real daemon."""

import asyncio
import hashlib
import io
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from aiohttp.web import StreamResponse
from msgspec.structs import replace
from support.clients.story import worker_token
from support.daemons.process import ROOT
from support.daemons.service import Service
from support.targets.tls import make_certificate

from api.serving.connections import Request

GUIDE = ROOT / "docs" / "how-to" / "operations.md"
ASKED = {
    "capacity": {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50},
    "capabilities": {"executors": ["bwrap"], "job_types": ["script"]},
    "wait_s": 300,
}
LARGE = bytes(20_000_000)
# The frame of Debian's own file around the servers; all written files are in a folder of the
# test's.
WHOLE = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""


@pytest.fixture(params=["guide"])
async def front(
    service: Service, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[str, ssl.SSLContext]]:
    """The address of nginx as in the guide, and a context that trusts its certificate.

    With the parameter `kept`, nginx keeps its connections to the daemon for other clients.
    """
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("nginx is not installed: make clients")
    certificate = make_certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        configuration = tmp_path / "nginx.conf"
        text = shown(service.url, port, tmp_path)
        configuration.write_text(kept(text, service.url) if request.param == "kept" else text)
        # It takes over the socket, as from an older one that it replaces: no other process has the
        # port.
        running = subprocess.Popen(
            [program, "-c", str(configuration)],
            env={**os.environ, "NGINX": f"{listener.fileno()};"},
            pass_fds=(listener.fileno(),),
        )
    try:
        yield f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=certificate.path)
    finally:
        running.terminate()
        running.wait(10)


def shown(api: str, port: int, folder: Path) -> str:
    """Return the guide's file, adapted to this machine."""
    server = GUIDE.read_text().partition("\nnginx:\n")[2].partition("\nThe proxy's own port")[0]
    live = "/etc/letsencrypt/live/api.example.com"
    for there, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8080", urlsplit(api).netloc),
        (f"{live}/fullchain.pem", str(folder / "certificate.pem")),
        (f"{live}/privkey.pem", str(folder / "key.pem")),
    ):
        assert there in server
        server = server.replace(there, here)
    return WHOLE.format(folder=folder, server=server)


def kept(text: str, api: str) -> str:
    """Return a configuration with connections to the daemon that are used again."""
    netloc = urlsplit(api).netloc
    upstream = f"upstream daemon {{ server {netloc}; keepalive 4; }}"
    text = text.replace(f"proxy_pass http://{netloc};", "proxy_pass http://daemon;")
    return text.replace("http {", "http {\n    " + upstream, 1)


@pytest.mark.parametrize("front", ["kept"], indirect=True)
async def test_head_of_a_stream_leaves_nothing_for_the_next_client(
    service: Service, front: tuple[str, ssl.SSLContext]
) -> None:
    url, context = front
    mallory, bob = await service.person(), await service.person()
    connector = aiohttp.TCPConnector(ssl=context, limit=4)
    path = "/api/events/stream"
    async with (
        asyncio.timeout(60),
        aiohttp.ClientSession(url, connector=connector) as client,
    ):
        for _ in range(4):
            for _ in range(4):
                headers = {"Authorization": f"Bearer {mallory.token}"}
                async with client.head(path, headers=headers) as answer:
                    assert (answer.status, await answer.read()) == (200, b"")
            for _ in range(5):
                headers = {"Authorization": f"Bearer {bob.token}"}
                async with client.get("/auth/me", headers=headers) as answer:
                    assert (answer.status, (await answer.json())["id"]) == (200, bob.user_id)
    assert len(service.daemon.market.event_feed) == 0


@pytest.mark.parametrize("front", ["kept"], indirect=True)
async def test_head_of_every_route_leaves_nothing_for_the_next_client(
    service: Service, front: tuple[str, ssl.SSLContext]
) -> None:
    """A connection that nginx keeps carries HEAD of every path, and then GET of another user."""
    url, context = front
    mallory, bob = await service.person(credit="10"), await service.person()
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    made = await service.call("POST", "/api/jobs", job, token=mallory.token)
    http = service.daemon.http
    paths = [route.path for route in http.routes if route.method == "GET"]
    paths += [*http._fixed._pages, "/console", "/login", "/none"]
    connector = aiohttp.TCPConnector(ssl=context, limit=1)
    async with (
        asyncio.timeout(120),
        aiohttp.ClientSession(url, connector=connector) as client,
    ):
        for template in paths:
            path = re.sub(r"\{\w+\}", made.body["job_id"], template)
            for accept in ("*/*", "text/event-stream"):
                headers = {"Authorization": f"Bearer {mallory.token}", "Accept": accept}
                async with client.head(path, headers=headers, allow_redirects=False) as answer:
                    assert await answer.read() == b"", template
                    assert answer.status < 500, template
            headers = {"Authorization": f"Bearer {bob.token}"}
            async with client.get("/auth/me", headers=headers) as answer:
                assert (answer.status, (await answer.json())["id"]) == (200, bob.user_id), template


async def test_the_spaces_before_an_answer_are_not_kept_back(
    service: Service, front: tuple[str, ssl.SSLContext]
) -> None:
    url, context = front
    device = await worker_token(service, await service.person())
    dispatch = service.daemon.market.dispatch
    dispatch.terms = replace(dispatch.terms, sign_seconds=0.05)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(url, connector=connector) as client:
        asking = client.post("/api/worker/next", json=ASKED, headers={"X-Worker-Token": device})
        async with asking as answer:
            assert await answer.content.readexactly(3) == b"   "
            service.daemon.services.drain()
            assert msgspec.json.decode(await answer.content.read())["jobs"] == []


async def test_a_large_file_is_taken(service: Service, front: tuple[str, ssl.SSLContext]) -> None:
    url, context = front
    buyer = await service.person(credit="100")
    login = {"Authorization": f"Bearer {buyer.token}"}
    digest = hashlib.sha256(LARGE).hexdigest()
    file = {"name": "x", "size_bytes": len(LARGE), "sha256": digest}
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(url, connector=connector, headers=login) as client:
        made = await (await client.post("/api/artifacts", json=file)).json()
        path = urlsplit(made["upload"]["url"]).path
        async with client.put(
            path, data=io.BytesIO(LARGE), headers={"Content-Type": "x/y"}
        ) as sent:
            assert (sent.status, (await sent.json())["offset"]) == (200, len(LARGE))


@pytest.mark.parametrize(
    ("lines", "statuses"),
    [
        (("Transfer-Encoding: chunked",), [400]),
        (("Transfer-Encoding: gzip, chunked",), [501]),
        (("Transfer-Encoding: chunked, chunked",), [400, 501]),
        (("Transfer-Encoding: chunked", "Content-Length: 2"), [400]),
    ],
)
async def test_a_body_that_could_be_read_in_two_ways_is_one_request_at_most(
    service: Service,
    front: tuple[str, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
    lines: tuple[str, ...],
    statuses: list[int],
) -> None:
    url, context = front
    asked: list[str] = []
    respond = service.daemon.http._respond

    async def noting(request: Request) -> StreamResponse:
        asked.append(request.path)
        return await respond(request)

    monkeypatch.setattr(service.daemon.http._server, "request_handler", noting)
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, ssl=context)
    host = ("Host: localhost", "Content-Type: application/json", "Connection: close")
    head = "".join(f"{line}\r\n" for line in ("POST /auth/login HTTP/1.1", *host, *lines))
    writer.write(head.encode() + b"\r\n2\r\n{}\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nHost: x\r\n\r\n")
    answered = await reader.read()
    writer.close()
    assert int(answered.split(b" ", 2)[1]) in statuses
    assert answered.count(b"HTTP/1.1 ") == 1
    assert "/evil" not in asked
