"""Traffic on daemons while their database fails: acknowledgements, refusals, cuts and delays.

Writers post jobs, each under an Idempotency-Key of its own, and repeat a post until it is
acknowledged. Relays echo bytes through the proxy. Probes ask `/readyz`. None of them ends because
of an outage; at the end, their observations are compared with the database.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from support.base.waiting import until
from support.clients.socks import Client, tunnel
from support.daemons.service import Bought, Person, Service, running, settings_for
from support.database.postgres_cluster import Member, lines_of
from support.targets import targets
from support.targets.targets import Target

WRITERS = 3
RELAYS = 2  # of each daemon
BLOCK_BYTES = 4_000
PAUSE_SECONDS = 0.05
PROBE_SECONDS = 0.25
ANSWER_SECONDS = 15.0  # the patience of the clients of a drill


@dataclass
class Seen:
    """The observations of the clients of one drill."""

    acknowledged: dict[str, str] = field(default_factory=dict)  # job by Idempotency-Key
    refusals: list[str] = field(default_factory=list)  # codes
    slowest_seconds: float = 0.0
    refused_at: list[float] = field(default_factory=list)
    readiness: list[tuple[int, str, float]] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    cut: int = 0

    def outage_seconds(self) -> float:
        """Return the time from the first refusal to the last."""
        return self.refused_at[-1] - self.refused_at[0] if self.refused_at else 0.0

    def line(self, name: str) -> str:
        """Return the figures of a drill."""
        reasons = sorted({why for status, why, _ in self.readiness if status != 200})
        slowest_probe = max((seconds for *_, seconds in self.readiness), default=0.0)
        return (
            f"{name:<28} acknowledged {len(self.acknowledged):>4}  refused {len(self.refusals):>4}"
            f" over {self.outage_seconds():5.1f} s  slowest {self.slowest_seconds:5.1f} s"
            f"  stall {max(self.stalls, default=0.0):5.1f} s  probe {slowest_probe:4.1f} s"
            f"  cut {self.cut}  {reasons}"
        )


class Drill:
    """Daemons on one database, with their clients.

    Args:
        nodes: the daemons.
        target: echoes the bytes of relays.
        person: buys everything.
    """

    def __init__(self, nodes: list[Service], target: Target, person: Person) -> None:
        self.nodes = nodes
        self.target = target
        self.person = person
        self.seen = Seen()
        self.bought: list[Bought] = []
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0

    async def begin(self) -> None:
        """Start every client, and wait until each has been served."""
        for node in self.nodes:
            for _ in range(RELAYS):
                bought = await node.buy(self.person, quota=200_000_000)
                self.bought.append(bought)
                self._tasks.append(asyncio.create_task(self._relay(node, bought)))
            self._tasks.append(asyncio.create_task(self._probe(node)))
        self._tasks += [
            asyncio.create_task(self._write(self.nodes[number % len(self.nodes)]))
            for number in range(WRITERS)
        ]
        await self.goes_on()

    async def goes_on(self) -> None:
        """Wait until every writer is acknowledged again, and every daemon ready."""
        wanted = len(self.seen.acknowledged) + 2 * WRITERS

        async def go_on() -> bool:
            for task in self._tasks:
                if task.done() and not self._stopping:
                    await task  # only an error ends it
            return len(self.seen.acknowledged) >= wanted

        await until(go_on, "writes go on")
        await until(self._is_ready, "every daemon is ready")

    async def catches_up(self) -> None:
        """Wait until every post that has begun is acknowledged."""
        begun = {_key(number + 1) for number in range(self._number)}
        await until(lambda: begun <= self.seen.acknowledged.keys(), "posts are acknowledged")

    async def end(self) -> None:
        """Stop the clients; clients that wait for an acknowledgement get it first."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def abandon(self) -> None:
        """Cancel the remaining clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def check(self, database: Member) -> None:
        """Compare the observations of the clients with the content of a server."""
        jobs = set(lines_of(database.execute("SELECT id FROM jobs")))
        lost = [each for each in self.seen.acknowledged.values() if each not in jobs]
        assert not lost, f"{len(lost)} acknowledged jobs are lost"
        assert len(jobs) == len(self.seen.acknowledged), "a job exists twice"
        assert self.seen.cut == 0
        await until(self._is_written, "every byte is written down")
        billed = int(database.execute("SELECT sum(bytes_used) FROM bandwidth_sessions"))
        assert billed <= self.target.received + self.target.sent
        await self.nodes[0].assert_audit()

    async def _is_ready(self) -> bool:
        answers = [await node.call("GET", "/readyz") for node in self.nodes]
        return all(answer.status == 200 for answer in answers)

    async def _is_written(self) -> bool:
        total = self.target.received + self.target.sent
        sessions = await self.nodes[0].sessions(self.person)
        return sum(int(each["bytes_used"]) for each in sessions) == total

    async def _write(self, node: Service) -> None:
        while not self._stopping:
            self._number += 1
            await self._post(node, _key(self._number))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _post(self, node: Service, key: str) -> None:
        body = {"title": key, "job_type": "script", "duration_hrs": 1, "price_credit": 0.01}
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await node.call(
                        "POST",
                        "/api/jobs",
                        body,
                        token=self.person.token,
                        headers={"Idempotency-Key": key},
                    )
            except (TimeoutError, aiohttp.ClientError) as error:
                self._refused(type(error).__name__)
            else:
                if answer.status == 200:
                    self.seen.acknowledged[key] = answer.body["job_id"]
                    self._took(began)
                    return
                assert answer.status in (500, 503), answer.body
                self._refused(answer.code)
            self._took(began)
            await asyncio.sleep(PAUSE_SECONDS)

    def _refused(self, code: str) -> None:
        self.seen.refusals.append(code)
        self.seen.refused_at.append(time.monotonic())

    def _took(self, began: float) -> None:
        self.seen.slowest_seconds = max(self.seen.slowest_seconds, time.monotonic() - began)

    async def _relay(self, node: Service, bought: Bought) -> None:
        client = await self._tunnel(node, bought)
        try:
            while not self._stopping:
                began = time.monotonic()
                await client.send(bytes(BLOCK_BYTES))
                await client.receive(BLOCK_BYTES)
                self.seen.stalls.append(time.monotonic() - began)
                await asyncio.sleep(PAUSE_SECONDS)
        except (ConnectionError, EOFError):
            self.seen.cut += 1
        finally:
            await client.close()

    async def _tunnel(self, node: Service, bought: Bought) -> Client:
        return await tunnel(
            node.proxy_port, bought.username, bought.password, self.target.host, self.target.port
        )

    async def _probe(self, node: Service) -> None:
        while not self._stopping:
            began = time.monotonic()
            answer = await node.call("GET", "/readyz")
            why = "" if answer.status == 200 else answer.body["error"]["message"]
            why = why.partition("(")[2].rstrip(")")
            self.seen.readiness.append((answer.status, why, time.monotonic() - began))
            await asyncio.sleep(PROBE_SECONDS)


def _key(number: int) -> str:
    return f"drill-{number}"


@asynccontextmanager
async def drilling(
    url: str, *, nodes: int = 2, node_timeout_seconds: float = 45.0
) -> AsyncIterator[Drill]:
    """Run daemons with traffic, which ends with the context at the latest."""
    settings = settings_for(
        url,
        cluster={"node_timeout_seconds": node_timeout_seconds},
        limits={"jobs_per_user": 100_000},
    )
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(targets.echo())
        daemons = [await stack.enter_async_context(running(settings)) for _ in range(nodes)]
        person = await daemons[0].person(usd="1000", credit="100000")
        drill = Drill(daemons, target, person)
        try:
            await drill.begin()
            yield drill
        finally:
            await drill.abandon()
