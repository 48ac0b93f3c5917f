"""Logs in the marketplace, on both engines: permitted writers, kept bytes, and their cost."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.base.generators import watched
from support.base.waiting import until
from support.database.statements import counted
from support.market.books import refusal
from support.market.jobs import device_of, on, running, specified
from support.market.market import Market
from support.market.staff import ROOT
from support.market.staff_money import LIMITS

from market.base.bus import ATTEMPTS, GONE, WAITING, Bus, Topic
from market.base.errors import Code
from market.base.sweeping import PUT_OFF_SECONDS
from market.files.evidence import APPEAL_SECONDS
from market.logs.logs import (
    CHECK_SECONDS,
    CHUNK_MAX_BYTES,
    FULL,
    READ_LEAST_BYTES,
    Appended,
    Began,
    Idle,
    Logs,
    LogTerms,
    Over,
    ReadPace,
    Wrote,
)
from market.logs.readers import HANDED_MAX_BYTES
from market.logs.removal import EVIDENCE_TIMES
from market.staff.money import judging
from storage.blobs.base import BlobError
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.logs import logs as queries
from storage.logs.files import Attempt, LogFiles, Part

MIB = 1024 * 1024
DAY = 86_400
# 10 GB with LOG_TEST_BYTES=10000000000: the use of memory does not depend on it.
STREAMED_BYTES = int(os.environ.get("LOG_TEST_BYTES", 64 * MIB))
TERMS = LogTerms(keep_bytes=MIB, bytes_per_second=0, keep_seconds=30 * DAY)

Make = Callable[..., Logs]


def _ignored(job_id: str, attempt: int) -> None:
    """Do nothing with a sign of life."""


@pytest.fixture
async def make(market: Market, tmp_path: Path) -> AsyncIterator[Make]:
    """Make the logs of a daemon on the market's store."""
    made: list[Logs] = []

    def of_daemon(
        *,
        renewed: Callable[[str, int], None] = _ignored,
        is_shared: bool = False,
        bus: Bus | None = None,
        **changes: object,
    ) -> Logs:
        terms = replace(TERMS, folder=tmp_path / "logs", **changes)
        context = market.context if bus is None else replace(market.context, bus=bus)
        logs = Logs(context, terms, market.clock.steady, renewed, is_shared=is_shared)
        made.append(logs)
        return made[-1]

    yield of_daemon
    for each in made:
        each.close()


@pytest.fixture
def logs(make: Make) -> Logs:
    return make()


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def append(
    logs: Logs,
    device: DeviceRow,
    job_id: str,
    offset: int,
    *data: bytes,
    number: int = 1,
    stream: str = "out",
) -> Appended:
    return await logs.append(device, Attempt(job_id, number), stream, offset, pieces(*data))


async def text_of(logs: Logs, user: str, job_id: str, number: int | None = None) -> bytes:
    return (await logs.read(user, job_id, number, "out", 0, 10 * MIB)).data


