"""Files of jobs: inputs from a buyer, outputs and checkpoints from a device.

An artifact is announced with its name, size and hash, then sent, then finished. It belongs to the
buyer. A file from a device also belongs to an attempt, and a lost attempt leaves no file.
`storage.blobs` decides where the bytes are.

An artifact exists once its hash is right. Each step may be repeated, and bytes are sent from an
offset on. The bytes are files: they are never in the database, and in memory only as two pieces of
each artifact.

Artifacts with the same hash share one content, if the service has computed the hash itself. A
content without artifacts is dropped in three steps: a mark that is never taken back, then its file,
then its row.

An upload by a device belongs to the attempt that runs, at the beginning and at the end of the
upload. After the end of an attempt a sweep gives its files a time: the operator's days, or one day
if the attempt was lost. A checkpoint waits for the job, because the next attempt goes on from it.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec
from msgspec import Struct

from market.accounts.bounds import lock_open_user, lock_user
from market.attempts.attempts import require_current
from market.base.errors import Code, MarketError
from market.base.slots import SlotBounds, Slots
from market.base.states import JobStatus
from market.base.sweeping import Sweep
from market.events.context import Context
from market.files.evidence import decided_after
from proxyctl.protocol.jobspec import (
    LEFT_OUT,
    LEFT_OUT_MAX_BYTES,
    Checkpoint,
    Input,
    SpecError,
    check_file_name,
    check_path,
    download_name,
)
from storage.blobs.base import (
    Blobs,
    BusyError,
    Content,
    MismatchError,
    MissingError,
    Part,
    Receiver,
    UnwantedError,
)
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.files import artifacts as queries
from storage.files.artifacts import ArtifactRow, FilesRow
from storage.jobs import jobs as job_queries

Kind = Literal["input", "output", "checkpoint"]
INPUT: Kind = "input"
OUTPUT: Kind = "output"
CHECKPOINT: Kind = "checkpoint"

DAY_SECONDS = 86_400
LEFT_OUT_MOST = 3  # of an attempt that are taken beyond all bounds, until the sweep comes by
# Long enough for the largest file over a slow line, and to go on after a night without one.
UNFINISHED_SECONDS = DAY_SECONDS
# The artifact of such bytes has expired long ago, so an upload cannot continue.
FORGOTTEN_SECONDS = 3 * UNFINISHED_SECONDS
# Files of a lost attempt serve only to find the cause of its failure.
LOST_SECONDS = DAY_SECONDS
# Uploads that are being received: each has up to 3 MiB in memory (`storage.blobs.local`). Others
# wait, and their bytes are not read meanwhile.
UPLOADS_MAX = 48
UPLOADS_PER_USER_MAX = 16
UPLOADS_WAITING_MAX = 256
SWEEP_MAX = 200
# The second one sees the content that another request inserted during the first one.
CONTENT_ATTEMPTS = 2
NOT_WHOLE = "The artifact is not there yet: it was announced, and is not finished."
SHA256 = re.compile(r"[0-9a-f]{64}")

_logger = logging.getLogger("artifacts")


class ArtifactTerms(Struct, frozen=True):
    """Bounds of the kept files and of their time; 0 switches a bound off.

    Attributes:
        file_bytes: one file.
        job_bytes: all files that one attempt at a job sends.
        job_files: how many those may be.
        user_bytes: all that one user has, sent by themselves and by the devices of their jobs.
        user_files: how many those may be; they are counted whenever one more is announced.
        keep_seconds: how long outputs and checkpoints are kept when the job is over.
    """

    file_bytes: int = 5 * 1024**3
    job_bytes: int = 20 * 1024**3
    job_files: int = 1_000
    user_bytes: int = 50 * 1024**3
    user_files: int = 10_000
    keep_seconds: int = 30 * DAY_SECONDS


class NewArtifact(Struct, frozen=True):
    """File that a buyer or a device announces."""

    name: str
    sha256: str
    size_bytes: int


class Announced(Struct, frozen=True):
    """Artifact after its announcement, and the requests for its missing bytes.

    `offset` is the number of bytes received so far; `parts` are the requests that bring the file to
    another service, if another one stores it.
    """

    artifact: ArtifactRow
    offset: int = 0
    parts: tuple[Part, ...] = ()


class WorkInput(Struct, frozen=True, omit_defaults=True):
    """File that a device gets for a job: an artifact, or the content of a `url`."""

    name: str
    path: str
    sha256: str
    unpack: bool
    size_bytes: int | None = None
    artifact_id: str | None = None
    url: str | None = None


class WorkCheckpoint(Struct, frozen=True):
    """Checkpoint of an earlier attempt at a job for the next one."""

    artifact_id: str
    sha256: str
    size_bytes: int


class WorkFiles(Struct, frozen=True):
    """Files that a device has to fetch for a job."""

    inputs: Sequence[WorkInput] = ()
    checkpoint: WorkCheckpoint | None = None


class _Wanted(Struct):
    """Fields of a payload about files to fetch."""

    inputs: list[Input] = []
    checkpoint: Checkpoint | None = None


class Traffic(Struct):
    """Bytes that were sent and fetched through this daemon since its start."""

    received_bytes: int = 0
    sent_bytes: int = 0
    finished: int = 0
    mismatches: int = 0


class UploadPace(Struct, frozen=True):
    """The time in which a file waits for its turn, and the least rate.

    Attributes:
        waiting_seconds: the wait of a sender, which then asks again, before it takes the daemon for
            dead.
        turn_seconds: while others wait, a sender below the least rate gives way after this time and
            goes on later: a few slow networks cannot keep all slots for the hours that a large file
            takes them.
        bytes_per_second: the least rate.
    """

    waiting_seconds: float = 20.0
    turn_seconds: float = 30.0
    bytes_per_second: int = 1 << 20


USUAL_PACE = UploadPace()


class Artifacts:
    """Files of jobs.

    Args:
        pace: the time in which files wait for their turn, and the least rate.
    """

    def __init__(
        self, context: Context, blobs: Blobs, terms: ArtifactTerms, pace: UploadPace = USUAL_PACE
    ) -> None:
        self.terms = terms
        self.pace = pace
        self.traffic = Traffic()
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self._blobs = blobs
        bounds = SlotBounds(
            total=UPLOADS_MAX,
            per_caller=UPLOADS_PER_USER_MAX,
            queue=UPLOADS_WAITING_MAX,
            queue_per_caller=UPLOADS_PER_USER_MAX,
        )
        self._uploads = Slots(bounds)
        self._forget_at = 0  # UTC seconds
        self._expiring = Sweep("artifact %s cannot be deleted", _logger)
        self._removing = Sweep("content %s cannot be deleted", _logger)

    async def announce(self, user_id: str, new: NewArtifact) -> Announced:
        """Begin or continue the upload of a file from a buyer. Return its missing bytes.

        Raises:
            MarketError: `invalid_field`, `artifact_too_large`, `artifact_quota_exceeded`,
                `account_closed`.
            BlobError: another service keeps the bytes, and does not answer.
        """
        _check_name(new.name, check_path)
        self._check(new)
        row = _row(self._identifiers.new(), user_id, INPUT, new, self._now())
        return await self._begin(await self._store.write(_announce, row, self.terms))

    async def announce_for_job(
        self, device: DeviceRow, job_id: str, attempt: int, kind: Kind, new: NewArtifact
    ) -> Announced:
        """Begin or continue the upload of a file from the device that runs a job.

        A file of the same name in the same attempt is replaced, a checkpoint only once the new one
        is whole. There is always room for `left-out.txt`, which lists the missing files for the
        buyer.

        Raises:
            MarketError: `invalid_field`, `artifact_too_large`, `artifact_quota_exceeded`,
                `job_not_found`, `attempt_not_current`.
            BlobError: another service keeps the bytes, and does not answer.
        """
        _check_name(new.name, check_file_name)
        self._check(new, is_bound=not _has_room(kind, new))
        row = _row(self._identifiers.new(), "", kind, new, self._now())
        row = row._replace(job_id=job_id, attempt=attempt)
        return await self._begin(
            await self._store.write(_announce_for_job, row, device.id, self.terms)
        )

    async def find(self, user_id: str, artifact_id: str) -> ArtifactRow:
        """Return a buyer's artifact.

        Raises:
            MarketError: `artifact_not_found`.
        """
        return await self._store.read(_owned, user_id, artifact_id)

    async def find_input(self, user_id: str, artifact_id: str) -> ArtifactRow:
        """Return an artifact that a buyer sends.

        It is no output of a job: the buyer could keep the upload busy until the time of the attempt
        is over, and its work would not be paid.

        Raises:
            MarketError: `artifact_not_found`.
        """
        row = await self.find(user_id, artifact_id)
        if row.job_id is not None:
            raise MarketError(Code.ARTIFACT_NOT_FOUND)
        return row

    async def find_for_device(self, device: DeviceRow, artifact_id: str) -> ArtifactRow:
        """Return an artifact that a device needs for its work: an input, or a checkpoint.

        Raises:
            MarketError: `artifact_not_found`.
        """
        row = await self._store.read(queries.find_for_device, artifact_id, device.id)
        if row is None:
            raise MarketError(Code.ARTIFACT_NOT_FOUND)
        return row

    async def find_sent_by(self, device: DeviceRow, artifact_id: str) -> ArtifactRow:
        """Return an artifact that a device sends, while its attempt is the current one.

        Raises:
            MarketError: `artifact_not_found`, `attempt_not_current`.
        """
        return await self._store.read(_sent_by, device.id, artifact_id)

    async def page_of_user(self, user_id: str, *, before: str, limit: int) -> list[ArtifactRow]:
        """Return a buyer's artifacts, newest first."""
        return await self._store.read(
            queries.page_of_user, user_id=user_id, before=before, limit=limit
        )

    async def page_of_job(
        self, user_id: str, job_id: str, *, before: str, limit: int
    ) -> list[ArtifactRow]:
        """Return the files from the attempts at a buyer's job, newest first.

        Raises:
            MarketError: `job_not_found`.
        """
        return await self._store.read(_page_of_job, user_id, job_id, before, limit)

    @asynccontextmanager
    async def receiving(
        self,
        artifact: ArtifactRow,
        offset: int,
        size_bytes: int,
        *,
        device: DeviceRow | None = None,
        client: str = "",
    ) -> AsyncIterator[Receiver]:
        """Receive bytes of an artifact within the block.

        Args:
            artifact: the artifact in transfer.
            offset: the position of the first byte in it.
            size_bytes: the expected number of bytes, if known.
            device: the device that sends them, or None. They count against the device: otherwise a
                buyer with slow uploads, or with large outputs on other devices, could keep it from
                delivering its work.
            client: the network that sends them, with the same limit of simultaneous uploads as
                a user.

        Raises:
            MarketError: `artifact_mismatch`, when the bytes exceed the announced size, or `offset`
                is beyond the received bytes; `too_busy`, when another request sends the same
                artifact; `artifact_not_found`, when it was deleted, or finished, before this had
                its turn.
            BlobError: the bytes cannot be kept.
        """
        if artifact.content_id is not None or self._blobs.is_elsewhere:
            raise MarketError(Code.ARTIFACT_MISMATCH, "All its bytes were sent already.")
        if offset + size_bytes > artifact.size_bytes:
            raise _longer(artifact)
        deadline = asyncio.get_running_loop().time() + self.pace.waiting_seconds
        sender = artifact.user_id if device is None else device.id
        callers = (sender, client) if client else (sender,)
        try:
            async with (
                self._uploads.slot(*callers, deadline=deadline),
                self._blobs.receive(queries.upload_of(artifact), offset) as receiver,
            ):
                # The file exists now: a later deletion of the artifact deletes the file.
                await self._store.read(_require_unfinished, artifact.id)
                yield _Bounded(receiver, artifact, self.traffic, self._uploads, self.pace)
        except BusyError as error:
            raise MarketError(Code.TOO_BUSY, "Another request sends the same artifact.") from error
        except MismatchError as error:
            raise self._mismatch(error) from error
        except UnwantedError as error:
            raise MarketError(Code.ARTIFACT_NOT_FOUND) from error

    async def finish(
        self,
        artifact: ArtifactRow,
        *,
        sha256: str | None = None,
        etags: Sequence[str] = (),
        device: DeviceRow | None = None,
    ) -> ArtifactRow:
        """Complete an artifact that matches its announcement; a second call changes nothing.

        Args:
            artifact: the artifact.
            sha256: the hash that its sender sends now, if any.
            etags: the reply of the other service to each part.
            device: the device that sends it, or None.

        Raises:
            MarketError: `artifact_mismatch`, `artifact_not_found`, `attempt_not_current`,
                `too_busy`.
            BlobError: it cannot be stored.
        """
        if sha256 is not None and sha256 != artifact.digest:
            raise MarketError(Code.ARTIFACT_MISMATCH, "It was announced with another SHA-256.")
        if artifact.content_id is not None:
            return artifact
        upload = queries.upload_of(artifact)
        try:
            is_checked = await self._blobs.finish(upload, list(etags))
        except BusyError as error:
            raise MarketError(Code.TOO_BUSY, "Another request sends the same artifact.") from error
        except MismatchError as error:
            raise self._mismatch(error) from error
        device_id = None if device is None else device.id
        try:
            row = await self._store.write(
                _finish, artifact.id, upload.key, is_checked, device_id, self._now()
            )
        except MarketError as error:
            if error.code is Code.ARTIFACT_NOT_FOUND:  # it was deleted meanwhile
                await self._store.write(queries.drop_upload, artifact, self._now())
            raise
        self.traffic.finished += 1
        return row

    async def open(self, artifact: ArtifactRow) -> Content | str:
        """Open an artifact's content; or return the address where it can be fetched for a while.

        Raises:
            MarketError: `artifact_not_found`, when it is not whole, or its bytes are lost.
            BlobError: it cannot be read now.
        """
        address = self.address(artifact)
        if address is not None:
            return address
        try:
            return _Counted(await self._blobs.open(_content_id(artifact)), self.traffic)
        except MissingError as error:
            _logger.error("artifact %s: its content is lost: %s", artifact.id, error)
            raise MarketError(Code.ARTIFACT_NOT_FOUND, "Its content is lost.") from error

    def address(self, artifact: ArtifactRow) -> str | None:
        """Return the address where an artifact can be fetched for a while; None when it is here.

        Raises:
            MarketError: `artifact_not_found`, when it is not whole.
        """
        content_id = _content_id(artifact)
        if not self._blobs.is_elsewhere:
            return None
        return self._blobs.address(content_id, download_name(artifact.name))

    async def delete(self, user_id: str, artifact_id: str) -> None:
        """Delete a buyer's artifact; the sweep deletes its bytes.

        Raises:
            MarketError: `artifact_not_found`; `artifact_needed`, while an open job is given it or
                has sent it, a device sends it, other copies of its job are to be compared with it,
                or it is the evidence of a dispute, also of one that may follow.
        """
        await self._store.write(_delete_owned, user_id, artifact_id, self._now())

    async def settle(self) -> int:
        """Set the expiry of files of ended attempts. Return the number of files."""
        now, keep = self._now(), self.terms.keep_seconds
        ended = await self._store.read(queries.ended, limit=SWEEP_MAX)
        for each in ended:
            is_lost = each.kind == OUTPUT and each.outcome != JobStatus.COMPLETED
            at = now + (LOST_SECONDS if is_lost else keep)
            await self._store.write(queries.expire_at, each.id, at)
        return len(ended)

    async def expire(self) -> int:
        """Delete expired artifacts, and contents without an artifact. Return their number.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now = self._now()

        async def due(limit: int) -> list[str]:
            return await self._store.read(queries.due, now=now, limit=limit)

        async def delete(artifact_id: str) -> None:
            await self._store.write(_expire, artifact_id, now)

        async def dropped(limit: int) -> list[str]:
            until = now - self._blobs.late_seconds
            return await self._store.read(queries.dropped, until=until, limit=limit)

        async def remove(content_id: str) -> None:
            upload = await self._store.read(queries.dropped_upload, content_id)
            if upload is not None:  # no other daemon was faster
                await self._blobs.drop(upload)
                await self._store.write(queries.delete_content, content_id)

        count = await self._expiring.run(due, delete, most=SWEEP_MAX, now=now)
        if now >= self._forget_at:
            self._forget_at = now + DAY_SECONDS
            count += await self._blobs.forget(FORGOTTEN_SECONDS)
        return count + await self._removing.run(dropped, remove, most=SWEEP_MAX, now=now)

    async def _begin(self, row: ArtifactRow) -> Announced:
        if row.content_id is not None:
            return Announced(row, offset=row.size_bytes)
        if not self._blobs.is_elsewhere:
            stored = await self._blobs.stored(queries.upload_of(row))
            return Announced(row, offset=min(stored, row.size_bytes))
        if not row.reference:
            reference = await self._blobs.begin(queries.upload_of(row))
            if reference:
                await self._store.write(queries.refer, row.id, reference)
                row = row._replace(reference=reference)
        return Announced(row, parts=tuple(self._blobs.parts(queries.upload_of(row))))

    def _mismatch(self, error: MismatchError) -> MarketError:
        self.traffic.mismatches += 1
        return MarketError(
            Code.ARTIFACT_MISMATCH, f"{Code.ARTIFACT_MISMATCH.meaning} Here {error}."
        )

    def _check(self, new: NewArtifact, *, is_bound: bool = True) -> None:
        if not SHA256.fullmatch(new.sha256):
            message = "It must be 64 digits of 0-9 and a-f."
            raise MarketError(Code.INVALID_FIELD, message, field="sha256")
        if is_bound and self.terms.file_bytes and new.size_bytes > self.terms.file_bytes:
            message = f"{Code.ARTIFACT_TOO_LARGE.meaning} The limit is {self.terms.file_bytes}."
            raise MarketError(Code.ARTIFACT_TOO_LARGE, message, field="size_bytes")


class _Bounded:
    """A `Receiver` that takes no more than was announced."""

    def __init__(
        self,
        receiver: Receiver,
        artifact: ArtifactRow,
        traffic: Traffic,
        uploads: Slots,
        pace: UploadPace,
    ) -> None:
        self._pace = pace
        self._receiver = receiver
        self._artifact = artifact
        self._traffic = traffic
        self._uploads = uploads
        self._began_at = asyncio.get_running_loop().time()
        self._bytes = 0

    @property
    def offset(self) -> int:
        """See `Receiver.offset`."""
        return self._receiver.offset

    async def write(self, data: bytes) -> None:
        """See `Receiver.write`.

        Raises:
            MarketError: `artifact_mismatch`, when the bytes exceed the announced size; `too_busy`,
                when it is slow and others wait. The bytes written by then are kept.
        """
        if self._receiver.offset + len(data) > self._artifact.size_bytes:
            raise _longer(self._artifact)
        self._traffic.received_bytes += len(data)
        self._bytes += len(data)
        await self._receiver.write(data)
        seconds = asyncio.get_running_loop().time() - self._began_at
        is_slow = self._bytes < seconds * self._pace.bytes_per_second
        if seconds > self._pace.turn_seconds and is_slow and self._uploads.is_full:
            raise MarketError(Code.TOO_BUSY)


class _Counted:
    """`Content` that counts the bytes of its reads."""

    def __init__(self, content: Content, traffic: Traffic) -> None:
        self._content = content
        self._traffic = traffic
        self.size_bytes = content.size_bytes

    async def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        data = await self._content.read(offset, size)
        self._traffic.sent_bytes += len(data)
        return data

    def close(self) -> None:
        """See `Content.close`."""
        self._content.close()


async def require_inputs(
    tx: Transaction, user_id: str, job_id: str, artifact_ids: Sequence[str]
) -> None:
    """Check that a job may use these artifacts, and keep them as long as it is open.

    To be called in the transaction that puts the job up, behind the insertion of its row.

    Args:
        tx: the transaction.
        user_id: the buyer.
        job_id: the job.
        artifact_ids: in the order of `payload.inputs`, "" for one that is no artifact.

    Raises:
        MarketError: `invalid_field`, when one is not the buyer's, or not whole.
    """
    await tx.lock("artifacts", [each for each in artifact_ids if each])
    for at, artifact_id in enumerate(artifact_ids):
        if not artifact_id:
            continue
        field = f"payload.inputs[{at}].artifact_id"
        row = await queries.find(tx, artifact_id)
        if row is None or row.user_id != user_id:
            message = "The caller has no such artifact."
            raise MarketError(Code.INVALID_FIELD, message, field=field)
        if row.content_id is None:
            raise MarketError(Code.INVALID_FIELD, NOT_WHOLE, field=field)
    await queries.need(tx, job_id, [each for each in artifact_ids if each])


async def inputs_of(tx: Transaction, job_id: str, inputs: Sequence[Input]) -> list[WorkInput]:
    """Return the files of a device for a job, in the order of its payload's inputs."""
    rows = {}
    if any(each.artifact_id for each in inputs):
        rows = {row.id: row for row in await queries.inputs_of(tx, job_id)}
    work = []
    for each in inputs:
        path = each.path or each.name
        if not each.artifact_id:
            work.append(WorkInput(each.name, path, each.sha256, each.unpack, url=each.url))
            continue
        row = rows[each.artifact_id]  # it is kept as long as the job is open
        work.append(
            WorkInput(each.name, path, row.digest, each.unpack, row.size_bytes, artifact_id=row.id)
        )
    return work


