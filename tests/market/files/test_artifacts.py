"""Files of jobs: their owners, numbers and lifetimes, and the files of lost attempts."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.base.clock import Clock
from support.base.waiting import until
from support.market.books import refusal
from support.market.jobs import device_of, on, running, specified, wanted
from support.market.leaving import tools
from support.market.market import Market
from support.market.staff import ROOT
from support.market.staff_money import LIMITS

from market.base.errors import Code, MarketError
from market.erasure import erasing
from market.files.artifacts import (
    CHECKPOINT,
    DAY_SECONDS,
    OUTPUT,
    UPLOADS_MAX,
    UPLOADS_PER_USER_MAX,
    Kind,
    NewArtifact,
    UploadPace,
    checkpoint_of,
    inputs_of,
    require_inputs,
)
from market.files.evidence import APPEAL_SECONDS
from market.money.audit import audit_ledger
from market.staff.money import judging
from proxyctl.protocol.jobspec import Input
from storage.accounts import closures
from storage.blobs.base import Content, Part, Upload
from storage.blobs.local import LocalBlobs
from storage.devices.devices import DeviceRow
from storage.engines.errors import Cause, UnavailableError
from storage.engines.store import Store
from storage.files import artifacts as queries
from storage.files.artifacts import ArtifactRow


@pytest.fixture
async def market(store: Store, clock: Clock, tmp_path: Path) -> AsyncIterator[Market]:
    """The marketplace with a folder for files, on each engine."""
    blobs = LocalBlobs(tmp_path / "work", reserve_bytes=0)
    made = Market(store, clock, blobs)
    yield made
    made.passwords.close()
    await blobs.close()
    report = await audit_ledger(store)
    assert report.passed, report


def new(content: bytes, name: str = "data") -> NewArtifact:
    return NewArtifact(name, hashlib.sha256(content).hexdigest(), len(content))


async def send(market: Market, artifact: ArtifactRow, content: bytes, offset: int = 0) -> None:
    async with market.artifacts.receiving(artifact, offset, len(content)) as receiver:
        await receiver.write(content)


async def upload(market: Market, user: str, content: bytes, name: str = "data") -> ArtifactRow:
    """Send a whole input."""
    announced = await market.artifacts.announce(user, new(content, name))
    if announced.artifact.content_id is None:
        await send(market, announced.artifact, content)
    return await market.artifacts.finish(announced.artifact)


async def deliver(
    market: Market,
    device: DeviceRow,
    job_id: str,
    content: bytes,
    *,
    name: str = "model",
    kind: Kind = OUTPUT,
    attempt: int = 1,
) -> ArtifactRow:
    """Send a whole file of a job."""
    announced = await market.artifacts.announce_for_job(
        device, job_id, attempt, kind, new(content, name)
    )
    if announced.artifact.content_id is None:
        await send(market, announced.artifact, content)
    return await market.artifacts.finish(announced.artifact, device=device)


async def content_of(market: Market, artifact: ArtifactRow) -> bytes:
    content = await market.artifacts.open(artifact)
    assert not isinstance(content, str)
    try:
        return await _all(content)
    finally:
        content.close()


async def _all(content: Content) -> bytes:
    return await content.read(0, content.size_bytes)


async def give(market: Market, user: str, job_id: str, ids: Sequence[str]) -> None:
    await market.store.write(require_inputs, user, job_id, ids)


async def tidy(market: Market, seconds: int = 0) -> None:
    """Let time pass, and the sweeps come by."""
    market.clock.now += seconds
    await market.artifacts.settle()
    await market.artifacts.expire()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


async def test_a_buyer_sends_a_file_and_gets_it_back(market: Market, tmp_path: Path) -> None:
    buyer, other = await market.person(), await market.person()
    announced = await market.artifacts.announce(buyer, new(b"0123456789", "in/data.tar"))
    artifact = announced.artifact
    assert (announced.offset, artifact.kind, artifact.name) == (0, "input", "in/data.tar")
    assert await refusal(market.artifacts.open(artifact)) is Code.ARTIFACT_NOT_FOUND
    await send(market, artifact, b"01234")
    again = await market.artifacts.announce(buyer, new(b"0123456789", "in/data.tar"))
    assert (again.artifact.id, again.offset) == (artifact.id, 5)
    await send(market, artifact, b"56789", 5)
    whole = await market.artifacts.finish(artifact)
    assert whole == await market.artifacts.finish(artifact)  # its answer was lost
    assert await content_of(market, whole) == b"0123456789"
    assert [row.id for row in await market.artifacts.page_of_user(buyer, before="", limit=9)] == [
        artifact.id
    ]
    for attempt in (
        market.artifacts.find(other, artifact.id),
        market.artifacts.delete(other, artifact.id),
    ):
        assert await refusal(attempt) is Code.ARTIFACT_NOT_FOUND
    await market.artifacts.delete(buyer, artifact.id)
    await tidy(market)
    assert names(tmp_path / "work") == []


@pytest.mark.both_engines
async def test_the_same_content_is_on_the_disk_once_and_counts_for_each(
    market: Market, tmp_path: Path
) -> None:
    buyer, other = await market.person(), await market.person()
    first = await upload(market, buyer, b"same")
    # A user that has the file need not send it again; a user that only knows its hash must.
    announced = await market.artifacts.announce(buyer, new(b"same", "copy"))
    assert announced.artifact.content_id == first.content_id
    foreign = await market.artifacts.announce(other, new(b"same"))
    assert (foreign.artifact.content_id, foreign.offset) == (None, 0)
    await send(market, foreign.artifact, b"same")
    theirs = await market.artifacts.finish(foreign.artifact)
    assert theirs.content_id == first.content_id
    await tidy(market)
    assert len(names(tmp_path / "work")) == 1
    await market.artifacts.delete(buyer, first.id)
    await market.artifacts.delete(other, theirs.id)
    await tidy(market)
    assert await content_of(market, announced.artifact) == b"same"
    await market.artifacts.delete(buyer, announced.artifact.id)
    again = await upload(market, other, b"same")  # before the sweep deletes the old one
    await tidy(market)
    assert await content_of(market, again) == b"same"


async def test_the_sent_bytes_must_be_the_announced_ones(market: Market) -> None:
    buyer = await market.person()
    artifact = (await market.artifacts.announce(buyer, new(b"0123456789"))).artifact
    longer = market.artifacts.receiving(artifact, 0, 11)
    with pytest.raises(MarketError, match="More than 10 bytes") as caught:
        await longer.__aenter__()
    assert caught.value.code is Code.ARTIFACT_MISMATCH

    async def overflow() -> None:  # without a declared length
        async with market.artifacts.receiving(artifact, 0, 0) as receiver:
            await receiver.write(b"0123456")
            await receiver.write(b"7890")

    with pytest.raises(MarketError, match="More than 10 bytes"):
        await overflow()
    with pytest.raises(MarketError, match="7 of 10 bytes are stored"):
        await market.artifacts.finish(artifact)
    with pytest.raises(MarketError, match="another SHA-256"):
        await market.artifacts.finish(artifact, sha256="0" * 64)
    await send(market, artifact, b"0123456780")
    with pytest.raises(MarketError, match="the SHA-256 of the received file is"):
        await market.artifacts.finish(artifact)
    assert (await market.artifacts.announce(buyer, new(b"0123456789"))).offset == 0
    async with market.artifacts.receiving(artifact, 0, 10) as receiver:
        assert await refusal(send(market, artifact, b"x")) is Code.TOO_BUSY
        await receiver.write(b"0123456789")
    await market.artifacts.finish(artifact)
    assert market.artifacts.traffic.mismatches == 2


@cases(
    "name", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a\nb", "a\x1b[2Jb", "a\\b", "x" * 256]
)
async def test_a_name_that_is_no_path_below_is_refused(market: Market, name: str) -> None:
    buyer = await market.person()
    with pytest.raises(MarketError) as caught:
        await market.artifacts.announce(buyer, new(b"x", name))
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "name")


async def test_the_stored_bytes_are_bounded(market: Market) -> None:
    market.artifacts.terms = replace(
        market.artifacts.terms,
        file_bytes=10,
        job_bytes=15,
        job_files=3,
        user_bytes=28,
        user_files=5,
    )
    buyer, worker = await market.person(credit="100"), await market.person()
    assert (
        await refusal(market.artifacts.announce(buyer, new(b"x" * 11))) is Code.ARTIFACT_TOO_LARGE
    )
    job_id, device = await running(market, buyer, worker)
    await deliver(market, device, job_id, b"x" * 10, name="a")
    over = deliver(market, device, job_id, b"y" * 6, name="b")
    assert await refusal(over) is Code.ARTIFACT_QUOTA_EXCEEDED
    await deliver(market, device, job_id, b"y" * 5, name="b")
    await deliver(market, device, job_id, b"", name="c")
    over = deliver(market, device, job_id, b"", name="d")
    assert await refusal(over) is Code.ARTIFACT_QUOTA_EXCEEDED
    await upload(market, buyer, b"z" * 10)
    over = upload(market, buyer, b"w" * 4)
    assert await refusal(over) is Code.ARTIFACT_QUOTA_EXCEEDED
    await upload(market, buyer, b"w" * 3)
    with pytest.raises(MarketError, match="5 files are kept"):
        await upload(market, buyer, b"")
    # A continued upload, or a file that is stored already, adds nothing.
    await deliver(market, device, job_id, b"x" * 10, name="a")


@pytest.mark.parametrize(
    "bound", ["file_bytes", "job_bytes", "job_files", "user_bytes", "user_files"]
)
async def test_the_list_of_missing_outputs_has_room_beyond_all_bounds(
    market: Market, bound: str
) -> None:
    market.artifacts.terms = replace(market.artifacts.terms, **{bound: 1})
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await deliver(market, device, job_id, b"x", name="a")
    await deliver(market, device, job_id, b"a list of many", name="left-out.txt")
    rows = await market.artifacts.page_of_job(buyer, job_id, before="", limit=9)
    assert [row.name for row in rows] == ["left-out.txt", "a"]
    # Only that one, and only if it is small and was not sent three times.
    for content in (b"another list", b"the last list"):
        await deliver(market, device, job_id, content, name="left-out.txt")
    if bound != "file_bytes":  # the other bounds hold for it then
        again = deliver(market, device, job_id, b"and again", name="left-out.txt")
        assert await refusal(again) is Code.ARTIFACT_QUOTA_EXCEEDED
    longer = deliver(market, device, job_id, b"x" * 65_537, name="left-out.txt")
    over = deliver(market, device, job_id, b"yy", name="b")
    for each in (longer, over):
        assert await refusal(each) in (Code.ARTIFACT_QUOTA_EXCEEDED, Code.ARTIFACT_TOO_LARGE)


@cases("name", ["C:evil", "out/CON", "...", " ", "a:b", " sp", "sp ", "dot."])
async def test_a_device_sends_no_name_that_some_system_cannot_take(
    market: Market, name: str
) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    with pytest.raises(MarketError) as caught:
        await deliver(market, device, job_id, b"x", name=name)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "name")


async def test_only_the_attempt_that_runs_sends_files(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    stranger = await device_of(market, await market.person())
    announce = market.artifacts.announce_for_job
    for who, attempt, code in (
        (stranger, 1, Code.JOB_NOT_FOUND),
        (device, 2, Code.ATTEMPT_NOT_CURRENT),
    ):
        assert await refusal(announce(who, job_id, attempt, OUTPUT, new(b"x"))) is code
    begun = (await announce(device, job_id, 1, OUTPUT, new(b"begun", "b"))).artifact
    find = market.artifacts.find_sent_by
    assert await refusal(find(stranger, begun.id)) is Code.ARTIFACT_NOT_FOUND
    assert (await find(device, begun.id)).id == begun.id
    sent = await deliver(market, device, job_id, b"sent")
    await send(market, begun, b"begun")
    await market.jobs.fail(device, job_id, "no", attempt=1)
    for late in (
        find(device, begun.id),
        announce(device, job_id, 1, OUTPUT, new(b"late", "c")),
        market.artifacts.finish(begun, device=device),
    ):
        assert await refusal(late) is Code.ATTEMPT_NOT_CURRENT
    # The buyer sees the files for a day, and then they are gone.
    assert len(await market.artifacts.page_of_job(buyer, job_id, before="", limit=9)) == 2
    await tidy(market, DAY_SECONDS - 1)
    assert await content_of(market, await market.artifacts.find(buyer, sent.id)) == b"sent"
    await tidy(market, DAY_SECONDS + 1)
    assert await market.artifacts.page_of_job(buyer, job_id, before="", limit=9) == []
    other = await market.person()
    page = market.artifacts.page_of_job(other, job_id, before="", limit=9)
    assert await refusal(page) is Code.JOB_NOT_FOUND


async def test_a_buyer_does_not_delete_a_file_that_a_device_is_sending(market: Market) -> None:
    """The work would fail by that, and the buyer have the other files for nothing."""
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    announced = await market.artifacts.announce_for_job(
        device, job_id, 1, OUTPUT, new(b"0123456789", "model")
    )
    artifact = announced.artifact
    assert await refusal(market.artifacts.delete(buyer, artifact.id)) is Code.ARTIFACT_NEEDED
    await send(market, artifact, b"0123456789")
    assert await refusal(market.artifacts.delete(buyer, artifact.id)) is Code.ARTIFACT_NEEDED
    await market.artifacts.finish(artifact, device=device)
    assert await refusal(market.artifacts.delete(buyer, artifact.id)) is Code.ARTIFACT_NEEDED

    unfinished = await market.artifacts.announce_for_job(
        device, job_id, 1, OUTPUT, new(b"x", "other")
    )
    await market.jobs.cancel(buyer, job_id)
    for each in (artifact, unfinished.artifact):
        await market.artifacts.delete(buyer, each.id)


async def test_a_buyer_s_slow_uploads_do_not_keep_a_device_from_sending(
    market: Market,
) -> None:
    """The time of the attempt would run out meanwhile, and the work not be paid."""
    market.artifacts.pace = UploadPace(waiting_seconds=0.0)
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    receiving = market.artifacts.receiving
    async with AsyncExitStack() as slow:
        for number in range(UPLOADS_PER_USER_MAX):
            announced = await market.artifacts.announce(buyer, new(b"slow%d" % number))
            await slow.enter_async_context(receiving(announced.artifact, 0, 5))
        sent = await market.artifacts.announce_for_job(device, job_id, 1, OUTPUT, new(b"x"))
        async with receiving(sent.artifact, 0, 1, device=device) as receiver:
            await receiver.write(b"x")
        await market.artifacts.finish(sent.artifact, device=device)


async def test_results_are_kept_for_the_days_that_the_operator_says(
    market: Market, tmp_path: Path
) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    result = await deliver(market, device, job_id, b"result")
    await tidy(market, 100 * DAY_SECONDS)  # the job goes on
    await market.jobs.complete(device, job_id, "done", attempt=1)
    await tidy(market)
    keep = market.artifacts.terms.keep_seconds
    result = await market.artifacts.find(buyer, result.id)
    assert result.expires_at == market.clock.now + keep
    await tidy(market, keep - 1)
    assert await content_of(market, result) == b"result"
    await tidy(market, 1)
    await tidy(market)
    assert names(tmp_path / "work") == []


@pytest.mark.both_engines
async def test_the_files_of_a_disputed_job_stay_until_the_appeal_is_over(
    market: Market, tmp_path: Path
) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    given = await upload(market, buyer, b"given")
    job_id = await specified(market, buyer)
    await give(market, buyer, job_id, [given.id])
    device = await on(market, job_id, worker)
    result = await deliver(market, device, job_id, b"result")
    refused = market.artifacts.delete(buyer, result.id)
    assert await refusal(refused) is Code.ARTIFACT_NEEDED, "its worker has not ended"
    await market.jobs.complete(device, job_id, "done", attempt=1)
    for each in (given, result):
        refused = market.artifacts.delete(buyer, each.id)
        assert await refusal(refused) is Code.ARTIFACT_NEEDED, "a dispute may follow"
    await market.reviews.dispute(buyer, job_id, "an empty file")
    keep = market.artifacts.terms.keep_seconds
    await tidy(market)
    await tidy(market, 2 * keep)
    for each in (given, result):
        refused = market.artifacts.delete(buyer, each.id)
        assert await refusal(refused) is Code.ARTIFACT_NEEDED
    assert await content_of(market, result) == b"result"
    await judging.decide(market.context, ROOT, job_id, judging.Verdict(100), LIMITS, "read it")
    await tidy(market, APPEAL_SECONDS - 1)
    assert await content_of(market, result) == b"result"
    await tidy(market, DAY_SECONDS)  # the sweep puts evidence off by a day
    await market.artifacts.delete(buyer, given.id)
    await tidy(market)
    assert names(tmp_path / "work") == []


async def test_a_file_that_was_sent_again_takes_the_place_of_the_first(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await deliver(market, device, job_id, b"first")
    second = await deliver(market, device, job_id, b"second")
    assert (await deliver(market, device, job_id, b"second")).id == second.id
    await tidy(market)
    rows = await market.artifacts.page_of_job(buyer, job_id, before="", limit=9)
    assert [row.id for row in rows] == [second.id]


async def test_unfinished_uploads_are_deleted_after_a_day(market: Market, tmp_path: Path) -> None:
    buyer = await market.person()
    begun = (await market.artifacts.announce(buyer, new(b"begun"))).artifact
    await send(market, begun, b"beg")
    await tidy(market, DAY_SECONDS - 1)
    assert names(tmp_path / "work") == [begun.id]
    await tidy(market, 1)
    assert names(tmp_path / "work") == []
    assert await refusal(market.artifacts.find(buyer, begun.id)) is Code.ARTIFACT_NOT_FOUND
    assert await refusal(market.artifacts.finish(begun)) is Code.ARTIFACT_MISMATCH


async def test_a_file_that_was_deleted_before_its_upload_leaves_no_bytes(
    market: Market, tmp_path: Path
) -> None:
    """Without a row, the bytes would not be counted or deleted."""
    buyer, other = await market.person(), await market.person()
    deleted = (await market.artifacts.announce(buyer, new(b"deleted"))).artifact
    await market.artifacts.delete(buyer, deleted.id)
    assert await refusal(send(market, deleted, b"deleted")) is Code.ARTIFACT_NOT_FOUND
    assert names(tmp_path / "work") == []

    begun = (await market.artifacts.announce(buyer, new(b"whole"))).artifact
    whole = await upload(market, buyer, b"whole")
    theirs = await upload(market, other, b"whole")  # they share its bytes
    assert await refusal(send(market, begun, b"whole")) is Code.ARTIFACT_MISMATCH
    await market.artifacts.delete(buyer, whole.id)
    assert await refusal(send(market, begun, b"", len(b"whole"))) is Code.ARTIFACT_NOT_FOUND
    assert await refusal(market.artifacts.finish(begun)) is Code.ARTIFACT_NOT_FOUND
    await tidy(market)
    assert await content_of(market, theirs) == b"whole"

    late = (await market.artifacts.announce(buyer, new(b"late"))).artifact
    await send(market, late, b"late")
    finish = market.artifacts._blobs.finish

    async def after_deletion(sent: Upload, etags: list[str]) -> bool:
        is_checked = await finish(sent, etags)
        await market.store.write(queries.delete, late.id)
        return is_checked

    market.artifacts._blobs.finish = after_deletion  # type: ignore[method-assign]
    assert await refusal(market.artifacts.finish(late)) is Code.ARTIFACT_NOT_FOUND
    await tidy(market)
    assert len(names(tmp_path / "work")) == 1  # theirs


@pytest.mark.both_engines
async def test_a_closed_and_an_erased_user_announce_no_file(market: Market) -> None:
    user, now = await market.person(), market.clock.now
    await market.store.write(closures.close, user, waives=False, now=now, due_at=now)
    refused = market.artifacts.announce(user, new(b"mine", "Ada.pdf"))
    assert await refusal(refused) is Code.ACCOUNT_CLOSED
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    # A request that has shown its login waits for the erasure.
    refused = market.artifacts.announce(user, new(b"mine", "Ada.pdf"))
    assert await refusal(refused) is Code.ACCOUNT_CLOSED
    assert await market.artifacts.page_of_user(user, before="", limit=9) == []


async def test_one_network_does_not_send_in_the_place_of_all_users(
    market: Market,
) -> None:
    """A slow sender keeps a slot for hours, and may have several accounts."""
    market.artifacts.pace = UploadPace(waiting_seconds=0.0)
    receiving = market.artifacts.receiving
    async with AsyncExitStack() as slow:
        for _ in range(UPLOADS_PER_USER_MAX):
            announced = await market.artifacts.announce(await market.person(), new(b"slow"))
            await slow.enter_async_context(receiving(announced.artifact, 0, 4, client="192.0.2.7"))
        artifact = (await market.artifacts.announce(await market.person(), new(b"x"))).artifact
        again = slow.enter_async_context(receiving(artifact, 0, 1, client="192.0.2.7"))
        assert await refusal(again) is Code.TOO_BUSY
        async with receiving(artifact, 0, 1, client="198.51.100.7") as receiver:
            await receiver.write(b"x")


async def test_a_slow_sender_gives_way_when_all_slots_are_taken(market: Market) -> None:
    market.artifacts.pace = UploadPace(turn_seconds=0.0)
    receiving = market.artifacts.receiving
    people = [await market.person() for _ in range(UPLOADS_MAX // UPLOADS_PER_USER_MAX)]
    async with AsyncExitStack() as slow:
        receivers = []
        for person in people:
            for number in range(UPLOADS_PER_USER_MAX):
                announced = await market.artifacts.announce(person, new(b"slow%d" % number))
                context = receiving(announced.artifact, 0, 5)
                receivers.append(await slow.enter_async_context(context))
        await receivers[0].write(b"s")  # no upload waits
        artifact = (await market.artifacts.announce(await market.person(), new(b"x"))).artifact
        other = receiving(artifact, 0, 1)
        waiting = asyncio.create_task(slow.enter_async_context(other))
        await until(lambda: market.artifacts._uploads.is_full)
        assert await refusal(receivers[0].write(b"l")) is Code.TOO_BUSY
    assert await asyncio.gather(waiting, return_exceptions=True)


class Elsewhere(LocalBlobs):
    """A store elsewhere, which takes uploads by an address that was signed for an hour."""

    is_elsewhere = True
    late_seconds = 3_600

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.keys: set[str] = set()
        self.dropped: list[Upload] = []

    async def begin(self, upload: Upload) -> str:
        return f"parts of {upload.id}"

    def parts(self, upload: Upload) -> list[Part]:
        return [Part(upload.key, {}, 0, upload.size_bytes)]

    async def finish(self, upload: Upload, etags: list[str]) -> bool:
        return True

    async def drop(self, upload: Upload) -> None:
        self.keys.discard(upload.key)
        self.dropped.append(upload)


async def test_an_upload_elsewhere_after_its_deletion_is_deleted_once_it_has_ended(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    blobs = Elsewhere(tmp_path)
    market = Market(store, clock, blobs)
    buyer = await market.person()
    for is_whole in (False, True):
        announced = await market.artifacts.announce(buyer, new(b"x"))
        (part,) = announced.parts
        blobs.keys.add(part.url)
        if is_whole:
            await market.artifacts.finish(announced.artifact)
        await market.artifacts.delete(buyer, announced.artifact.id)
        blobs.keys.add(part.url)  # the address is still good
        await tidy(market, blobs.late_seconds - 1)
        assert blobs.keys
        await tidy(market, 1)
        assert not blobs.keys
    market.passwords.close()
    await blobs.close()


@pytest.mark.both_engines
async def test_an_upload_is_deleted_with_its_bytes_or_not_at_all(
    store: Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row names the bytes after a deletion that has not scheduled theirs."""
    blobs = Elsewhere(tmp_path)
    market = Market(store, clock, blobs)
    user = await market.person()
    announced = await market.artifacts.announce(user, new(b"x"))
    blobs.keys.add(announced.parts[0].url)

    async def fail(*_: object) -> None:
        raise UnavailableError("away", Cause.SILENT)

    with monkeypatch.context() as patch:
        patch.setattr(queries, "drop_upload", fail)
        with pytest.raises(UnavailableError):
            await market.artifacts.delete(user, announced.artifact.id)
    assert await market.artifacts.find(user, announced.artifact.id) == announced.artifact
    await market.artifacts.delete(user, announced.artifact.id)
    await tidy(market, blobs.late_seconds)
    assert not blobs.keys
    market.passwords.close()
    await blobs.close()


