"""Reading of waiting jobs from the store: all at the start, then reported ones, in batches.

From time to time all jobs are compared again, because a notice can be lost, and memory can be full.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from market.jobs import copies
from market.jobs.matching import JobBook, Needs, WaitingJob
from proxyctl.protocol.jobspec import Payload, Resources, SpecError
from storage.dispatch import claims as queries
from storage.dispatch.claims import ExcludedRow, WaitingRow
from storage.engines.errors import StoreError, UnavailableError
from storage.engines.outage import Outage
from storage.engines.store import Store, Transaction
from storage.jobs import copies as copy_queries
from storage.jobs.copies import MemberRow

# Jobs that are processed in one turn of the loop. Reading a large payload with secrets takes a
# millisecond, and the comparison of a job with the offers of all waiting devices takes another one.
TAKEN_AT_ONCE = 4
# Each reported job is read immediately. This comparison finds unreported jobs, however many others
# are reported meanwhile.
COMPARE_SECONDS = 60.0
FAILED_SECONDS = 1.0
# A clock that counts whole seconds may be behind the one that waits.
AGAIN_SECONDS_MIN = 0.1

_logger = logging.getLogger("jobs")


class _Input(Struct):
    unpack: bool = False


class Runs(Struct):
    """Part of a payload that decides where a job can run."""

    image: str = ""
    network: str = "none"
    ports: list[msgspec.Raw] = []
    inputs: list[_Input] = []
    checkpoint: dict[str, Any] | None = None

    @property
    def has_archives(self) -> bool:
        """Whether its device unpacks something: an input, or the checkpoint of another device."""
        return self.checkpoint is not None or any(each.unpack for each in self.inputs)


class Excluded(NamedTuple):
    """Owners and networks whose devices do not get a job; a copy belongs to a group."""

    owners: frozenset[str]
    group: str = ""
    networks: frozenset[str] = frozenset()


class _Found(NamedTuple):
    """Rows of the store about jobs that may wait."""

    rows: list[WaitingRow]
    excluded: list[ExcludedRow]
    members: Sequence[MemberRow]
    exclusions: Mapping[str, tuple[set[str], set[str]]]


NOBODY: tuple[set[str], set[str]] = (set(), set())
_payload = msgspec.json.Decoder(Runs)
_resources = msgspec.json.Decoder(Resources)


class BookBounds(Struct, frozen=True):
    """The number of jobs in memory, and of one read.

    Attributes:
        jobs: jobs kept in memory: 120 MB. Of more, the oldest are kept, and the others come when
            these go.
        read_jobs: jobs of one read from the store.
        page_jobs: jobs of one page of a comparison with the store.
    """

    jobs: int = 200_000
    read_jobs: int = 200
    page_jobs: int = 2_000


USUAL = BookBounds()


class Finds(Struct, frozen=True):
    """The calls of a reader of jobs that wait.

    Attributes:
        found: is called with each job that was read; it adds it to the book, or finds a device.
        is_claimed: returns whether a job is being given to a device, and so is in no book.
        payload_of: returns a payload with its secrets, from its columns; None if the secrets cannot
            be read.
        unreadable: ends a job whose secrets cannot be read any more.
    """

    found: Callable[[WaitingJob], None]
    is_claimed: Callable[[str], bool]
    payload_of: Callable[[str, str | None], Payload | None]
    unreadable: Callable[[str], Awaitable[None]] | None = None


class _ToRead:
    """Jobs to read from the store, now or later; and whether to compare all of them.

    Args:
        most: the number of jobs that are remembered.
        now: returns the time in UTC seconds.
    """

    def __init__(self, most: int, now: Callable[[], int]) -> None:
        self._most = most
        self._now = now
        # The times at which jobs are read again, because other devices may take them then. There
        # are at most the jobs of the book, and the jobs that were given away since.
        self._again_at: dict[str, int] = {}
        self._unread: dict[str, None] = {}
        self.must_compare = True
        self._compare_at = 0.0  # loop time in seconds
        self._wake = asyncio.Event()
        self._wake.set()

    def __len__(self) -> int:
        return len(self._unread)

    def add(self, job_id: str) -> None:
        """Queue a job to read; if too many wait, request a comparison of everything."""
        if len(self._unread) < self._most:
            self._unread[job_id] = None
        else:
            self.must_compare = True
        self._wake.set()

    def add_later(self, job_id: str, at: int) -> None:
        """Queue a job to read at a time."""
        if len(self._again_at) < self._most:
            self._again_at[job_id] = min(at, self._again_at.get(job_id, at))

    def put_back(self, job_ids: Iterable[str]) -> None:
        """Queue jobs to read in the current turn, or in the next one."""
        self._unread.update(dict.fromkeys(job_ids))

    def take(self, most: int) -> list[str]:
        """Return some of the jobs to read now, and forget them."""
        batch = list(islice(self._unread, most))
        for job_id in batch:
            del self._unread[job_id]
        return batch

    def compare_soon(self) -> None:
        """Request a comparison of everything."""
        self.must_compare = True
        self._wake.set()

    def look_again(self) -> None:
        """End the next wait without a delay."""
        self._wake.set()

    async def wait(self) -> None:
        """Wait until there is something to read or to compare."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience(loop.time())):
                await self._wake.wait()
        self._wake.clear()
        self._read_again()
        now = loop.time()
        if now >= self._compare_at:
            self.must_compare = True
            self._compare_at = now + COMPARE_SECONDS

    def _patience(self, loop_now: float) -> float:
        """Return the number of seconds until the next job is due, or the next comparison."""
        left = max(self._compare_at - loop_now, 0.0)
        first = min(self._again_at.values(), default=None)
        if first is None:
            return left
        return min(max(first - self._now(), AGAIN_SECONDS_MIN), left)

    def _read_again(self) -> None:
        """Queue the due jobs to read."""
        now = self._now()
        due = [job_id for job_id, again_at in self._again_at.items() if again_at <= now]
        for job_id in due:
            del self._again_at[job_id]
        self.put_back(due)


