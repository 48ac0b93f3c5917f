"""Queries on artifacts, which are files of jobs, and on the contents that they share."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.blobs.base import Upload
from storage.engines.paging import NEWEST_FIRST, behind, matches
from storage.engines.store import Transaction, insert_row
from storage.files import evidence


class ArtifactRow(NamedTuple):  # as wide as its table
    """An artifact: `user_id` is its owner, `content_id` its content once it is whole.

    `digest` is its SHA-256 in hexadecimal, times are UTC seconds. `reference` is the name of its
    upload at a store elsewhere.
    """

    id: str
    user_id: str
    job_id: str | None
    attempt: int | None
    kind: str
    name: str
    digest: str
    size_bytes: int
    reference: str
    content_id: str | None
    created_at: int
    whole_at: int | None
    expires_at: int | None


class FilesRow(NamedTuple):
    """The number of files, and their bytes."""

    files: int
    size_bytes: int


class EndedRow(NamedTuple):
    """A whole file of a job, after its attempt, or all attempts, are over.

    `outcome` is the end of the attempt, "" while it runs.
    """

    id: str
    kind: str
    outcome: str


_COLUMNS = ", ".join(ArtifactRow._fields)
_ARTIFACT = f"SELECT {_COLUMNS} FROM artifacts"
_OF_A = ", ".join(f"a.{name}" for name in ArtifactRow._fields)


async def insert(tx: Transaction, artifact: ArtifactRow) -> None:
    """Add an artifact."""
    await insert_row(tx, "artifacts", **artifact._asdict())


async def find(tx: Transaction, artifact_id: str) -> ArtifactRow | None:
    """Return an artifact."""
    return await tx.one(ArtifactRow, f"{_ARTIFACT} WHERE id = :id", id=artifact_id)


def upload_of(artifact: ArtifactRow) -> Upload:
    """Return the upload that brings an artifact's bytes."""
    return Upload(artifact.id, artifact.digest, artifact.size_bytes, artifact.reference)


async def find_for_device(tx: Transaction, artifact_id: str, device_id: str) -> ArtifactRow | None:
    """Return an artifact that a job needs which a device runs: an input, or its checkpoint."""
    return await tx.one(
        ArtifactRow,
        f"""
        SELECT {_OF_A} FROM artifacts AS a
        WHERE a.id = :id AND (
            EXISTS (
                SELECT 1 FROM job_inputs AS i JOIN jobs AS j ON j.id = i.job_id
                WHERE i.artifact_id = a.id AND j.status = 'running' AND j.device_id = :device_id
            )
            OR a.kind = 'checkpoint' AND EXISTS (
                SELECT 1 FROM jobs AS j
                WHERE j.id = a.job_id AND j.status = 'running' AND j.device_id = :device_id
            )
        )
        """,
        id=artifact_id,
        device_id=device_id,
    )


async def with_hash(tx: Transaction, user_id: str, digest: str) -> list[ArtifactRow]:
    """Return a user's newest artifacts with some content, whole or not: enough to find one."""
    return await tx.all(
        ArtifactRow,
        f"""
        {_ARTIFACT} WHERE user_id = :user_id AND digest = :digest
        ORDER BY id {NEWEST_FIRST} LIMIT 100
        """,
        user_id=user_id,
        digest=digest,
    )


async def named(tx: Transaction, job_id: str, attempt: int, name: str) -> list[ArtifactRow]:
    """Return the artifacts of an attempt with one name."""
    return await tx.all(
        ArtifactRow,
        f"""
        {_ARTIFACT} WHERE job_id = :job_id AND attempt = :attempt AND name = :name
        ORDER BY id
        """,
        job_id=job_id,
        attempt=attempt,
        name=name,
    )


async def page_of_user(
    tx: Transaction, *, user_id: str, before: str, limit: int
) -> list[ArtifactRow]:
    """Return a user's artifacts, newest first."""
    return await tx.all(
        ArtifactRow,
        f"""
        {_ARTIFACT} WHERE user_id = :user_id AND id < :before
        ORDER BY id {NEWEST_FIRST} LIMIT :limit
        """,
        user_id=user_id,
        before=behind(before),
        limit=limit,
    )