async def checkpoint_of(tx: Transaction, job_id: str) -> WorkCheckpoint | None:
    """Return the newest whole checkpoint of a job."""
    rows = await queries.checkpoints(tx, job_id)
    if not rows:
        return None
    return WorkCheckpoint(rows[0].id, rows[0].digest, rows[0].size_bytes)


def wants_files(payload: bytes) -> bool:
    """Return whether a payload, as JSON, may have files to fetch; nearly none has."""
    return b'"inputs"' in payload or b'"checkpoint"' in payload


async def files_of(tx: Transaction, job_id: str, payload: bytes) -> WorkFiles:
    """Return the files that a device fetches for a job with this stored payload."""
    wanted = msgspec.json.decode(payload, type=_Wanted)
    inputs = await inputs_of(tx, job_id, wanted.inputs)
    checkpoint = None if wanted.checkpoint is None else await checkpoint_of(tx, job_id)
    return WorkFiles(inputs, checkpoint)


def _check_name(name: str, check: Callable[[str, str], None]) -> None:
    try:
        check("name", name)
    except SpecError as error:
        raise MarketError(Code.INVALID_FIELD, error.message, field="name") from error


def _has_room(kind: str, new: NewArtifact | ArtifactRow) -> bool:
    """Return whether a file is accepted beyond all limits: the list of missing outputs."""
    return kind == OUTPUT and new.name == LEFT_OUT and new.size_bytes <= LEFT_OUT_MAX_BYTES


