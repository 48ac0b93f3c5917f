"""Apps all the way: a page and a WebSocket that a job serves in its sandbox, from outside."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from support.base.waiting import until
from support.daemons.mesh import nodes
from support.daemons.service import Service
from support.database import postgres
from support.workers.app_story import app_of, devices_of, offering, put_up
from support.workers.process import WorkerAgent

from proxyd.ops.processes.listening import bound_port

# A page that shows its request's path, and a WebSocket that adds up the lengths of its messages.
JOB = """
import base64, hashlib, http.server

class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.talk()
        self.answer(f"{self.path} {self.headers['Host']} {self.headers.get('Cookie')}".encode())

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"]))[::-1])

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def talk(self):
        key = self.headers["Sec-WebSocket-Key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        while True:
            first, size = self.rfile.read(2)
            mask = self.rfile.read(4)
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size & 127)))
            if first & 15 == 8:
                self.wfile.write(b"\\x88\\x00")
                self.close_connection = True
                return
            told = str(sum(map(int, text.split(b"+")))).encode()
            self.wfile.write(bytes([0x81, len(told)]) + told)

    def log_message(self, *_):
        pass

print("serves", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", 8888), Page).serve_forever()
"""
PORTS = [{"name": "web", "port": 8888}, {"name": "none", "port": 9999}]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with offering(tmp_path) as running:
        yield running


async def test_a_buyer_opens_the_server_of_a_job_in_its_sandbox(
    service: Service, tmp_path: Path
) -> None:
    async with devices_of(service, tmp_path) as agent:
        await opens(service, agent)


async def opens(service: Service, agent: WorkerAgent) -> None:
    buyer = await service.person(credit="5")
    ready = {"port": 8888, "http": "/", "every_s": 1}
    job_id = await put_up(service, buyer, script=JOB, ports=PORTS, ready=ready)

    async def is_ready() -> bool:
        return bool((await app_of(service, buyer, job_id))["is_ready"])

    await until(is_ready, agent.log)
    app = await app_of(service, buyer, job_id)
    host = f"{job_id}-8888.localhost:{bound_port(service.daemon.listeners.apps)}"  # type: ignore[arg-type]
    assert app["url"] == f"http://{host}/?key={app['key']}"
    page = f"http://127.0.0.1:{host.rpartition(':')[2]}"
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as browser:
        headers = {"Host": host, "Authorization": f"Bearer {app['key']}"}
        async with browser.get(f"{page}/a?b=c", headers={**headers, "Cookie": "x=y"}) as answer:
            assert (answer.status, await answer.text()) == (200, f"/a?b=c {host} x=y")
        sent = bytes(range(256)) * 4000
        async with browser.post(page, data=sent, headers=headers) as answer:
            assert await answer.read() == sent[::-1]
        async with browser.ws_connect(page, headers=headers) as socket:
            for asked, told in (("20+22", "42"), ("1+2+3", "6")):
                await socket.send_str(asked)
                assert (await socket.receive_str()) == told
            key = f"/api/jobs/{job_id}/app/key"
            new = (await service.call("POST", key, token=buyer.token)).body["app"]["key"]
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSED
        async with browser.get(page, headers=headers) as answer:
            assert answer.status == 401
        headers["Authorization"] = f"Bearer {new}"
        other = {**headers, "Host": host.replace("-8888", "-9999")}
        async with browser.get(page, headers=other) as answer:
            assert (answer.status, "Retry-After" in answer.headers) == (503, True)
        await asyncio.to_thread(agent.kill)
        async with browser.get(page, headers=headers) as answer:
            assert answer.status == 502
        await service.call("POST", f"/api/jobs/{job_id}/cancel", token=buyer.token)
        service.daemon.services.app_port.server.forget(job_id)  # type: ignore[union-attr]
        async with browser.get(page, headers=headers) as answer:
            assert answer.status == 401


@pytest.mark.long
async def test_a_browser_may_come_to_any_daemon(
    postgres_server: str, postgres_template: str, tmp_path: Path
) -> None:
    name = f"test_{uuid.uuid4().hex}"
    apps = {"host": "127.0.0.1", "port": 0, "domain": "localhost"}
    async with (
        postgres.database(postgres_server, name, template=postgres_template) as url,
        nodes(url, tmp_path, 2, apps=apps) as (one, other),
        devices_of(one, tmp_path) as agent,
    ):
        buyer = await one.person(credit="5")
        ready = {"port": 8888, "http": "/", "every_s": 1}
        job_id = await put_up(one, buyer, script=JOB, ports=PORTS, ready=ready)

        async def is_ready() -> bool:
            return bool((await app_of(one, buyer, job_id))["is_ready"])

        await until(is_ready, agent.log)
        app = await app_of(one, buyer, job_id)
        for each in (one, other):
            tunnels = each.daemon.exit_port.tunnels  # type: ignore[union-attr]
            await until(lambda tunnels=tunnels: len(tunnels) == 1, "the device is attached")
            port = bound_port(each.daemon.listeners.apps)  # type: ignore[arg-type]
            host = f"{job_id}-8888.localhost:{port}"
            headers = {"Host": host, "Authorization": f"Bearer {app['key']}"}
            async with aiohttp.ClientSession() as browser:
                where = f"http://127.0.0.1:{port}/a"
                async with browser.get(where, headers=headers) as answer:
                    assert (answer.status, await answer.text()) == (200, f"/a {host} None")