async def page_of_job(
    tx: Transaction, *, job_id: str, before: str, limit: int
) -> list[ArtifactRow]:
    """Return the artifacts of a job's attempts, newest first."""
    return await tx.all(
        ArtifactRow,
        f"""
        {_ARTIFACT} WHERE job_id = :job_id AND id < :before
        ORDER BY id {NEWEST_FIRST} LIMIT :limit
        """,
        job_id=job_id,
        before=behind(before),
        limit=limit,
    )


async def unfinished(tx: Transaction, user_id: str) -> list[ArtifactRow]:
    """Return a user's artifacts that are not whole."""
    return await tx.all(
        ArtifactRow,
        f"{_ARTIFACT} WHERE user_id = :user_id AND content_id IS NULL ORDER BY id",
        user_id=user_id,
    )


async def of_user(tx: Transaction, user_id: str) -> FilesRow:
    """Count all that a user has."""
    row = await tx.one(
        FilesRow,
        """
        SELECT COUNT(*), CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) FROM artifacts
        WHERE user_id = :user_id
        """,
        user_id=user_id,
    )
    return row or FilesRow(0, 0)


async def of_attempt(tx: Transaction, job_id: str, attempt: int) -> FilesRow:
    """Count all that an attempt has sent."""
    row = await tx.one(
        FilesRow,
        """
        SELECT COUNT(*), CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) FROM artifacts
        WHERE job_id = :job_id AND attempt = :attempt
        """,
        job_id=job_id,
        attempt=attempt,
    )
    return row or FilesRow(0, 0)


async def refer(tx: Transaction, artifact_id: str, reference: str) -> None:
    """Record the name of an upload at a store elsewhere."""
    await tx.run(
        "UPDATE artifacts SET reference = :reference WHERE id = :id AND content_id IS NULL",
        id=artifact_id,
        reference=reference,
    )


async def complete(tx: Transaction, artifact_id: str, content_id: str, now: int) -> None:
    """Set the content of an artifact, which then is whole and does not expire by itself."""
    row_count = await tx.run(
        """
        UPDATE artifacts SET content_id = :content_id, whole_at = :now, expires_at = NULL
        WHERE id = :id AND content_id IS NULL
        """,
        id=artifact_id,
        content_id=content_id,
        now=now,
    )
    assert row_count == 1  # noqa: S101 - the row is locked, and was not whole


async def expire_at(tx: Transaction, artifact_id: str, at: int) -> None:
    """Set when an artifact is deleted, in UTC seconds."""
    await tx.run("UPDATE artifacts SET expires_at = :at WHERE id = :id", id=artifact_id, at=at)


async def delete(tx: Transaction, artifact_id: str) -> None:
    """Delete an artifact, and the records that ended jobs used it."""
    await tx.run("DELETE FROM job_inputs WHERE artifact_id = :id", id=artifact_id)
    await tx.run("DELETE FROM artifacts WHERE id = :id", id=artifact_id)


async def due(tx: Transaction, *, now: int, limit: int) -> list[str]:
    """Return artifacts whose time is over, the longest first."""
    return await tx.all(
        str,
        """
        SELECT id FROM artifacts WHERE expires_at IS NOT NULL AND expires_at <= :now
        ORDER BY expires_at LIMIT :limit
        """,
        now=now,
        limit=limit,
    )