@pytest.mark.both_engines
async def test_an_erasure_ends_uploads_elsewhere(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    blobs = Elsewhere(tmp_path)
    market = Market(store, clock, blobs)
    user, other = await market.person(), await market.person()
    (part,) = (announced := await market.artifacts.announce(user, new(b"x"))).parts
    (theirs,) = (await market.artifacts.announce(other, new(b"x"))).parts
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    blobs.keys |= {part.url, theirs.url}  # the address is still good
    await tidy(market, blobs.late_seconds - 1)
    assert blobs.keys == {part.url, theirs.url}
    await tidy(market, 1)
    assert blobs.keys == {theirs.url}
    assert blobs.dropped == [queries.upload_of(announced.artifact)]
    assert blobs.dropped[0].reference == f"parts of {announced.artifact.id}"
    market.passwords.close()
    await blobs.close()


@pytest.mark.both_engines
async def test_an_erasure_removes_what_was_sent_of_files_that_are_not_whole(
    market: Market, tmp_path: Path
) -> None:
    user = await market.person()
    begun = (await market.artifacts.announce(user, new(b"begun"))).artifact
    await send(market, begun, b"beg")
    renamed = (await market.artifacts.announce(user, new(b"renamed"))).artifact
    await send(market, renamed, b"renamed")
    # The daemon ends before the transaction that makes the artifact whole.
    await market.artifacts._blobs.finish(queries.upload_of(renamed), [])
    assert len(names(tmp_path / "work")) == 2
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    await tidy(market)
    assert names(tmp_path / "work") == []


@pytest.mark.both_engines
async def test_a_job_is_given_whole_files_of_its_buyer_and_keeps_them(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    mine = await upload(market, buyer, b"mine")
    foreign = await upload(market, worker, b"foreign")
    begun = (await market.artifacts.announce(buyer, new(b"begun"))).artifact
    job_id = await market.jobs.create(buyer, wanted())
    for wrong in (foreign.id, begun.id, "0" * 36):
        with pytest.raises(MarketError) as caught:
            await give(market, buyer, job_id, ["", mine.id, wrong])
        assert caught.value.code is Code.INVALID_FIELD
        assert caught.value.field == "payload.inputs[2].artifact_id"
    await market.artifacts.find(buyer, mine.id)
    await give(market, buyer, job_id, ["", mine.id, mine.id])
    given = await market.store.read(
        inputs_of,
        job_id,
        [
            Input("web", url="https://example.com/x", sha256="1" * 64),
            Input("mine", path="in/mine", artifact_id=mine.id, unpack=True),
        ],
    )
    assert [(each.name, each.path, each.unpack) for each in given] == [
        ("web", "web", False),
        ("mine", "in/mine", True),
    ]
    assert (given[0].url, given[0].size_bytes) == ("https://example.com/x", None)
    assert (given[1].artifact_id, given[1].size_bytes, given[1].sha256) == (mine.id, 4, mine.digest)
    device = await device_of(market, worker)
    for_device = market.artifacts.find_for_device
    assert await refusal(for_device(device, mine.id)) is Code.ARTIFACT_NOT_FOUND
    assert await refusal(market.artifacts.delete(buyer, mine.id)) is Code.ARTIFACT_NEEDED
    await market.jobs.accept(device, job_id)
    assert (await for_device(device, mine.id)).id == mine.id
    assert await refusal(for_device(device, begun.id)) is Code.ARTIFACT_NOT_FOUND
    await market.jobs.complete(device, job_id, "", attempt=1)
    assert await refusal(for_device(device, mine.id)) is Code.ARTIFACT_NOT_FOUND
    await tidy(market, 1_000 * DAY_SECONDS)
    await market.artifacts.delete(buyer, mine.id)


async def test_a_result_that_an_open_job_is_given_outlives_its_time(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    result = await deliver(market, device, job_id, b"result")
    await market.jobs.complete(device, job_id, "", attempt=1)
    next_id = await market.jobs.create(buyer, wanted())
    await give(market, buyer, next_id, [result.id])
    await tidy(market)
    await tidy(market, 31 * DAY_SECONDS)
    assert await content_of(market, await market.artifacts.find(buyer, result.id)) == b"result"
    await market.jobs.cancel(buyer, next_id)
    await tidy(market, DAY_SECONDS)
    assert await refusal(market.artifacts.find(buyer, result.id)) is Code.ARTIFACT_NOT_FOUND


async def test_the_newest_whole_checkpoint_is_there_for_the_next_attempt(
    market: Market, tmp_path: Path
) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    assert await market.store.read(checkpoint_of, job_id) is None
    await deliver(market, device, job_id, b"one", name="ckpt", kind=CHECKPOINT)
    market.clock.now += 1
    second = await deliver(market, device, job_id, b"two", name="ckpt", kind=CHECKPOINT)
    begun = await market.artifacts.announce_for_job(
        device, job_id, 1, CHECKPOINT, new(b"three", "ckpt")
    )
    await send(market, begun.artifact, b"thr")
    await tidy(market)
    await market.jobs.fail(device, job_id, "no", attempt=1)
    await tidy(market, 3 * DAY_SECONDS)
    found = await market.store.read(checkpoint_of, job_id)
    assert found is not None
    assert (found.artifact_id, found.sha256, found.size_bytes) == (second.id, second.digest, 3)
    assert len(names(tmp_path / "work")) == 1
    other = await device_of(market, await market.person())
    await market.jobs.accept(other, job_id)
    assert (await market.artifacts.find_for_device(other, second.id)).id == second.id
    assert await refusal(market.artifacts.find_for_device(device, second.id))
    # One that has not changed since need not be sent again.
    same = await market.artifacts.announce_for_job(other, job_id, 2, CHECKPOINT, new(b"two", "c"))
    assert same.artifact.content_id == second.content_id
    await market.jobs.complete(other, job_id, "", attempt=2)
    await tidy(market)
    await tidy(market, market.artifacts.terms.keep_seconds)
    await tidy(market)
    assert names(tmp_path / "work") == []


async def test_a_device_does_not_get_a_file_by_its_hash(market: Market) -> None:
    """Else the hash of a file of the buyer's would be enough to read it as a checkpoint."""
    buyer, worker = await market.person(credit="100"), await market.person()
    secret = await upload(market, buyer, b"secret")
    job_id, device = await running(market, buyer, worker)
    claimed = await market.artifacts.announce_for_job(
        device, job_id, 1, CHECKPOINT, NewArtifact("c", secret.digest, secret.size_bytes)
    )
    assert claimed.artifact.content_id is None


async def test_lost_bytes_are_marked_as_lost(market: Market, tmp_path: Path) -> None:
    buyer = await market.person()
    artifact = await upload(market, buyer, b"gone")
    for path in (tmp_path / "work").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(MarketError, match="Its content is lost") as caught:
        await market.artifacts.open(artifact)
    assert caught.value.code is Code.ARTIFACT_NOT_FOUND


async def test_a_file_that_cannot_be_deleted_holds_up_no_other(
    market: Market, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    buyer = await market.person()
    one, two = await upload(market, buyer, b"one"), await upload(market, buyer, b"two")
    assert one.content_id is not None
    path = tmp_path / "work" / one.content_id
    path.unlink()
    path.mkdir()  # os.unlink cannot delete it
    await market.artifacts.delete(buyer, one.id)
    await market.artifacts.delete(buyer, two.id)
    await tidy(market)
    assert names(tmp_path / "work") == []
    assert "cannot be deleted" in caplog.text
    path.rmdir()
    await tidy(market, 400)
