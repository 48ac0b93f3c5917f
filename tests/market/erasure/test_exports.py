"""An export has the rows and files of one user, without secrets and names of the staff."""

import asyncio
import io
import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.base.cases import cases
from support.market.books import refusal
from support.market.exits import exit_device
from support.market.jobs import on, specified
from support.market.leaving import MARKER, person
from support.market.market import Market
from support.market.staff import ROOT
from support.market.staff_money import LIMITS

from market.base.errors import Code, MarketError
from market.erasure.acts import OwnActs
from market.erasure.exports import (
    AT_ONCE_MAX,
    DOWNLOADS_MAX,
    KEPT_SECONDS,
    PAUSE_SECONDS,
    RETRY_SECONDS,
    ExportBounds,
    ExportPlace,
    Exports,
    safe_name,
)
from market.money.money import GB
from market.staff import rule_stops
from market.staff.abuse import exit_use, rule_tickets, tickets
from market.staff.abuse.exit_use import Destination, Found, Question, Use
from market.staff.abuse.tickets import Outcome, State
from market.staff.cases import clawing
from market.staff.finding import history
from market.staff.money import judging
from storage.blobs.base import BlobError, FullError
from storage.engines.store import Transaction
from storage.erasure import erasing
from storage.logs.files import Attempt, LogFiles


async def archive(market: Market, user: str, export_id: str) -> zipfile.ZipFile:
    """Download an export."""
    content = await market.leaving.exports.open(user, export_id)
    try:
        data = await content.read(0, content.size_bytes)
    finally:
        content.close()
    return zipfile.ZipFile(io.BytesIO(data))


def rows(read: zipfile.ZipFile, table: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in read.read(f"tables/{table}.jsonl").splitlines()]


@pytest.mark.both_engines
async def test_an_export_has_the_users_rows_and_no_secret(market: Market) -> None:
    who = await person(market)
    asked = await market.leaving.exports.ask(who.id)
    read = await archive(market, who.id, asked.id)
    assert read.testzip() is None
    assert set(read.namelist()) == {
        "README.txt",
        *(f"tables/{each}.jsonl" for each in erasing.exported_tables()),
    }
    [user] = rows(read, "users")
    assert (user["id"], user["username"]) == (who.id, MARKER)
    assert "password_hash" not in user
    assert [job["title"] for job in rows(read, "jobs")] == [MARKER, MARKER]
    [note] = [row for row in rows(read, "staff_log") if row["action"] == "user.note"]
    assert not {"staff_id", "unix_user", "role"} & set(note)
    text = b"".join(read.read(name) for name in read.namelist()).decode()
    assert "argon2" not in text
    assert "person1@example.com" not in text
    assert await market.store.read(_secrets_in, text) == []


async def export_of(market: Market, user: str) -> zipfile.ZipFile:
    """Ask for an export of a user, and download it."""
    return await archive(market, user, (await market.leaving.exports.ask(user)).id)


@pytest.mark.both_engines
async def test_an_exits_owner_gets_neither_the_page_of_a_check_nor_a_reason_for_the_staff(
    market: Market,
) -> None:
    page = "https://canary.example/logo.png: body of 7 bytes instead of 9"
    device = await exit_device(market)
    await market.exit_canaries.bar(device.id, "content", page)
    await clawing.claw_back(market.context, ROOT, LIMITS, device.id, "colludes with ada")
    read = await export_of(market, device.owner)
    [finding] = rows(read, "exit_canaries")
    assert finding["kind"] == "content"
    events = [each["event"] for each in rows(read, "exit_consents")]
    assert sorted(map(str, events)) == ["barred", "barred", "given"]
    assert words_of(read, ["canary.example", "colludes"]) == []


def words_of(read: zipfile.ZipFile, words: Iterable[str]) -> list[str]:
    """Return those of some words that an export has."""
    text = b"".join(read.read(name) for name in read.namelist()).decode()
    return [each for each in words if each in text]


