"""Devices that fetch the files of jobs, send files, and write logs."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from market.attempts.attempts import Ending
from market.base.errors import Code, MarketError
from market.files.artifacts import CHECKPOINT, OUTPUT, NewArtifact
from storage.blobs.base import BlobError
from storage.logs.files import Attempt
from tests.sim.clients import RequestError
from tests.sim.deploys import ReplicaAgent
from tests.sim.files import CONTENTS, FileBooks, Sender, fetched, log_text, short
from tests.sim.jobs import RETRY_SECONDS, AgentPlan, Records

if TYPE_CHECKING:
    from tests.sim.clients import Network

_CURRENT = """
    SELECT 1 FROM jobs WHERE id = :id AND attempts = :attempt AND status = 'running'
        AND device_id = :device
"""


class FileAgent(ReplicaAgent, Sender):
    """Device that also fetches and sends files, and writes logs.

    Args:
        network: leads to the daemons.
        plan: its actions.
        records: get the answers to its reports.
        until: when it stops.
        books: compare the bytes.
    """

    def __init__(
        self, network: "Network", plan: AgentPlan, records: Records, until: float, books: FileBooks
    ) -> None:
        super().__init__(network, plan, records, until)
        self._books = books

    async def _work(self, job: Any) -> None:
        if '"script":"cat"' not in job.row.payload:
            await super()._work(job)
            return
        job_id, attempt = job.row.job_id, job.row.attempt
        done = await self._do_files(job, Attempt(job_id, attempt))
        self.network.world.say(f"{self.name} ended {job_id[-6:]} attempt {attempt}: {short(done)}")
        self.held.pop((job_id, attempt), None)

    async def _do_files(self, job: Any, attempt: Attempt) -> Any:
        """Do the work of an attempt; return the answer to its end, or the refusal of a step."""
        a, b, c, d = self.network.world.numbers(self.name, *attempt)

        async def start(market: Any) -> bool:
            await market.attempt_reports.started(await self._device(market), *attempt)
            return True

        began = await self.insist("start", start)
        if began is not True and not self.plan.lies:
            return began
        for each in (*job.files.inputs, *filter(None, [job.files.checkpoint])):
            got = await self.insist("fetch", partial(self._fetch, attempt, each.artifact_id))
            if isinstance(got, MarketError):
                return got
        sizes = {"out": int(30_000 * a**4), "err": int(3_000 * b**4)}
        rest = dict(sizes)
        if job.files.checkpoint is not None or b"checkpoint" in job.payload:
            for turn in range(1 + int(2 * c)):
                await self._write_log(attempt, {key: size // 2 for key, size in sizes.items()})
                await self._leave(attempt, CHECKPOINT, int(CONTENTS * d) + turn)
        is_early = d < 0.1  # the end is reported before the rest of the log
        logged = None if is_early else await self._write_log(attempt, rest)
        if isinstance(logged, MarketError):
            return logged
        for turn in range(int(5 * c)):
            await self._leave(attempt, OUTPUT, int(CONTENTS * b) + turn)
        await asyncio.sleep(self.plan.seconds * d)
        return await self._end(attempt, sizes, is_early=is_early)

    async def _end(self, attempt: Attempt, sizes: dict[str, int], *, is_early: bool) -> Any:
        result = "42"

        async def end(market: Any) -> bool:
            device = await self._device(market)
            await market.jobs.complete(
                device,
                attempt.job_id,
                result,
                attempt=attempt.number,
                ending=Ending(log_bytes=sizes),
            )
            return True

        for _ in range(5):
            ended = await self.insist("end", end)
            if not isinstance(ended, MarketError) or ended.code is not Code.LOG_INCOMPLETE:
                break
            if not (self._books.folder.has_lost or is_early):
                self._books.fail(f"the log of {attempt.job_id[-6:]} was taken, and is incomplete")
            await self._write_log(attempt, sizes)
        if ended is True:
            self._records.complete(attempt.job_id, attempt.number, result)
            self._books.accepted[attempt] = sizes
        return ended

    async def _fetch(self, attempt: Attempt, artifact_id: str, market: Any) -> bool:
        """Fetch a file; fail if the current attempt does not get it."""
        try:
            row = await market.artifacts.find_for_device(await self._device(market), artifact_id)
            self._books.compare(row, await fetched(market, row))
        except MarketError:
            if self._books.rows(
                _CURRENT, id=attempt.job_id, attempt=attempt.number, device=self.name
            ) and self._books.rows(
                "SELECT 1 FROM job_inputs WHERE artifact_id = :id", id=artifact_id
            ):
                self._books.fail(f"{self.name} cannot fetch {artifact_id[-6:]}")
            raise
        return True

    async def _leave(self, attempt: Attempt, kind: Any, number: int) -> Any:
        """Send a file of an attempt."""

        async def announce(market: Any, new: NewArtifact) -> Any:
            device = await self._device(market)
            try:
                return await market.artifacts.announce_for_job(device, *attempt, kind, new)
            except BlobError as error:
                raise RequestError(str(error)) from error

        async def find(market: Any, artifact_id: str) -> Any:
            device = await self._device(market)
            return await market.artifacts.find_sent_by(device, artifact_id), device

        return await self.send(number % CONTENTS, announce, find)

    async def _write_log(self, attempt: Attempt, sizes: dict[str, int]) -> Any:
        """Write both streams up to these sizes; return a refusal."""
        for stream, size in sizes.items():
            at = self._books.logged.get((*attempt, stream), 0)
            while at < size:
                a, b, _, _ = self.network.world.numbers(self.name, *attempt, stream, at)
                end = min(size, at + 1 + int(8_000 * a * a))
                if b < 0.1:
                    at = max(0, at - 50)  # it was killed, and repeats itself
                append = partial(self._append, attempt, stream, at, end)
                appended = await self.insist("append", append)
                if appended is None or isinstance(appended, MarketError):
                    if appended is not None and appended.code is Code.TOO_BUSY:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    return appended
                self._books.appended(attempt, stream, at, size, appended.offset)
                if appended.is_full:
                    if not self._books.folder.is_small:
                        self._books.fail("a log is full, and the disk has room")
                    break
                at = appended.offset
                await asyncio.sleep(min(appended.wait_seconds, 5.0))
        return None

    async def _append(self, attempt: Attempt, stream: str, at: int, end: int, market: Any) -> Any:
        device = await self._device(market)
        world = self.network.world
        a, b, _, _ = world.numbers(self.name, *attempt, stream, at, world.now)

        async def pieces() -> AsyncIterator[bytes]:
            data = log_text(*attempt, stream, at, end)
            middle = int(a * len(data))
            yield data[:middle]
            await asyncio.sleep(0.02 * b)
            if b < 0.05:
                raise RequestError("the connection broke")
            yield data[middle:]

        return await market.logs.append(device, attempt, stream, at, pieces())
