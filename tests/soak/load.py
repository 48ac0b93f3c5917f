"""Clients of every kind load a daemon, again and again, until they are stopped."""

import asyncio
import base64
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
from support.clients.datagrams import associated, peer
from support.clients.socks import GREETING, Client, tunnel
from support.daemons.process import Process
from support.targets import targets
from support.targets.targets import Target

SHORT_BYTES = 500
BULK_BYTES = 20_000_000
METERED_BYTES = 10_000
DATAGRAMS = 20
DEVICES = 20
WORKERS = {"short": 8, "bulk": 2, "datagrams": 2, "connect": 3, "trade": 3, "jobs": 2, "strays": 2}


@dataclass
class Load:
    """Clients of one daemon, for one round.

    Args:
        daemon: the daemon.
        token: of a user with money.
        workers: tokens of devices.
    """

    daemon: Process
    token: str
    workers: list[str]
    done: Counter[str] = field(default_factory=Counter)

    async def run(self, seconds: float) -> None:
        """Run all kinds of load together for a time, and finish all begun work."""
        async with AsyncExitStack() as stack:
            self.http = await stack.enter_async_context(aiohttp.ClientSession())
            self.echo = await stack.enter_async_context(targets.echo())
            self.source = await stack.enter_async_context(targets.source(BULK_BYTES))
            self.until = asyncio.get_running_loop().time() + seconds
            await self._heartbeats()
            async with asyncio.TaskGroup() as group:
                for kind, number in WORKERS.items():
                    step = getattr(self, f"_{kind}")
                    for _ in range(number):
                        group.create_task(self._again(kind, step))
                group.create_task(self._again("heartbeats", self._heartbeats))

    async def _again(self, kind: str, step: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        bought = await self.buy(10)
        while asyncio.get_running_loop().time() < self.until:
            await step(bought)
            self.done[kind] += 1
        await self.end(bought)

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Ask the API for something that it must not refuse."""
        sent = {"Authorization": f"Bearer {self.token}", **headers}
        url = self.daemon.api + path
        async with self.http.request(method, url, json=body, headers=sent) as response:
            answer = await response.json()
            assert response.status == 200, (path, answer)
            return answer

    async def buy(self, gb: float) -> dict[str, Any]:
        """Buy a session."""
        return dict(await self.call("POST", "/api/bandwidth/create", {"gb": gb}))

    async def end(self, bought: dict[str, Any]) -> None:
        """End a session."""
        await self.call("POST", "/api/bandwidth/end", {"session_id": bought["session_id"]})

    async def _tunnel(self, bought: dict[str, Any], target: Target) -> Client:
        proxy = bought["proxy"]
        return await tunnel(
            self.daemon.proxy_port, proxy["username"], proxy["password"], target.host, target.port
        )

    async def _short(self, bought: dict[str, Any]) -> None:
        client = await self._tunnel(bought, self.echo)
        await client.send(bytes(SHORT_BYTES))
        await client.receive(SHORT_BYTES)
        if random.random() < 0.2:
            client.reset()
        await client.close()

    async def _bulk(self, bought: dict[str, Any]) -> None:
        client = await self._tunnel(bought, self.source)
        while await client.reader.read(1 << 20):
            pass
        await client.close()

    async def _datagrams(self, bought: dict[str, Any]) -> None:
        proxy = bought["proxy"]
        credentials = SimpleNamespace(username=proxy["username"], password=proxy["password"])
        service = SimpleNamespace(proxy_port=self.daemon.proxy_port)
        with peer() as target:
            async with associated(service, credentials) as association:
                for _ in range(DATAGRAMS):
                    await association.exchange(target, b"up", b"down")

    async def _connect(self, bought: dict[str, Any]) -> None:
        proxy = bought["proxy"]
        shown = base64.b64encode(f"{proxy['username']}:{proxy['password']}".encode()).decode()
        client = await Client.open(self.daemon.proxy_port)
        target = f"{self.echo.host}:{self.echo.port}"
        head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {shown}"
        await client.send(head.encode() + b"\r\n\r\n")
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await client.send(bytes(SHORT_BYTES))
        await client.receive(SHORT_BYTES)
        await client.close()

    async def _trade(self, _: Any = None) -> None:
        """Buy, use and end a session; its used bytes are its billed bytes."""
        bought = await self.buy(0.001)
        client = await self._tunnel(bought, self.echo)
        await client.send(bytes(METERED_BYTES))
        await client.receive(METERED_BYTES)
        await client.close()
        await self.end(bought)
        listed = await self.call("GET", "/api/bandwidth/sessions?status=ended&limit=50")
        used = {each["id"]: each["bytes_used"] for each in listed["sessions"]}
        assert used.get(bought["session_id"], 2 * METERED_BYTES) == 2 * METERED_BYTES

    async def _jobs(self, _: Any = None) -> None:
        offer = {"title": "soak", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
        job = (await self.call("POST", "/api/jobs", offer))["job_id"]
        worker = {"X-Worker-Token": random.choice(self.workers)}
        await self.call("POST", f"/api/jobs/{job}/accept", **worker)
        await self.call("GET", "/api/marketplace/jobs?limit=10")
        await self.call("POST", f"/api/worker/jobs/{job}/complete", {"result": "done"}, **worker)

    async def _strays(self, bought: dict[str, Any]) -> None:
        """Wrong passwords, beginnings without an end, garbage."""
        wrong = await Client.open(self.daemon.proxy_port)
        assert await wrong.log_in(bought["proxy"]["username"], "wrong") == 1
        await wrong.close()
        for beginning in (b"", GREETING, b"GET / HTTP/1.1\r\n", b"\xff" * 100):
            client = await Client.open(self.daemon.proxy_port)
            await client.send(beginning)
            await client.close()
        async with self.http.get(self.daemon.api + "/nothing/here") as response:
            assert response.status == 404

    async def _heartbeats(self, _: Any = None) -> None:
        for worker in self.workers:
            report = {"cpu_pct": random.randrange(100), "gpu_name": "A100"}
            await self.call("POST", "/api/worker/heartbeat", report, **{"X-Worker-Token": worker})
        await asyncio.sleep(0.5)