async def ended(tx: Transaction, *, limit: int) -> list[EndedRow]:
    """Return whole files of ended attempts whose time of expiry is not set yet.

    A checkpoint is there for the next attempt: it waits for the job to be over. There is a job for
    each; the outer join has SQLite begin with the few files, not with the many jobs.
    """
    return await tx.all(
        EndedRow,
        """
        SELECT a.id, a.kind, COALESCE(t.outcome, '') FROM artifacts AS a
        LEFT JOIN jobs AS j ON j.id = a.job_id
        LEFT JOIN job_attempts AS t ON t.job_id = a.job_id AND t.attempt = a.attempt
        WHERE a.kind IN ('output', 'checkpoint') AND a.kind <> 'input' AND a.expires_at IS NULL
        AND (
            j.status NOT IN ('waiting', 'running')
            OR a.kind = 'output' AND t.ended_at IS NOT NULL
        )
        LIMIT :limit
        """,
        limit=limit,
    )


async def checkpoints(tx: Transaction, job_id: str) -> list[ArtifactRow]:
    """Return a job's whole checkpoints, newest first; there are few."""
    return await tx.all(
        ArtifactRow,
        f"""
        {_ARTIFACT}
        WHERE job_id = :job_id AND {matches("kind", "kind")} AND content_id IS NOT NULL
        ORDER BY id {NEWEST_FIRST} LIMIT 100
        """,
        job_id=job_id,
        kind="checkpoint",
    )


async def need(tx: Transaction, job_id: str, artifact_ids: Sequence[str]) -> None:
    """Write down which artifacts a job is given."""
    for artifact_id in artifact_ids:
        await tx.run(
            """
            INSERT INTO job_inputs (job_id, artifact_id) VALUES (:job_id, :artifact_id)
            ON CONFLICT DO NOTHING
            """,
            job_id=job_id,
            artifact_id=artifact_id,
        )


async def is_needed(tx: Transaction, artifact_id: str) -> bool:
    """Return whether a job that is not over is given an artifact, or has it as its output.

    An output that the attempt has sent anew is no output any more.
    """
    row = await tx.one(
        int,
        """
        SELECT 1 FROM artifacts AS a WHERE a.id = :id AND (
            EXISTS (
                SELECT 1 FROM job_inputs AS i JOIN jobs AS j ON j.id = i.job_id
                WHERE i.artifact_id = a.id AND j.status IN ('waiting', 'running')
            )
            OR (
                a.kind = 'output'
                AND EXISTS (
                    SELECT 1 FROM jobs AS own
                    WHERE own.id = a.job_id AND own.attempts = a.attempt
                        AND own.status = 'running'
                )
                AND NOT EXISTS (
                    SELECT 1 FROM artifacts AS later
                    WHERE later.job_id = a.job_id AND later.attempt = a.attempt
                        AND later.name = a.name AND later.kind = a.kind AND later.id > a.id
                )
            )
        )
        """,
        id=artifact_id,
    )
    return row is not None


async def is_compared(tx: Transaction, artifact_id: str) -> bool:
    """Return whether the result of a copy may still be judged by an output.

    It may as long as a copy of the group is not over, and unless the attempt has sent the output
    anew.
    """
    row = await tx.one(
        int,
        """
        SELECT 1 FROM artifacts AS a
        JOIN jobs AS own ON own.id = a.job_id AND own.attempts = a.attempt
        JOIN job_copies AS c ON c.job_id = a.job_id
        JOIN job_copies AS others ON others.group_id = c.group_id
        JOIN jobs AS j ON j.id = others.job_id
        WHERE a.id = :id AND a.kind = 'output' AND own.status IN ('running', 'completed')
            AND j.status IN ('waiting', 'running')
            AND NOT EXISTS (
                SELECT 1 FROM artifacts AS later
                WHERE later.job_id = a.job_id AND later.attempt = a.attempt
                    AND later.name = a.name AND later.kind = a.kind AND later.id > a.id
            )
        LIMIT 1
        """,
        id=artifact_id,
    )
    return row is not None


async def is_evidence(tx: Transaction, artifact_id: str, *, decided_after: int) -> bool:
    """Return whether an artifact is `evidence`: a job has sent it, or was given it."""
    row = await tx.one(
        int,
        f"""
        SELECT 1 FROM artifacts AS a WHERE a.id = :id AND (
            {evidence.is_evidence("a.job_id")}
            OR EXISTS (
                SELECT 1 FROM job_inputs AS i
                WHERE i.artifact_id = a.id AND {evidence.is_evidence("i.job_id")}
            )
        )
        """,
        id=artifact_id,
        decided_after=decided_after,
    )
    return row is not None