async def _announce(tx: Transaction, row: ArtifactRow, terms: ArtifactTerms) -> ArtifactRow:
    await lock_open_user(tx, row.user_id)
    content_id = None
    for each in await queries.with_hash(tx, row.user_id, row.digest):
        if each.size_bytes != row.size_bytes:
            continue
        if each.kind == INPUT and each.name == row.name:
            return each
        # Only files that this user has sent or received: the knowledge of a hash does not give
        # access to its file.
        content_id = content_id or each.content_id
    await _require_room(tx, row, terms)
    return await _insert(tx, row, content_id)


async def _announce_for_job(
    tx: Transaction, row: ArtifactRow, device_id: str, terms: ArtifactTerms
) -> ArtifactRow:
    job_id, attempt = row.job_id or "", row.attempt or 0
    await tx.lock("jobs", [job_id])
    job = await require_current(tx, device_id, job_id, attempt)
    await lock_user(tx, job.user_id)
    row = row._replace(user_id=job.user_id)
    older = await queries.named(tx, job_id, attempt, row.name)
    for each in older:
        if each.kind != row.kind:
            continue
        if each.digest == row.digest and each.size_bytes == row.size_bytes:
            return each
        if each.content_id is None or row.kind == OUTPUT:
            # The sweep deletes it: its bytes are outside of the database.
            await queries.expire_at(tx, each.id, row.created_at)
    content_id = None
    for each in await queries.with_hash(tx, row.user_id, row.digest):
        # Files that this job's devices have sent, such as an unchanged checkpoint.
        if each.job_id == job_id and each.size_bytes == row.size_bytes:
            content_id = content_id or each.content_id
    if not _has_room(row.kind, row) or len(older) >= LEFT_OUT_MOST:
        used = await queries.of_attempt(tx, job_id, attempt)
        _require(used, row, terms.job_files, terms.job_bytes, "one attempt at a job")
        await _require_room(tx, row, terms)
    return await _insert(tx, row, content_id)