class WaitingJobs:
    """Copy of the store's waiting jobs in memory.

    Args:
        credit: the value of a credit, in micro-USD.
        now: returns the time in UTC seconds.
    """

    def __init__(
        self,
        store: Store,
        book: JobBook,
        credit: int,
        finds: Finds,
        now: Callable[[], int],
        bounds: BookBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self._unreadable = finds.unreadable
        self._store = store
        self._book = book
        self._payload_of = finds.payload_of
        self._credit = credit
        self._found = finds.found
        self._is_claimed = finds.is_claimed
        self._now = now
        self._to_read = _ToRead(bounds.jobs, now)
        self._outage = Outage(_logger, "jobs wait for the store to return", logging.WARNING)

    def read_soon(self, job_id: str) -> None:
        """Queue a job that may wait to be read."""
        self._to_read.add(job_id)

    def compare_soon(self) -> None:
        """Request a comparison of everything with the store."""
        self._to_read.compare_soon()

    async def run(self) -> None:
        """Read until cancelled; a failing store delays it."""
        while True:
            await self._to_read.wait()
            try:
                await self.catch_up()
            except StoreError as error:
                self._outage.failed(error)
                self._to_read.look_again()
                await asyncio.sleep(FAILED_SECONDS)
            else:
                self._outage.ended()

    async def catch_up(self) -> None:
        """Read the queued jobs now.

        Raises:
            StoreError: unread jobs are read the next time.
        """
        # A notice from here on may be about a change after the query: it counts anew.
        if self._to_read.must_compare:
            self._to_read.must_compare = False
            try:
                await self._compare()
            except BaseException:
                self._to_read.must_compare = True
                raise
        while batch := self._to_read.take(self._bounds.read_jobs):
            try:
                found = await self._store.read(_read, batch, self._now())
            except BaseException:
                self._to_read.put_back(batch)
                raise
            for job_id in batch:
                self._book.remove(job_id)  # it is taken anew, if it still waits
            for job_id in await self._take(found):
                await self._end(job_id)

    async def _end(self, job_id: str) -> None:
        """End a job whose secrets are unreadable; a failure is tried again."""
        if self._unreadable is None:
            return
        try:
            await self._unreadable(job_id)
        except UnavailableError:
            self._to_read.put_back([job_id])
            raise
        except Exception:  # the next comparison finds it
            _logger.exception("job %s, which cannot be read, cannot be ended", job_id)

    async def _take(self, found: _Found) -> list[str]:
        """Keep jobs, or find devices for them. Return jobs with unreadable secrets.

        Other tasks run in between. They may change a job that is not taken yet; the same happens
        during the query.
        """
        unreadable: list[str] = []
        owners: dict[str, set[str]] = {}
        for job_id, user_id, again_at in found.excluded:
            owners.setdefault(job_id, set()).add(user_id)
            if again_at is not None:
                self._to_read.add_later(job_id, again_at)
        groups = {member.job_id: member.group_id for member in found.members}
        for number, row in enumerate(found.rows, 1):
            if number % TAKEN_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._book.remove(row.job_id)  # a copy that was read along with another one
            if self._is_claimed(row.job_id) or len(self._book) >= self._bounds.jobs:
                continue
            others, networks = found.exclusions.get(row.job_id, NOBODY)
            excluded = Excluded(
                frozenset(owners.get(row.job_id, ())) | others,
                groups.get(row.job_id, ""),
                frozenset(networks),
            )
            try:
                job = self._job(row, excluded)
            except (msgspec.DecodeError, SpecError):  # no other job waits for it
                _logger.exception("job %s cannot be read, and is given to no device", row.job_id)
            else:
                if job is None:
                    unreadable.append(row.job_id)
                else:
                    self._found(job)
        return unreadable

    def _job(self, row: WaitingRow, excluded: Excluded) -> WaitingJob | None:
        """Return a job, or None if its secrets are unreadable."""
        if row.secrets is not None and self._payload_of(row.payload, row.secrets) is None:
            return None
        needs = needs_of(row.payload, row.resources, row.job_type, row.min_reputation)
        return WaitingJob(
            row.job_id,
            needs,
            price=row.price_credit * self._credit // row.duration_hrs,
            created_at=row.created_at,
            buyer=row.user_id,
            attempts=row.attempts,
            excluded=excluded.owners,
            group=excluded.group,
            networks=excluded.networks,
        )

    async def _compare(self) -> None:
        """Compare the book with the store: add missing jobs, and drop jobs that do not wait."""
        known = set(self._book)
        after, size = "", self._bounds.page_jobs
        while len(self._book) + len(self._to_read) < self._bounds.jobs:
            page = await self._store.read(queries.waiting_page, after=after, limit=size)
            for job_id, attempts in page:
                known.discard(job_id)
                if self._book.attempts(job_id) != attempts and not self._is_claimed(job_id):
                    self._to_read.put_back([job_id])
            if len(page) < size:
                break
            after = page[-1].job_id
        else:
            return  # the other jobs may still wait
        self._to_read.put_back(known)
        for job_id in known:
            self._book.remove(job_id)


def needs_of(payload: str | None, resources: str, job_type: str, min_reputation: int) -> Needs:
    """Return the needs of a job, out of the columns of its specification; it may run nothing.

    Raises:
        msgspec.DecodeError, SpecError: a column cannot be read.
    """
    runs = Runs() if payload is None else _payload.decode(payload)
    return Needs.of(
        runs,
        _resources.decode(resources),
        job_type,
        min_reputation=min_reputation,
        has_archives=runs.has_archives,
    )


async def _read(tx: Transaction, job_ids: Sequence[str], now: int) -> _Found:
    """Read jobs, and the other copies of copied jobs, whose permitted owners have changed."""
    members = await copy_queries.members(tx, job_ids)
    ids = dict.fromkeys((*job_ids, *(member.job_id for member in members)))
    rows = await queries.waiting(tx, list(ids))
    tried = [row.job_id for row in rows if row.attempts]
    excluded = await queries.excluded(tx, tried, now=now) if tried else []
    return _Found(rows, excluded, members, await copies.exclusions(tx, members))