async def inputs_of(tx: Transaction, job_id: str) -> list[ArtifactRow]:
    """Return the artifacts that a job is given."""
    return await tx.all(
        ArtifactRow,
        f"""
        SELECT {_OF_A} FROM artifacts AS a JOIN job_inputs AS i ON i.artifact_id = a.id
        WHERE i.job_id = :job_id
        """,
        job_id=job_id,
    )


async def shared_content(tx: Transaction, digest: str) -> str | None:
    """Return the content that all artifacts with a hash share; None if they share none."""
    return await tx.one(
        str,
        """
        SELECT id FROM artifact_contents
        WHERE digest = :digest AND is_checked = 1 AND dropped_at IS NULL
        """,
        digest=digest,
    )


async def has_content(tx: Transaction, content_id: str) -> bool:
    """Return whether a content is there and not dropped."""
    row = await tx.one(
        int,
        "SELECT 1 FROM artifact_contents WHERE id = :id AND dropped_at IS NULL",
        id=content_id,
    )
    return row is not None


async def insert_content(
    tx: Transaction, *, content_id: str, digest: str, size_bytes: int, is_checked: bool
) -> bool:
    """Add a content; False when another one with the same hash was faster."""
    row_count = await tx.run(
        """
        INSERT INTO artifact_contents (id, digest, size_bytes, is_checked)
        VALUES (:id, :digest, :size_bytes, :is_checked)
        ON CONFLICT DO NOTHING
        """,
        id=content_id,
        digest=digest,
        size_bytes=size_bytes,
        is_checked=int(is_checked),
    )
    return row_count == 1


async def drop_upload(tx: Transaction, artifact: ArtifactRow, now: int) -> None:
    """Schedule the deletion of the bytes that were sent for an artifact, and are not its content.

    A transaction that deletes the artifact calls it as well: no other row names these bytes.
    """
    upload = upload_of(artifact)
    await tx.run(
        """
        INSERT INTO artifact_contents (id, digest, size_bytes, is_checked, dropped_at, reference)
        VALUES (:id, :digest, :size_bytes, 0, :now, :reference)
        ON CONFLICT DO NOTHING
        """,
        id=upload.key,
        digest=upload.sha256,
        size_bytes=upload.size_bytes,
        now=now,
        reference=upload.reference,
    )


async def drop_unused_content(tx: Transaction, content_id: str, now: int) -> None:
    """Drop a content that no artifact has any more; it must be locked."""
    await tx.run(
        """
        UPDATE artifact_contents SET dropped_at = :now
        WHERE id = :id AND dropped_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM artifacts WHERE content_id = :id)
        """,
        id=content_id,
        now=now,
    )


async def dropped(tx: Transaction, *, until: int, limit: int) -> list[str]:
    """Return contents to delete: the contents that were dropped until a moment."""
    return await tx.all(
        str,
        """
        SELECT id FROM artifact_contents WHERE dropped_at IS NOT NULL AND dropped_at <= :until
        ORDER BY dropped_at LIMIT :limit
        """,
        until=until,
        limit=limit,
    )


async def dropped_upload(tx: Transaction, content_id: str) -> Upload | None:
    """Return the upload that brought a dropped content; None when the content is deleted."""
    return await tx.one(
        Upload.of_key,
        """
        SELECT id, size_bytes, reference FROM artifact_contents
        WHERE id = :id AND dropped_at IS NOT NULL
        """,
        id=content_id,
    )


async def delete_content(tx: Transaction, content_id: str) -> None:
    """Delete the record of a dropped content, once its bytes are gone."""
    await tx.run(
        "DELETE FROM artifact_contents WHERE id = :id AND dropped_at IS NOT NULL", id=content_id
    )