async def _insert(tx: Transaction, row: ArtifactRow, content_id: str | None) -> ArtifactRow:
    """Add an artifact; with a content that still exists, it is whole immediately."""
    if content_id is not None:
        await tx.lock("artifact_contents", [content_id])
        if await queries.has_content(tx, content_id):
            row = row._replace(content_id=content_id, whole_at=row.created_at, expires_at=None)
    await queries.insert(tx, row)
    if row.content_id is not None:
        await _replace_older(tx, row, row.created_at)
    return row


async def _require_room(tx: Transaction, row: ArtifactRow, terms: ArtifactTerms) -> None:
    if not terms.user_files and not terms.user_bytes:
        return
    used = await queries.of_user(tx, row.user_id)
    _require(used, row, terms.user_files, terms.user_bytes, "the artifacts of one user")


def _require(
    used: FilesRow, row: ArtifactRow, most_files: int, most_bytes: int, whose: str
) -> None:
    code = Code.ARTIFACT_QUOTA_EXCEEDED
    if most_files and used.files + 1 > most_files:
        raise MarketError(code, f"{code.meaning} Of {whose}, {most_files} files are kept.")
    if most_bytes and used.size_bytes + row.size_bytes > most_bytes:
        raise MarketError(code, f"{code.meaning} Of {whose}, {most_bytes} bytes are kept.")