async def job_ids(market: Market) -> list[str]:
    async def read(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT job_id FROM job_logs")

    return await market.store.read(read)


async def rows(market: Market) -> list[tuple[int, int]]:
    """Return the attempt and the size of each log that has a row."""

    async def read(tx: Transaction) -> list[tuple[int, int]]:
        return await tx.all(
            lambda *row: row, "SELECT attempt, kept_bytes FROM job_logs ORDER BY began_at, attempt"
        )

    return await market.store.read(read)


async def test_a_busy_log_costs_the_database_a_question_a_second(
    market: Market, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    renewals: list[tuple[str, int]] = []
    logs = make(renewed=lambda *attempt: renewals.append(attempt))
    reads, writes = (counted(market.store, each, monkeypatch) for each in ("read", "write"))
    for number in range(50):
        assert (await append(logs, device, job_id, number, b"x")).offset == number + 1
    assert (len(reads), len(writes)) == (0, 1)
    market.clock.now += int(CHECK_SECONDS)
    await append(logs, device, job_id, 50, b"x")
    await append(logs, device, job_id, 51, b"x")
    assert (len(reads), len(writes)) == (1, 1)
    assert renewals == [(job_id, 1)] * 2


async def test_the_first_line_of_work_that_has_begun_waits_for_no_transaction(
    market: Market, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    monkeypatch.setattr(market.attempt_reports, "_logs", logs)
    await market.attempt_reports.started(device, job_id, 1)
    units = [counted(market.store, each, monkeypatch) for each in ("read", "write")]
    assert (await append(logs, device, job_id, 0, b"hello")).offset == 5
    assert units == [[], []]
    await market.attempt_reports.started(device, job_id, 1)  # it has not heard the answer
    assert (await append(logs, device, job_id, 5, b" again")).offset == 11
    part = await logs.read(buyer, job_id, None, "out", 0, 100)
    assert part.data == b"hello again"


async def test_work_that_begins_again_at_a_restarted_daemon_keeps_its_log(
    market: Market, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    for number, offset in enumerate((0, 5)):
        monkeypatch.setattr(market.attempt_reports, "_logs", logs := make())
        await market.attempt_reports.started(device, job_id, 1)
        answer = await append(logs, device, job_id, offset, b"hello")
        assert answer.offset == offset + 5, number


async def test_an_attempt_that_is_over_writes_no_more_and_is_never_mixed_with_another(
    market: Market, logs: Logs
) -> None:
    buyer, worker, other = (
        await market.person(credit="20"),
        await market.person(),
        await market.person(),
    )
    job_id, device = await running(market, buyer, worker)
    await append(logs, device, job_id, 0, b"first")
    await market.jobs.fail(device, job_id, "broken")
    market.clock.now += int(CHECK_SECONDS)
    assert await refusal(append(logs, device, job_id, 5, b"x")) is Code.ATTEMPT_NOT_CURRENT
    second = await device_of(market, other)
    await market.jobs.accept(second, job_id)
    assert (await append(logs, second, job_id, 0, b"second", number=2)).offset == 6
    assert await refusal(append(logs, device, job_id, 5, b"x")) is Code.ATTEMPT_NOT_CURRENT
    assert (await append(logs, second, job_id, 6, b"!", number=2)).offset == 7
    assert await text_of(logs, buyer, job_id, 1) == b"first"
    assert await text_of(logs, buyer, job_id) == b"second!"
    await market.jobs.cancel(buyer, job_id)
    late = append(logs, second, job_id, 7, b"x", number=2)
    assert await refusal(late) is Code.ATTEMPT_NOT_CURRENT
    stranger = await device_of(market, other)
    assert await refusal(append(logs, stranger, job_id, 0, b"x")) is Code.JOB_NOT_FOUND


@pytest.mark.parametrize("topic", [ATTEMPTS, WAITING, GONE])
async def test_readers_look_at_a_job_again_when_an_attempt_may_have_changed(
    market: Market, logs: Logs, topic: Topic[str]
) -> None:
    with logs.readers.reading("a", "user") as mine, logs.readers.reading("b", "user") as other:
        for reader in (mine, other):
            reader.streams.clear()
            reader.is_stale = False
        market.context.bus.publish(topic, ["a"])
        assert await mine.wait(0)
        assert (mine.streams, mine.is_stale) == (set(), True)
        assert not await other.wait(0)


async def test_a_restarted_daemon_knows_its_logs(market: Market, make: Make) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await append(make(), device, job_id, 0, b"before")
    logs = make()
    assert (await append(logs, device, job_id, 100, b"a gap")).offset == 6
    assert (await append(logs, device, job_id, 4, b"re after")).offset == 12
    assert await text_of(logs, buyer, job_id) == b"before after"
    assert await logs.stored(job_id, 1) == {"out": 12, "err": 0}


async def test_stored_bytes_are_durable(
    market: Market, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await append(logs, device, job_id, 0, b"x" * (MIB + 1))
    await append(logs, device, job_id, 0, b"y", stream="err")
    fsync, synced = os.fsync, []

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    assert await logs.stored(job_id, 1) == {"out": MIB + 1, "err": 1}
    assert {"out-000000000000", "out-000000000001", "err-000000000000"} <= set(synced)
    assert {f"{job_id}-1", job_id[-2:], "logs"} <= set(synced)  # and the names of the files


async def test_a_disk_that_fails_ends_the_log_and_says_so(
    market: Market, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    logs = make()
    await append(logs, device, job_id, 0, b"kept")
    folder = next((tmp_path / "logs").glob(f"*/{job_id}-1"))
    next(folder.iterdir()).unlink()
    folder.rmdir()
    folder.touch()  # no folder any more
    answer = await append(logs, device, job_id, 4, b"lost")
    assert (answer.offset, answer.is_full) == (8, True)
    assert (await append(logs, device, job_id, 8, b"lost")).is_full
    assert await logs.stored(job_id, 1) == {"out": FULL, "err": FULL}
    assert (
        len(
            [each for each in caplog.records if "its log is not stored any further" in each.message]
        )
        == 1
    )


@pytest.mark.both_engines
async def test_two_daemons_write_one_log(market: Market, make: Make) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    one, other = make(is_shared=True), make(is_shared=True)
    content = bytes(range(256)) * 4096 * 4
    offset = 0
    while offset < len(content):
        chunk = content[offset : offset + 300_001]
        first = await append(one, device, job_id, offset, chunk)
        again, both = await asyncio.gather(
            append(other, device, job_id, offset, chunk),
            append(one, device, job_id, offset, chunk + content[first.offset :][:1000]),
        )
        assert again.offset <= both.offset
        offset = both.offset
    for logs in (one, other):
        assert await logs.stored(job_id, 1) == {"out": len(content), "err": 0}
        assert await text_of(logs, buyer, job_id) == content[:MIB]
        tail = await logs.read(buyer, job_id, None, "out", MIB, 10 * MIB)
        assert tail.offset in (2 * MIB, 3 * MIB)
        assert tail.data == content[tail.offset :]


async def test_old_logs_go_and_a_users_oldest_beyond_their_bound(
    market: Market, make: Make, tmp_path: Path
) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    logs = make(bytes_per_user=2_500)
    jobs = []
    for _ in range(3):
        job_id, device = await running(market, buyer, worker)
        await append(logs, device, job_id, 0, b"x" * 1_000)
        jobs.append((job_id, device))
    assert await logs.keeper.sweep() == 0
    for job_id, device in jobs:
        await market.jobs.complete(device, job_id, "")
        market.clock.now += 1
        await logs.keeper.sweep()
    assert await rows(market) == [(1, 1_000), (1, 1_000)]
    assert await market.store.read(queries.kept_bytes, buyer) == 2_000
    assert await text_of(logs, buyer, jobs[0][0]) == b""
    assert await text_of(logs, buyer, jobs[2][0]) == b"x" * 1_000
    running_job, device = await running(market, buyer, worker)
    await append(logs, device, running_job, 0, b"y")
    market.clock.now += 30 * DAY + 1
    assert await logs.keeper.sweep() == 2
    assert await rows(market) == [(1, 0)]
    assert await market.store.read(queries.kept_bytes, buyer) == 0
    assert await text_of(logs, buyer, running_job) == b"y"
    assert [each.name for each in (tmp_path / "logs").glob("*/*")] == [f"{running_job}-1"]


@pytest.mark.both_engines
async def test_the_log_of_a_disputed_job_stays_until_the_appeal_is_over(
    market: Market, make: Make
) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    logs = make(bytes_per_user=400)
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)
    await append(logs, device, job_id, 0, b"x" * 1_000)
    await market.jobs.complete(device, job_id, "")
    assert await logs.keeper.sweep() == 0, "a dispute may follow"
    await market.reviews.dispute(buyer, job_id, "an empty file")
    assert await logs.keeper.sweep() == 0, "not even above the bound of its user"
    market.clock.now += 40 * DAY
    assert await logs.keeper.sweep() == 0
    await judging.decide(market.context, ROOT, job_id, judging.Verdict(0), LIMITS, "read it")
    market.clock.now += APPEAL_SECONDS - 1
    assert await logs.keeper.sweep() == 0
    assert await text_of(logs, buyer, job_id) == b"x" * 1_000
    market.clock.now += 1
    assert await logs.keeper.sweep() == 1


@pytest.mark.both_engines
async def test_evidence_has_a_bound_too(market: Market, make: Make) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    logs = make(bytes_per_user=1_000 // EVIDENCE_TIMES)
    jobs = []
    for _ in range(2):
        jobs.append(await specified(market, buyer))
        device = await on(market, jobs[-1], worker)
        await append(logs, device, jobs[-1], 0, b"x" * 1_000)
        await market.jobs.complete(device, jobs[-1], "")
        await market.reviews.dispute(buyer, jobs[-1], "an empty file")
        market.clock.now += 1
    assert await logs.keeper.sweep() == 1
    assert await rows(market) == [(1, 1_000)]
    assert await text_of(logs, buyer, jobs[1]) == b"x" * 1_000


async def test_a_download_has_the_kept_bytes_or_breaks_off(market: Market, logs: Logs) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    content = os.urandom(6 * MIB)
    for offset in range(0, len(content), CHUNK_MAX_BYTES):
        await append(logs, device, job_id, offset, content[offset:][:CHUNK_MAX_BYTES])
    _, file = await logs.content(buyer, job_id, None, "out")
    line = b"\n[%d bytes of this log are not kept]\n" % (3 * MIB)
    whole = content[:MIB] + line + content[4 * MIB :]
    assert file.size_bytes == len(whole)
    for offset, size in ((0, len(whole)), (MIB - 5, 10), (MIB + 3, 4), (len(whole) - 1, 10)):
        assert await file.read(offset, size) == whole[offset : offset + size]
    assert await file.read(len(whole), 10) == b""
    await append(logs, device, job_id, len(content), *[b"z" * MIB] * 1)
    await append(logs, device, job_id, len(content) + MIB, *[b"z" * MIB] * 1)
    await append(logs, device, job_id, len(content) + 2 * MIB, b"z")
    with pytest.raises(BlobError, match="cut out meanwhile"):
        await file.read(MIB + len(line), MIB)


async def test_a_download_of_other_bytes_has_another_version(market: Market, logs: Logs) -> None:
    """Or a client that goes on with a part of the log would put two logs together."""
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    files = []
    for number in range(7):
        await append(logs, device, job_id, number * MIB, bytes([number]) * MIB)
        files.append((await logs.content(buyer, job_id, None, "out"))[1])
    assert files[-1].size_bytes == files[-2].size_bytes
    assert len({file.version for file in files}) == len(files)


@pytest.mark.both_engines
async def test_a_log_that_cannot_be_removed_keeps_no_other(
    market: Market, logs: Logs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    buyer, worker = await market.person(credit="50"), await market.person()
    for _ in range(2):
        job_id, device = await running(market, buyer, worker)
        await append(logs, device, job_id, 0, b"x")
        await market.jobs.complete(device, job_id, "")
        await logs.keeper.sweep()
        market.clock.now += 1
    (first,) = (tmp_path / "logs").glob(f"*/{min(await job_ids(market))}-1")
    (first / "out-folder").mkdir()
    market.clock.now += 30 * DAY
    assert await logs.keeper.sweep() == 1
    assert f"the log {first.name} cannot be removed" in caplog.text
    assert await rows(market) == [(1, 1)]
    (first / "out-folder").rmdir()
    market.clock.now += PUT_OFF_SECONDS
    assert await logs.keeper.sweep() == 1
    assert await rows(market) == []


@pytest.mark.both_engines
async def test_a_reader_at_another_daemon_gets_the_last_bytes(market: Market, make: Make) -> None:
    """The end of a job is published immediately, the last write to its log a moment later."""
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    bus = Bus()
    here, there = make(is_shared=True), make(is_shared=True, bus=bus)
    await append(here, device, job_id, 0, b"first")
    events = there.follow(buyer, job_id, position=None, number=None)
    async with aclosing(events):
        assert [type(await anext(events)) for _ in range(2)] == [Began, Wrote]
        hears = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await append(here, device, job_id, 5, b"last")
        await market.jobs.complete(device, job_id, "")
        bus.publish(ATTEMPTS, [job_id])
        event = await hears
        assert isinstance(event, Wrote)
        assert event.data == b"last"
        assert isinstance(await anext(events), Over)


async def test_a_reader_that_leaves_in_a_log_leaves_nothing_open(
    market: Market, logs: Logs
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await append(logs, device, job_id, 0, b"first")
    left_open: list[str] = []
    with watched(left_open.append):
        events = logs.follow(buyer, job_id, position=None, number=None)
        assert [type(await anext(events)) for _ in range(2)] == [Began, Wrote]
        await events.aclose()
    assert left_open == []


async def test_a_reader_waits_without_a_look_while_the_job_waits_for_another_attempt(
    market: Market, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await append(logs, device, job_id, 0, b"first")
    await market.job_sweeper.take_back_attempt(job_id, 1, "gone")
    logs.pace = ReadPace(look_seconds=0.2)
    looks: list[str] = []
    read = LogFiles.read

    def count(files: LogFiles, attempt: Attempt, stream: str, offset: int, most: int) -> Part:
        looks.append(stream)
        return read(files, attempt, stream, offset, most)

    monkeypatch.setattr(LogFiles, "read", count)
    events = logs.follow(buyer, job_id, position=None, number=None)
    async with aclosing(events), asyncio.timeout(20):
        assert [type(await anext(events)) for _ in range(2)] == [Began, Wrote]
        assert isinstance(await anext(events), Idle)
        assert len(looks) == 3  # one finds bytes, and one of each stream finds its end


async def test_a_small_write_reaches_its_readers_without_a_look_at_the_disk(
    market: Market, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    looks: list[int] = []
    read = LogFiles.read

    def count(files: LogFiles, attempt: Attempt, stream: str, offset: int, most: int) -> Part:
        part = read(files, attempt, stream, offset, most)
        looks.append(offset)
        return part

    def has_looked(times: int) -> bool:
        return len(looks) == times

    monkeypatch.setattr(LogFiles, "read", count)
    events = logs.follow(buyer, job_id, position=None, number=None)
    async with aclosing(events):
        assert isinstance(await anext(events), Began)
        offset = 0
        for written, streams in ((b"first", 2), (b"x" * (HANDED_MAX_BYTES + 1), 1), (b"last", 1)):
            looks.clear()
            reads = asyncio.ensure_future(anext(events))
            await until(partial(has_looked, streams))  # it has found nothing new
            looks.clear()
            await append(logs, device, job_id, offset, written)
            event = await reads
            assert isinstance(event, Wrote)
            assert (event.offset, event.data) == (offset, written)
            assert looks == ([] if len(written) <= HANDED_MAX_BYTES else [offset])
            offset += len(written)
        # A reader that is behind finds the bytes of both writes on the disk.
        await append(logs, device, job_id, offset, b"a")
        await append(logs, device, job_id, offset + 1, b"b")
        event = await anext(events)
        assert isinstance(event, Wrote)
        assert event.data == b"ab"


@pytest.mark.parametrize("readers", [1, 32])
async def test_events_end_with_lines_and_are_smaller_where_many_read(
    market: Market, logs: Logs, readers: int
) -> None:
    logs.pace = ReadPace(total_bytes=64 * 1024)
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    log = b"".join(b"this is line %d\n" % number for number in range(10_000))
    log += b"x" * 100_000 + b"\nlast"
    await append(logs, device, job_id, 0, log)
    await market.jobs.complete(device, job_id, "")
    most = max(64 * 1024 // readers, READ_LEAST_BYTES)
    with ExitStack() as others:
        for _ in range(readers - 1):
            others.enter_context(logs.readers.reading(job_id, "another"))
        events = logs.follow(buyer, job_id, position=None, number=1)
        data = [event.data async for event in events if isinstance(event, Wrote)]
    assert b"".join(data) == log
    assert max(map(len, data)) <= most
    whole = [each for each in data if each.startswith(b"this")]
    assert all(each.endswith(b"\n") for each in whole[:-1])


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_memory_does_not_grow_with_a_log(market: Market, logs: Logs, tmp_path: Path) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    chunk = os.urandom(CHUNK_MAX_BYTES)
    part, size = CHUNK_MAX_BYTES // 16, 0

    async def come() -> AsyncIterator[bytes]:
        for start in range(0, CHUNK_MAX_BYTES, part):
            yield bytes(memoryview(chunk)[start : start + part])

    attempt = Attempt(job_id, 1)
    size = (await logs.append(device, attempt, "out", 0, come())).offset
    peaks = []
    for end in (STREAMED_BYTES // 2, STREAMED_BYTES):
        tracemalloc.start()
        try:
            while size < end:
                size = (await logs.append(device, attempt, "out", size, come())).offset
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # Another thread of the tests may allocate for itself in one of the halves.
    assert min(peaks) < 2 * MIB, peaks
    assert size == (await logs.stored(job_id, 1))["out"]
    on_disk = sum(each.stat().st_size for each in tmp_path.rglob("out-*"))
    assert on_disk <= 3 * MIB
