"""Files and logs of jobs: buyers send inputs, devices fetch them, send outputs and write logs.

Some uploads break off, some have other bytes than were announced, some disks are full. All bytes
are computed from a number, so that each reader can compare them.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from config.settings import WorkSettings
from market.base.errors import Code, MarketError
from market.events.idempotency import Replayed
from market.files.artifacts import NewArtifact
from market.jobs.postings import NewJob
from market.jobs.specs import Spec
from market.logs.logs import Cut, Idle, Over, Position, Wrote
from market.money.money import Currency
from market.staff.base.roles import Machine
from market.staff.money import judging
from market.staff.money.judging import Verdict
from proxyctl.protocol.jobspec import payload_of, resources_of
from storage.blobs.base import BlobError
from storage.logs.files import Attempt
from tests.sim.clients import RequestError, receipt_of
from tests.sim.folder import Folder
from tests.sim.jobs import CREDIT, RETRY_SECONDS, Actor
from tests.sim.store import Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network

# Of the runs with other actors.
SHARE = 0.15
USERS = 2
CONTENTS = 24
SIZES = (0, 1, 700, 9_000, 45_000, 99_000)
PIECE = 20_000
LOOK_SECONDS = 3.0
WORK = WorkSettings(
    artifact_max_bytes=98_000,
    attempt_artifacts_max=5,
    attempt_artifacts_max_bytes=100_000,
    user_artifacts_max=14,
    user_artifacts_max_bytes=160_000,
    log_bytes_per_second=4_000,
)
LINE = 64
STEPS = (
    *("send", "send", "send", "send", "lie", "part", "job", "job", "job", "job"),
    *("read", "read", "list", "delete", "log", "log", "log"),
)
_ARTIFACTS = "SELECT id, user_id, kind, digest, size_bytes, content_id FROM artifacts"
_DISPUTED = "SELECT DISTINCT job_id FROM job_reviews WHERE state = 'disputed' ORDER BY job_id"
_LOST_INPUTS = """
    SELECT i.artifact_id, i.job_id FROM job_inputs AS i JOIN jobs AS j ON j.id = i.job_id
    LEFT JOIN artifacts AS a ON a.id = i.artifact_id
    WHERE j.status IN ('waiting', 'running') AND a.content_id IS NULL
"""
_OF_USERS = "SELECT user_id, COUNT(*), SUM(size_bytes) FROM artifacts GROUP BY user_id"
_OF_ATTEMPTS = """
    SELECT job_id, attempt, COUNT(*), SUM(size_bytes) FROM artifacts
    WHERE job_id IS NOT NULL GROUP BY job_id, attempt
"""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A buyer of jobs with files.

    Attributes:
        user: the number of the buyer.
        steps: the time, the kind and a number of each action.
    """

    user: int
    steps: tuple[tuple[float, str, int], ...]


@dataclass(frozen=True, slots=True)
class FilesPlan:
    """The files of a run.

    Attributes:
        buyers: the plans of buyers.
        full: from when, and until when, the disk is full; None for never.
    """

    buyers: tuple[FilePlan, ...]
    full: tuple[float, float] | None


def files_of(draw: Random, seconds: float) -> FilesPlan:
    """Return the buyers of jobs with files of a run."""
    buyers = []
    for number in range(1 + int(draw.random() * USERS)):
        first = [(0.3 + draw.random(), "send", int(draw.random() * CONTENTS)) for _ in range(2)]
        more = [
            (
                1.3 + seconds * draw.random(),
                STEPS[int(draw.random() * len(STEPS))],
                int(draw.random() * CONTENTS),
            )
            for _ in range(4 + int(draw.random() * 14))
        ]
        buyers.append(FilePlan(number, tuple(sorted([*first, *more]))))
    at = seconds * draw.random()
    full = (at, at + 0.3 * seconds * draw.random()) if draw.random() < 0.2 else None
    return FilesPlan(tuple(buyers), full)