async def _owned(tx: Transaction, user_id: str, artifact_id: str) -> ArtifactRow:
    row = await queries.find(tx, artifact_id)
    if row is None or row.user_id != user_id:
        raise MarketError(Code.ARTIFACT_NOT_FOUND)
    return row


async def _sent_by(tx: Transaction, device_id: str, artifact_id: str) -> ArtifactRow:
    row = await queries.find(tx, artifact_id)
    if row is None or row.job_id is None:
        raise MarketError(Code.ARTIFACT_NOT_FOUND)
    try:
        await require_current(tx, device_id, row.job_id, row.attempt)
    except MarketError as error:
        if error.code is Code.JOB_NOT_FOUND:  # another's job: nor is there an artifact of it
            raise MarketError(Code.ARTIFACT_NOT_FOUND) from error
        raise
    return row


async def _page_of_job(
    tx: Transaction, user_id: str, job_id: str, before: str, limit: int
) -> list[ArtifactRow]:
    job = await job_queries.find(tx, job_id)
    if job is None or job.user_id != user_id:
        raise MarketError(Code.JOB_NOT_FOUND)
    return await queries.page_of_job(tx, job_id=job_id, before=before, limit=limit)


async def _finish(
    tx: Transaction,
    artifact_id: str,
    key: str,
    is_checked: bool,
    device_id: str | None,
    now: int,
) -> ArtifactRow:
    row = await queries.find(tx, artifact_id)
    if row is None:
        raise MarketError(Code.ARTIFACT_NOT_FOUND)
    if row.job_id is not None:
        await tx.lock("jobs", [row.job_id])
        if device_id is not None:
            await require_current(tx, device_id, row.job_id, row.attempt)
    await tx.lock("artifacts", [artifact_id])
    row = await queries.find(tx, artifact_id)
    if row is None:
        raise MarketError(Code.ARTIFACT_NOT_FOUND)
    if row.content_id is not None:
        return row
    content_id = await _content(tx, row, key, is_checked=is_checked, now=now)
    await queries.complete(tx, artifact_id, content_id, now)
    row = row._replace(content_id=content_id, whole_at=now, expires_at=None)
    await _replace_older(tx, row, now)
    return row