@pytest.mark.both_engines
async def test_neither_side_of_a_dispute_exports_what_the_other_said_to_the_staff(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    await market.jobs.complete(await on(market, job_id, worker), job_id, "the result")
    await market.reviews.dispute(buyer, job_id, "claim-of-buyer")
    await market.answers.answer(worker, job_id, "answer-of-worker")
    await judging.decide(
        market.context, ROOT, job_id, judging.Verdict(50), LIMITS, "reason-for-both"
    )
    await market.appeals.appeal(buyer, job_id, "appeal-of-buyer")
    await market.appeals.appeal(worker, job_id, "appeal-of-worker")
    said = {
        buyer: ["claim-of-buyer", "appeal-of-buyer"],
        worker: ["answer-of-worker", "appeal-of-worker"],
    }
    both = [*said[buyer], *said[worker], "reason-for-both"]
    for side in (buyer, worker):
        read = await export_of(market, side)
        assert words_of(read, both) == [*said[side], "reason-for-both"]
        [review] = rows(read, "job_reviews")
        assert (review["job_id"], review["state"]) == (job_id, "upheld")
        assert review["reason"] == ("claim-of-buyer" if side == buyer else None)


@pytest.mark.both_engines
async def test_a_user_learns_of_a_halt_and_of_no_complaint_or_case(market: Market) -> None:
    user = await market.person(usd="20")
    session = (await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)).session_id
    at, context = market.clock.now, market.context
    scan = rule_tickets.Found("scan", session, at, {"port": 22, "targets": 231})
    stopped = await rule_stops.stop(context, scan, 600)
    assert stopped is not None
    assert stopped.ticket is not None
    use = Use(session, "d", at, at + 5, "tcp", 22, 0, Destination.EQUAL, 1, 2, "ended")

    async def used(_: Question) -> Found:
        return Found([use], ())

    asked = Question("192.0.2.1", at, "203.0.113.9", 22)
    for ticket in (None, stopped.ticket):
        await exit_use.look_up(context, ROOT, asked, ticket, used)
    for state in (State.CONTACTED, State.ANSWERED, State.LEGAL):
        await tickets.move(context, ROOT, stopped.ticket, state, "an authority asks")
    await tickets.close(context, ROOT, stopped.ticket, Outcome.CUSTOMER_WARNED, "the end")
    ticket_acts = {f"ticket.{each}" for each in ("open", "move", "answer", "legal", "close")}
    hidden = {"search.exit", *ticket_acts}
    logged = await history.read(context, ROOT, user=user, limit=50)
    assert {each.action for each in logged} == {"session.halt", *hidden}
    shown = {"session.halt"}
    read = await export_of(market, user)
    assert {each["action"] for each in rows(read, "staff_log")} == shown
    acts = await OwnActs(context).page(user, limit=50)
    assert {each.row.action for each in acts} == shown
    assert words_of(read, ["an authority asks", "ticket.", "203.0.113.9"]) == []


async def _secrets_in(tx: Transaction, text: str) -> list[str]:
    found = []
    for sql in (
        "SELECT key_hash FROM api_keys",
        "SELECT token_hash FROM devices",
        "SELECT password_hash FROM bandwidth_sessions",
        "SELECT sealed_secret FROM webhook_endpoints",
    ):
        found += [each for each in await tx.all(str, sql) if each in text]
    return found


@pytest.mark.both_engines
async def test_pages_of_rows_follow_each_other(market: Market) -> None:
    user = await market.person()
    keys = [{"user_id": user, "id": f"{number:04}"} for number in range(1_203)]

    async def insert(tx: Transaction) -> None:
        table = tx.table("rows", id="TEXT", user_id="TEXT")
        await tx.run(
            "INSERT INTO events (id, user_id, type, data, created_at)"
            f" SELECT id, user_id, 'test.ping', '{{}}', 1 FROM {table}",
            rows=json.dumps(keys),
        )

    await market.store.write(insert)
    asked = await market.leaving.exports.ask(user)
    events = rows(await archive(market, user, asked.id), "events")
    assert [each["id"] for each in events][:1_203] == [each["id"] for each in keys]


async def test_an_export_is_asked_for_once_a_day_and_downloaded_five_times(market: Market) -> None:
    user, other = await market.person(), await market.person()
    exports = market.leaving.exports
    asked = await exports.ask(user)
    assert await refusal(exports.ask(user)) is Code.TOO_MANY_ATTEMPTS
    assert await refusal(exports.open(other, asked.id)) is Code.EXPORT_NOT_FOUND
    for _ in range(DOWNLOADS_MAX):
        content = await exports.open(user, asked.id)
        with pytest.raises(MarketError) as busy:
            await exports.open(user, asked.id)
        assert (busy.value.code, busy.value.retry_after_seconds) == (Code.TOO_BUSY, RETRY_SECONDS)
        content.close()
    assert await refusal(exports.open(user, asked.id)) is Code.EXPORT_NOT_FOUND
    market.clock.now += PAUSE_SECONDS
    again = await exports.ask(user)
    market.clock.now += KEPT_SECONDS
    assert await refusal(exports.open(user, again.id)) is Code.EXPORT_NOT_FOUND