@cache
def content(number: int) -> bytes:
    """Return the bytes of a file."""
    size = SIZES[number % len(SIZES)]
    return (sha256(str(number).encode()).digest() * (size // 32 + 1))[:size]


@cache
def digest_of(number: int) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return sha256(content(number)).hexdigest()


def log_text(job_id: str, attempt: int, stream: str, start: int, end: int) -> bytes:
    """Return bytes of the log of an attempt; its lines are equally long."""
    first = start // LINE
    lines = [
        f"{job_id[-12:]} {attempt} {stream} é {number:06d} ".encode().ljust(LINE - 1, b".") + b"\n"
        for number in range(first, -(-end // LINE))
    ]
    return b"".join(lines)[start - first * LINE : end - first * LINE]


async def fetched(market: Any, row: Any) -> bytes:
    """Return the content of an artifact, read in pieces."""
    opened, pieces, at = await market.artifacts.open(row), [], 0
    try:
        while data := await opened.read(at, PIECE):
            pieces.append(data)
            at += len(data)
    finally:
        opened.close()
    return b"".join(pieces)


def short(done: Any) -> str:
    """Return a result for a line."""
    if isinstance(done, MarketError | bool | None):
        return repr(done)
    return repr(done)[:60] if isinstance(done, str | int) else type(done).__name__


class Sender(Actor):
    """Sends files, as a buyer or as a device.

    Attributes:
        announced_id: the last artifact that was announced; "" for none.
    """

    announced_id = ""

    async def send(
        self,
        number: int,
        announce: Callable[[Any, NewArtifact], Any],
        find: Callable[[Any, str], Any],
        *,
        is_lie: bool = False,
        is_part: bool = False,
    ) -> Any:
        """Announce a file, send it from the stored bytes on, and finish it.

        Args:
            number: the number of the content.
            announce: announces it to a marketplace.
            find: returns the artifact to send, and the device that sends it.
            is_lie: whether the bytes are not the announced ones.
            is_part: whether the upload is left alone in the middle.
        """
        data = content(number)
        new = NewArtifact(f"file{number}", digest_of(number), len(data))
        if is_lie:
            data = data[::-1][:-1] + b"!" if data else b"!"
        for turn in range(6):
            announced = await self.insist("announce", lambda market: announce(market, new))
            if announced is None or isinstance(announced, MarketError):
                return announced
            artifact_id = self.announced_id = announced.artifact.id
            if announced.artifact.content_id is not None:
                return announced.artifact
            end = len(data) // 2 if is_part else len(data)
            put = partial(self._put, artifact_id, data[:end], announced.offset, find, turn)
            sent = await self.insist("put", put)
            if is_part or self.network.world.now >= self.until:
                return None
            done = sent
            if sent is True:
                done = await self.insist("finish", partial(self._finish, artifact_id, find))
            if not isinstance(done, MarketError):
                return done
            if done.code not in (Code.TOO_BUSY, Code.ARTIFACT_MISMATCH) or is_lie:
                return done
            await asyncio.sleep(RETRY_SECONDS)
        return None

    async def _put(
        self, artifact_id: str, data: bytes, offset: int, find: Any, turn: int, market: Any
    ) -> bool:
        row, device = await find(market, artifact_id)
        a, b, _, _ = self.network.world.numbers(self.name, artifact_id, turn)
        try:
            async with market.artifacts.receiving(
                row, offset, max(len(data) - offset, 0), device=device
            ) as receiver:
                while receiver.offset < len(data):
                    if a < 0.2 and turn < 3 and receiver.offset > b * len(data):
                        raise RequestError("the connection broke")
                    at = receiver.offset
                    await receiver.write(data[at : at + PIECE])
                    await asyncio.sleep(0.05 * b)
        except BlobError as error:
            raise RequestError(str(error)) from error
        return True

    async def _finish(self, artifact_id: str, find: Any, market: Any) -> Any:
        row, device = await find(market, artifact_id)
        try:
            return await market.artifacts.finish(row, device=device)
        except BlobError as error:
            raise RequestError(str(error)) from error


class FileBooks:
    """Rules about files and logs, after each commit and at the end.

    Args:
        network: has the database.
        folder: the folder of the run.
    """

    def __init__(self, network: "Network", folder: Folder) -> None:
        self.network = network
        self.folder = folder
        # By job, attempt and stream: bytes that are stored according to an answer.
        self.logged: dict[tuple[str, int, str], int] = {}
        # The sizes of the log of each attempt whose result was accepted.
        self.accepted: dict[Attempt, dict[str, int]] = {}
        # Contents that were compared once.
        self._read: set[str] = set()
        self._numbers = {digest_of(each): each for each in range(CONTENTS)}

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return rows of the database."""
        return self.network.books.database.rows(sql, **values)

    def fail(self, text: str) -> None:
        """Record a failure."""
        self.network.world.fail(text)

    def compare(self, row: Any, data: bytes) -> None:
        """Fail if the bytes of an artifact are not the announced ones."""
        if data != content(self._numbers[row.digest]):
            self.fail(f"artifact {row.id[-6:]} has other bytes")

    def appended(self, attempt: Attempt, stream: str, before: int, size: int, stored: int) -> None:
        """Compare the answer to bytes of a log with the answers before."""
        key = *attempt, stream
        known = self.logged.get(key, 0)
        if stored > max(size, known):
            self.fail(f"{stored} bytes of a log are stored, of {size} that were sent")
        if stored < min(known, before) and not self.folder.has_lost:
            self.fail(f"{stored} bytes of a log are stored, and {known} were")
        self.logged[key] = stored

    # --- after each commit -----------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        """Whole files are on the disk, open jobs have their inputs, and no bound is exceeded."""
        name = commit.name
        if name not in _ABOUT_FILES and name not in ("create", "cancel", "claim"):
            return
        for artifact_id, job_id in self.rows(_LOST_INPUTS):
            self.fail(f"job {job_id[-6:]} is open without its input {artifact_id[-6:]}")
        self._look_at_bytes()
        for user_id, count, size in self.rows(_OF_USERS):
            if count > WORK.user_artifacts_max or size > WORK.user_artifacts_max_bytes:
                self.fail(f"{user_id} has {count} files of {size} bytes")
        for job_id, attempt, count, size in self.rows(_OF_ATTEMPTS):
            if count > WORK.attempt_artifacts_max or size > WORK.attempt_artifacts_max_bytes:
                self.fail(f"attempt {attempt} at {job_id[-6:]} has {count} files of {size} bytes")

    def _look_at_bytes(self) -> None:
        """Fail if a whole file is not on the disk, or has other bytes than announced."""
        for artifact_id, _, _, digest, size, content_id in self.rows(_ARTIFACTS):
            if content_id is None:
                continue
            path = self.folder.root / content_id
            if not path.exists() or path.stat().st_size != size:
                self.fail(f"artifact {artifact_id[-6:]} is whole, without its bytes")
            elif content_id not in self._read:
                self._read.add(content_id)
                if path.read_bytes() != content(self._numbers[digest]):
                    self.fail(f"artifact {artifact_id[-6:]} is whole, and has other bytes")

    # --- at the end ------------------------------------------------------------------------------

    def check_logs(self) -> None:
        """The log of each accepted result is on the disk, unless that was full."""
        if self.folder.is_small:
            return
        for attempt, sizes in self.accepted.items():
            name = f"{attempt.job_id}-{attempt.number}"
            folder = self.folder.root / "logs" / attempt.job_id[-2:] / name
            for stream, size in sizes.items():
                stored = sum(each.stat().st_size for each in folder.glob(f"{stream}-*"))
                if stored < size:
                    self.fail(f"the log of an accepted result has {stored} bytes of {size}")

    async def decide_disputes(self, request: Callable[..., Any]) -> None:
        """Have the operator decide each dispute, whose evidence then expires."""
        limits = dict.fromkeys(Currency, 10**15)
        for (job_id,) in self.rows(_DISPUTED):
            await request(
                "last decision",
                lambda market, job=job_id: judging.decide(
                    market.context, Machine("root"), job, Verdict(0), limits, "it is right"
                ),
            )

    async def delete_inputs(self, request: Callable[..., Any]) -> None:
        """Delete all inputs, once every job is over and no evidence is kept."""
        for artifact_id, user_id, kind, *_ in self.rows(_ARTIFACTS):
            if kind == "input":
                await request(
                    "last delete",
                    lambda market, a=user_id, b=artifact_id: market.artifacts.delete(a, b),
                )

    def check(self) -> None:
        """Nothing is left after all times of keeping are over."""
        left = self.rows("SELECT id, kind, content_id FROM artifacts")
        if left:
            self.fail(f"artifacts are left: {left}")
        if contents := self.rows("SELECT id, dropped_at FROM artifact_contents"):
            self.fail(f"contents are left: {contents}")
        if logs := self.rows("SELECT job_id, attempt, ended_at FROM job_logs"):
            self.fail(f"logs are left: {logs}")
        for each in sorted(self.folder.root.rglob("*")):
            if each.is_file() and each.name != "lock":
                self.fail(f"a file is left: {each.relative_to(self.folder.root)}")


_ABOUT_FILES = frozenset(
    ("_announce", "_announce_for_job", "_finish", "_delete_owned", "_expire", "delete_content")
)


class FileBuyer(Sender):
    """Buyer that sends files, posts jobs with them, and reads the results and the logs.

    Args:
        network: leads to the daemons.
        plan: its actions.
        number: of the buyer.
        until: when it stops.
        books: compare the bytes.
    """

    def __init__(
        self, network: "Network", plan: FilePlan, number: int, until: float, books: FileBooks
    ) -> None:
        super().__init__(network, f"files{number}", number, until)
        self.plan = plan
        self.user_id = f"user{plan.user}"
        self._books = books
        self._job_ids: list[str] = []
        self._sent: list[str] = []
        self._count = 0

    async def run(self) -> None:
        """Do all of it."""
        world = self.network.world
        for at, what, number in self.plan.steps:
            await asyncio.sleep(max(0.0, at - world.now))
            done = await getattr(self, f"_do_{what}")(number)
            world.say(f"{self.name} {what} {number}: {short(done)}")

    async def _announce(self, market: Any, new: NewArtifact) -> Any:
        try:
            return await market.artifacts.announce(self.user_id, new)
        except BlobError as error:
            raise RequestError(str(error)) from error

    async def _find(self, market: Any, artifact_id: str) -> Any:
        return await market.artifacts.find_input(self.user_id, artifact_id), None

    async def _do_send(self, number: int) -> Any:
        done = await self.send(number, self._announce, self._find)
        if done is not None and not isinstance(done, MarketError):
            self._sent.append(done.id)
        return done

    async def _do_lie(self, number: int) -> Any:
        return await self.send(number, self._announce, self._find, is_lie=True)

    async def _do_part(self, number: int) -> Any:
        """Send half of a file; a later job may name it, and is refused."""
        done = await self.send(number, self._announce, self._find, is_part=True)
        if number % 2 and self.announced_id:
            self._sent.append(self.announced_id)
        return done

    async def _do_job(self, number: int) -> Any:
        """Post a job with some of the files that were sent."""
        self._count += 1
        title = f"{self.name}-{self._count}"
        inputs = [
            {"name": f"in{at}", "artifact_id": artifact_id}
            for at, artifact_id in enumerate(self._sent[number % 3 :][:2])
        ]
        fields: dict[str, Any] = {"script": "cat", "inputs": inputs}
        if number % 2:
            fields["checkpoint"] = {"path": "state"}
        spec = Spec(payload_of(fields), resources_of({}), timeout_seconds=3_600, review_hours=0)
        new = NewJob(title, "script", CREDIT // 10, 1, "", "", spec)

        async def post(market: Any) -> Any:
            receipt = receipt_of(market, self.user_id, title)
            try:
                return await market.jobs.create(self.user_id, new, receipt)
            except Replayed as replayed:
                return msgspec.json.decode(replayed.answer)

        done = await self.insist("post", post)
        if isinstance(done, str):
            self._job_ids.append(done)
        return done

    async def _do_read(self, number: int) -> Any:
        """Fetch all files of the newest page; they are the announced ones."""

        async def read(market: Any) -> int:
            rows = await market.artifacts.page_of_user(self.user_id, before="", limit=20)
            for job_id in self._job_ids[number % 4 :][:1]:
                rows += await market.artifacts.page_of_job(
                    self.user_id, job_id, before="", limit=20
                )
            count = 0
            for row in rows:
                if row.content_id is None:
                    continue
                try:
                    self._books.compare(row, await fetched(market, row))
                    count += 1
                except MarketError:
                    if self._books.rows("SELECT 1 FROM artifacts WHERE id = :id", id=row.id):
                        self._books.fail(f"artifact {row.id[-6:]} cannot be read")
            return count

        return await self.insist("read", read)

    async def _do_list(self, _: int) -> Any:
        return await self.insist(
            "list",
            lambda market: market.artifacts.page_of_user(self.user_id, before="", limit=5),
        )

    async def _do_delete(self, number: int) -> Any:
        if not self._sent:
            return None
        artifact_id = self._sent[number % len(self._sent)]

        async def delete(market: Any) -> None:
            try:
                await market.artifacts.delete(self.user_id, artifact_id)
            except BlobError as error:
                raise RequestError(str(error)) from error

        done = await self.insist("delete", delete)
        if done is None:
            self._sent = [each for each in self._sent if each != artifact_id]
        return done

    async def _do_log(self, number: int) -> Any:
        """Follow the log of a job for a while, with several requests."""
        if not self._job_ids:
            return None
        job_id, position = self._job_ids[number % len(self._job_ids)], None
        for _ in range(1 + number % 4):
            place = await self.insist("log", partial(self._follow, job_id, position))
            if place is None or isinstance(place, MarketError):
                return place
            position, is_over = place
            if is_over:
                break
        return await self.insist("log part", partial(self._part, job_id, number))

    async def _follow(
        self, job_id: str, position: Position | None, market: Any
    ) -> tuple[Position | None, bool]:
        follow = market.logs.follow(self.user_id, job_id, position=position, number=None)
        try:
            async with asyncio.timeout(LOOK_SECONDS), aclosing(follow) as events:
                async for event in events:
                    if isinstance(event, Idle):
                        continue
                    if isinstance(event, Wrote | Cut):
                        self._compare(job_id, position, event)
                    position = event.position
                    if isinstance(event, Over):
                        return position, True
        except TimeoutError:
            pass
        return position, False

    def _compare(self, job_id: str, before: Position | None, event: Wrote | Cut) -> None:
        """Fail if an event does not continue the log, or has other bytes."""
        stream, attempt = event.stream, event.position.attempt
        if before is not None and before.attempt == attempt:
            at = before.at(stream)
            if event.offset != at and not self._books.folder.has_lost:
                self._books.fail(f"the log of {job_id[-6:]} goes on at {event.offset}, behind {at}")
        if isinstance(event, Wrote):
            end = event.offset + len(event.data)
            if event.data != log_text(job_id, attempt, stream, event.offset, end):
                self._books.fail(f"the log of {job_id[-6:]} has other bytes at {event.offset}")
            if event.text.encode() not in (
                event.data,
                event.data.decode("utf-8", "replace").encode(),
            ):
                self._books.fail(f"the log of {job_id[-6:]} has another text at {event.offset}")

    async def _part(self, job_id: str, number: int, market: Any) -> int:
        """Read a part of the log, and all of it as a file."""
        stream, offset = ("out", "err")[number % 2], 100 * (number % 5)
        part = await market.logs.read(self.user_id, job_id, None, stream, offset, 1_000)
        end = part.offset + len(part.data)
        if part.data and part.data != log_text(job_id, part.attempt, stream, part.offset, end):
            self._books.fail(f"the log of {job_id[-6:]} has other bytes at {part.offset}")
        attempt, file = await market.logs.content(self.user_id, job_id, None, stream)
        try:
            data = await file.read(0, file.size_bytes)
        except BlobError as error:
            raise RequestError(str(error)) from error
        if data != log_text(job_id, attempt, stream, 0, len(data)):
            self._books.fail(f"the log of {job_id[-6:]} has other bytes as a file")
        return len(data)