async def _require_unfinished(tx: Transaction, artifact_id: str) -> None:
    row = await queries.find(tx, artifact_id)
    if row is None or row.content_id is not None:
        raise UnwantedError


async def _content(
    tx: Transaction, row: ArtifactRow, key: str, *, is_checked: bool, now: int
) -> str:
    """Return the content for received bytes: a shared content, or the new one.

    Bytes that were received twice are recorded as dropped, so that the second copy is deleted.
    """
    for _ in range(CONTENT_ATTEMPTS if is_checked else 1):
        shared = await queries.shared_content(tx, row.digest) if is_checked else None
        if shared is not None:
            await tx.lock("artifact_contents", [shared])
            if await queries.has_content(tx, shared):
                await queries.drop_upload(tx, row, now)
                return shared
        if await queries.insert_content(
            tx, content_id=key, digest=row.digest, size_bytes=row.size_bytes, is_checked=is_checked
        ):
            return key
    raise MarketError(Code.TOO_BUSY, "The same content was sent a moment ago; try again.")


async def _replace_older(tx: Transaction, row: ArtifactRow, now: int) -> None:
    """Schedule the deletion of the checkpoints that a new one replaces."""
    if row.kind != CHECKPOINT or row.job_id is None:
        return
    for each in await queries.checkpoints(tx, row.job_id):
        if each.id < row.id:
            await queries.expire_at(tx, each.id, now)


