"""The end of logs: logs that are too old, or exceed a user's limit, are removed.

Logs of a job in review stay, and those of a disputed one until the time for an appeal is over.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from market.base.sweeping import Sweep
from market.events.context import Context
from market.files.evidence import decided_after
from market.logs.disk import LogDisk
from storage.logs import logs as queries
from storage.logs.files import Attempt, LogFiles
from storage.logs.logs import LogRow

SWEEP_MAX_LOGS = 200
# Times the bound, for logs that are evidence: a buyer with devices of its own could fill the disk
# with disputed jobs.
EVIDENCE_TIMES = 4

_logger = logging.getLogger("jobs")


class LogKeeper:
    """Removes logs that are too old, or exceed a user's limit.

    Args:
        keep_seconds: how long a log is kept once its attempt is over.
        bytes_per_user: how much the logs of a user may take once their attempts are over; 0 for no
            limit.
    """

    def __init__(
        self, context: Context, disk: LogDisk, *, keep_seconds: int, bytes_per_user: int
    ) -> None:
        self._store = context.store
        self._now = context.now
        self._disk = disk
        self._keep_seconds = keep_seconds
        self._bytes_per_user = bytes_per_user
        self._ending = Sweep("what the log %s takes cannot be counted", _logger)
        self._removing = Sweep("the log %s cannot be removed", _logger)

    async def sweep(self) -> int:
        """Remove logs that are too old, or exceed a user's limit. Return the number removed.

        To be called again and again.

        Raises:
            UnavailableError: the store did not answer.
        """
        now = self._now()
        rows: dict[str, LogRow] = {}
        users: set[str] = set()

        async def ended(limit: int) -> list[str]:
            return _named(rows, await self._store.read(queries.newly_ended, limit=limit))

        async def mark(name: str) -> None:
            row = rows[name]
            kept = await self._disk.run(LogFiles.kept_bytes, _attempt_in(row))
            await self._store.write(queries.mark_ended, row._replace(kept_bytes=kept), now)
            users.add(row.user_id)

        async def old(limit: int) -> list[LogRow]:
            moment = now - self._keep_seconds
            return await self._store.read(
                queries.ended_before, moment, decided_after=decided_after(now), limit=limit
            )

        await self._ending.run(ended, mark, most=SWEEP_MAX_LOGS, now=now)
        removed = await self._remove(old, now)
        for user_id in users if self._bytes_per_user else ():
            removed += await self._keep_to_bound(user_id, now)
        return removed

    async def _keep_to_bound(self, user_id: str, now: int) -> int:
        """Remove the oldest logs of a user above the bound. Return the number removed."""
        bound = self._bytes_per_user
        removed = await self._remove_above(user_id, bound, decided_after(now), now)
        return removed + await self._remove_above(user_id, EVIDENCE_TIMES * bound, None, now)

    async def _remove_above(self, user_id: str, bound: int, decided: int | None, now: int) -> int:
        """Remove the oldest logs of a user above a bound.

        With `decided` (UTC seconds) evidence stays: that of later decisions, and of open reviews.
        """
        over = await self._store.read(queries.kept_bytes, user_id) - bound

        async def oldest(limit: int) -> list[LogRow]:
            rows = await self._store.read(
                queries.oldest_of_user, user_id, decided_after=decided, limit=limit
            )
            before = accumulate((row.kept_bytes for row in rows), initial=0)
            return [row for row, size in zip(rows, before, strict=False) if size < over]

        return 0 if over <= 0 else await self._remove(oldest, now)

    async def _remove(self, find: Callable[[int], Awaitable[list[LogRow]]], now: int) -> int:
        """Remove logs. Return the number removed. A log that cannot be removed delays no other."""
        rows: dict[str, LogRow] = {}

        async def due(limit: int) -> list[str]:
            return _named(rows, await find(limit))

        async def remove(name: str) -> None:
            await self._disk.run(LogFiles.remove, _attempt_in(rows[name]))
            await self._store.write(queries.delete, [rows[name]])

        return await self._removing.run(due, remove, most=SWEEP_MAX_LOGS, now=now)


def _named(rows: dict[str, LogRow], more: Sequence[LogRow]) -> list[str]:
    """Add rows by the names of their logs, and return the names."""
    names = [f"{row.job_id}-{row.attempt}" for row in more]
    rows.update(zip(names, more, strict=True))
    return names


def _attempt_in(row: LogRow) -> Attempt:
    return Attempt(row.job_id, row.attempt)