def exports_of(market: Market, place: ExportPlace, **bounds: float) -> Exports:
    given = ExportBounds(**bounds)  # type: ignore[arg-type]
    return Exports(market.context, market.artifacts, market.logs.disk, place, given)


async def test_readers_that_are_slow_keep_no_other_user_from_an_export(
    market: Market, tmp_path: Path
) -> None:
    exports = exports_of(market, ExportPlace(tmp_path / "exports"))
    users = [await market.person() for _ in range(AT_ONCE_MAX + 2)]
    asked = [await exports.ask(user) for user in users]
    *slow, last = [
        await exports.open(user, each.id) for user, each in zip(users, asked, strict=True)
    ]
    assert await last.read(0, 2) == b"PK"
    first = users[0]
    assert await refusal(exports.open(first, asked[0].id)) is Code.TOO_BUSY
    for each in (*slow, last):
        each.close()
    (await exports.open(first, asked[0].id)).close()
    # Making has few slots: of a crowd at the same time, the others are refused.
    results = await asyncio.gather(
        *(exports.open(user, each.id) for user, each in zip(users, asked, strict=True)),
        return_exceptions=True,
    )
    refused = [each for each in results if isinstance(each, MarketError)]
    assert [each.code for each in refused] == [Code.TOO_BUSY] * 2
    for each in results:
        if not isinstance(each, BaseException):
            each.close()
    assert list((tmp_path / "exports").iterdir()) == []


async def test_a_file_is_closed_at_its_deadline(market: Market, tmp_path: Path) -> None:
    exports = exports_of(market, ExportPlace(tmp_path / "exports"), read_seconds=0.01)
    user = await market.person()
    asked = await exports.ask(user)
    content = await exports.open(user, asked.id)

    async def is_over() -> bool:
        try:
            await content.read(0, 1)
        except BlobError as error:
            return "time" in str(error)
        return False

    while not await is_over():
        await asyncio.sleep(0.01)
    again = await exports.open(user, asked.id)
    content.close()  # by the download that broke off: the newer file stays counted
    assert await refusal(exports.open(user, asked.id)) is Code.TOO_BUSY
    again.close()


async def test_an_export_leaves_the_reserve_of_the_disk_free(
    market: Market, tmp_path: Path
) -> None:
    room = os.statvfs(tmp_path)
    full = exports_of(market, ExportPlace(tmp_path / "exports", room.f_blocks * room.f_frsize))
    user = await market.person()
    asked = await full.ask(user)
    with pytest.raises(FullError):
        await full.open(user, asked.id)
    assert list((tmp_path / "exports").iterdir()) == []
    (await exports_of(market, ExportPlace(tmp_path / "exports", 1)).open(user, asked.id)).close()


@pytest.mark.both_engines
async def test_logs_are_in_the_export_within_its_bound(market: Market, tmp_path: Path) -> None:
    who = await person(market)
    files = LogFiles(tmp_path / "logs", keep_bytes=1 << 20)

    async def begin(tx: Transaction) -> str:
        job = await tx.one(
            str, "SELECT id FROM jobs WHERE user_id = :user ORDER BY id", user=who.id
        )
        assert job is not None
        await tx.run(
            "INSERT INTO job_logs (job_id, attempt, user_id, began_at) VALUES (:job, 1, :user, 1)",
            job=job,
            user=who.id,
        )
        return job

    job = await market.store.write(begin)
    files.write(Attempt(job, 1), "out", 0, b"printed\n" * 1000)
    for bound, expected in ((1 << 20, True), (100, False)):
        exports = Exports(
            market.context,
            market.artifacts,
            market.logs.disk.__class__(files),
            bounds=ExportBounds(file_bytes=bound),
        )
        target = io.BytesIO()
        await exports.write(who.id, target)
        read = zipfile.ZipFile(target)
        assert (f"logs/{job}/1.out" in read.namelist()) is expected
        assert (b"Left out" in read.read("README.txt")) is not expected


@cases(
    "name, safe",
    [
        ("../../etc/passwd", "passwd"),
        ("a/b\\..\\c", "b_.._c"),
        ("..", "file"),
        ("", "file"),
        ("C:\\x\0y", "C_x_y"),
        ("\u202egnp.exe", "gnp.exe"),
        ("x" * 500 + ".txt", "x" * 96 + ".txt"),
    ],
)
def test_a_name_in_the_archive_is_harmless(name: str, safe: str) -> None:
    assert safe_name(name) == safe