async def _delete(tx: Transaction, row: ArtifactRow, now: int) -> None:
    """Delete a locked artifact, and schedule the deletion of its bytes if no other has them."""
    if row.content_id is None:
        await queries.drop_upload(tx, row, now)
        await queries.delete(tx, row.id)
        return
    await tx.lock("artifact_contents", [row.content_id])
    await queries.delete(tx, row.id)
    await queries.drop_unused_content(tx, row.content_id, now)


async def _is_needed(tx: Transaction, artifact_id: str, now: int) -> bool:
    """Return whether an artifact must stay, even if its owner deletes it or its time is over.

    A buyer that could delete an output before the comparison would get it without a payment. The
    files of a job in review, or of a disputed one, are evidence.
    """
    return (
        await queries.is_needed(tx, artifact_id)
        or await queries.is_compared(tx, artifact_id)
        or await queries.is_evidence(tx, artifact_id, decided_after=decided_after(now))
    )


async def _delete_owned(tx: Transaction, user_id: str, artifact_id: str, now: int) -> None:
    await tx.lock("artifacts", [artifact_id])
    row = await _owned(tx, user_id, artifact_id)
    if await _is_needed(tx, artifact_id, now) or await _is_being_sent(tx, row):
        raise MarketError(Code.ARTIFACT_NEEDED)
    await _delete(tx, row, now)


