"""Reading jobs for the devices that have them: payloads with secrets, and files to be fetched."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import structs

from market.dispatch.asks import GivenJob, Told
from market.files.artifacts import files_of, wants_files
from market.jobs.specs import Specs
from proxyctl.protocol.jobspec import as_fields
from storage.dispatch.claims import GivenRow
from storage.engines.store import Store


class GivenJobs:
    """Reader of jobs that were given to devices.

    Args:
        end_unreadable: ends a job whose secrets cannot be read any more.
    """

    def __init__(
        self, store: Store, specs: Specs, end_unreadable: Callable[[str], Awaitable[None]]
    ) -> None:
        self._store = store
        self._specs = specs
        self._end_unreadable = end_unreadable

    async def readable(self, rows: Sequence[GivenRow]) -> list[GivenJob]:
        """Return jobs with their payloads; one whose secrets cannot be read any more is ended."""
        jobs = []
        for row in rows:
            payload = self._payload(row)
            if payload is None:
                await self._end_unreadable(row.job_id)
            else:
                jobs.append(GivenJob(row, payload))
        return jobs

    def _payload(self, row: GivenRow) -> bytes | None:
        """Return a payload with its secrets; nearly all have none, and are as they were stored.

        None when they cannot be read: the key was changed since the job was given to the device.
        """
        if row.secrets is None:
            return row.payload.encode()
        payload = self._specs.payload_of(row.payload, row.secrets)
        return None if payload is None else msgspec.json.encode(as_fields(payload))

    async def with_files(self, told: Told) -> Told:
        """Add the files of the jobs; if that fails, the next answer has the jobs again."""
        if not any(wants_files(job.payload) for job in told.jobs):
            return told
        jobs = [
            structs.replace(
                job,
                files=await self._store.read(files_of, job.row.job_id, job.row.payload.encode()),
            )
            if wants_files(job.payload)
            else job
            for job in told.jobs
        ]
        return structs.replace(told, jobs=jobs)
