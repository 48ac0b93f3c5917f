"""Signs of life of attempts: kept in memory, and written down in batches.

Like heartbeats they repeat, and only the last one matters. After a crash an attempt
has lost those of the last seconds, which is nothing against the time that it may be silent.
"""

import asyncio
import logging
from itertools import islice

from market.events.context import Context
from storage.attempts import attempts as queries
from storage.attempts.attempts import RenewalRow
from storage.engines.errors import StoreError
from storage.engines.outage import Outage

WRITE_SECONDS = 2.0  # another daemon may judge the silence, so it should see them soon
WRITE_MAX_ATTEMPTS = 1_000  # in one statement, so that others do not wait long for it

_logger = logging.getLogger("attempts")


class Renewals:
    """Buffer of attempts that were reported, until they are stored.

    It holds at most the running attempts: the caller of `renew` has checked that the attempt is the
    current one.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._now = context.now
        self._unwritten: dict[tuple[str, int], RenewalRow] = {}
        self._flushing = asyncio.Lock()
        self._outage = Outage(
            _logger, "renewals of attempts wait for the store to return", logging.ERROR
        )

    def renew(self, job_id: str, attempt: int) -> None:
        """Note that a device works on an attempt, as a log that arrives shows."""
        before = self._unwritten.get((job_id, attempt)) or RenewalRow(job_id, attempt, 0)
        self._unwritten[job_id, attempt] = before._replace(renewed_at=self._now())

    def name(self, job_id: str, attempt: int, phase: str | None, progress: float | None) -> None:
        """Buffer a device's report that it holds an attempt, with its progress."""
        self._unwritten[job_id, attempt] = RenewalRow(
            job_id, attempt, self._now(), is_named=True, phase=phase, progress=progress
        )

    def has_named(self, job_id: str, attempt: int) -> bool:
        """Return whether a device has named an attempt and that is not stored yet."""
        row = self._unwritten.get((job_id, attempt))
        return row is not None and row.is_named

    async def flush(self) -> None:
        """Store the buffered renewals; one flush waits for the other.

        Raises:
            StoreError: unsaved renewals stay for the next flush.
        """
        async with self._flushing:
            while self._unwritten:
                batch = list(islice(self._unwritten.values(), WRITE_MAX_ATTEMPTS))
                await self._store.write(queries.renew, batch)
                for row in batch:
                    key = row.job_id, row.attempt
                    if self._unwritten.get(key) is row:  # not renewed again meanwhile
                        del self._unwritten[key]

    async def run(self) -> None:
        """Store the buffered renewals until cancelled; failures of the store only delay this."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            try:
                await self.flush()
            except StoreError as error:
                self._outage.failed(error)
            else:
                self._outage.ended()