async def _is_being_sent(tx: Transaction, row: ArtifactRow) -> bool:
    """Return whether the running attempt sends an artifact, and has not finished it.

    Without it the device could not hand in its work, and the buyer would have the other files for
    nothing.
    """
    if row.job_id is None or row.content_id is not None:
        return False
    job = await job_queries.find(tx, row.job_id)
    return job is not None and job.status == JobStatus.RUNNING and job.attempts == row.attempt


async def _expire(tx: Transaction, artifact_id: str, now: int) -> None:
    await tx.lock("artifacts", [artifact_id])
    row = await queries.find(tx, artifact_id)
    if row is None or row.expires_at is None or row.expires_at > now:
        return
    if await _is_needed(tx, artifact_id, now):
        await queries.expire_at(tx, artifact_id, now + DAY_SECONDS)
    else:
        await _delete(tx, row, now)


def _row(artifact_id: str, user_id: str, kind: Kind, new: NewArtifact, now: int) -> ArtifactRow:
    return ArtifactRow(
        id=artifact_id,
        user_id=user_id,
        job_id=None,
        attempt=None,
        kind=kind,
        name=new.name,
        digest=new.sha256,
        size_bytes=new.size_bytes,
        reference="",
        content_id=None,
        created_at=now,
        whole_at=None,
        expires_at=now + UNFINISHED_SECONDS,
    )


def _content_id(artifact: ArtifactRow) -> str:
    """Return the identifier of the content of an artifact that is whole."""
    if artifact.content_id is None:
        raise MarketError(Code.ARTIFACT_NOT_FOUND, NOT_WHOLE)
    return artifact.content_id


def _longer(artifact: ArtifactRow) -> MarketError:
    message = f"{Code.ARTIFACT_MISMATCH.meaning} More than {artifact.size_bytes} bytes are sent."
    return MarketError(Code.ARTIFACT_MISMATCH, message)
