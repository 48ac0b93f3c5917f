"""Attempts that end without a report: their devices are silent, or their time is over.

Wall clocks do not decide that, because clocks jump, and the clocks of several daemons differ. The
measure of silence is the time in which this daemon could receive reports, but an attempt did not
change. The time of work is measured by a clock in the database, which advances while a daemon is up
and jobs run. So after a restart no attempt is lost, and one that takes too long has no more time
than that.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from msgspec import Struct

from market.attempts.renewals import Renewals
from market.devices.devices import Devices
from market.devices.reports import ONLINE_SECONDS
from market.events.context import Context
from proxyctl.protocol.jobspec.checks import GRACE_MAX_SECONDS
from storage.attempts import attempts as queries
from storage.attempts.attempts import OverdueRow, QuietRow, UnstartedRow
from storage.engines.store import Transaction

SILENCE_SECONDS = 600
QUIET_SECONDS = ONLINE_SECONDS  # a device that is not online may have abandoned its job
LOOK_MAX_ATTEMPTS = 10_000
# Of each kind in one look: each attempt needs a transaction, and another look follows.
END_MAX_ATTEMPTS = 100
KINDS = 3  # silent attempts, those that are not begun, and those without time left
# Most seconds that count between two looks. A longer gap means that the daemon did not look: it
# hung, or another daemon looked.
LOOK_MAX_SECONDS = 60
TIME_MAX_ATTEMPTS = 1_000  # are given their deadlines in one transaction
PLAIN_TIMES = 2  # a job without a time limit may take this multiple of its estimate
# A device ends the work itself when the time is over, within `grace_s`, and reports it.
GRACE_SECONDS = 120
# Work with a payload may go on for its `grace_s` after the signal to end. An attempt that is taken
# back before is not paid.
STOP_SECONDS = GRACE_SECONDS + GRACE_MAX_SECONDS
# It may then have gigabytes to hand over, on a line that it shares with others.
DELIVERY_SECONDS = 6 * 3_600
PREPARING = "preparing"
# A device ends its preparation by itself before that. This is the time for its report to arrive,
# or a tenth of a short time to prepare.
PREPARE_MARGIN_SECONDS = 120
PREPARE_MARGIN_PARTS = 10
VANISHED = "the device stopped reporting"
NOT_STARTED = "the device did not begin the work in time"
TOO_LONG = "the work took longer than it may"
NOT_READY = "it did not become ready in time"

Row = TypeVar("Row", bound=Hashable)


class Leases(Struct, frozen=True):
    """Longest silence of an attempt, time before its start, and preparation; in seconds."""

    lease_seconds: int = 600
    start_seconds: int = 300
    prepare_seconds: int = 1_800

    @property
    def device_prepare_seconds(self) -> int:
        """Seconds in which a device itself may prepare an attempt.

        Less than `prepare_seconds`, so that the device can report the reason: an attempt that this
        daemon ends counts against the device, also where a server of the buyer's was slow.
        """
        margin = min(PREPARE_MARGIN_SECONDS, self.prepare_seconds // PREPARE_MARGIN_PARTS)
        return self.prepare_seconds - margin


class Ended(Struct, frozen=True):
    """Attempt to end, and the reason; `is_timeout` if its job has set the time."""

    job_id: str
    attempt: int
    reason: str
    is_timeout: bool = False


class _Look(Struct, frozen=True):
    quiet: list[QuietRow]
    unstarted: list[UnstartedRow]
    runs_any: bool


class Overdue:
    """Search for attempts that ended without a report.

    Args:
        observed_seconds: seconds in which this daemon could receive reports, by a monotonic clock.
        end_max_attempts: most attempts of each kind that one look finds.
    """

    def __init__(
        self,
        context: Context,
        devices: Devices,
        renewals: Renewals,
        leases: Leases,
        observed_seconds: Callable[[], float],
        end_max_attempts: int = END_MAX_ATTEMPTS,
    ) -> None:
        self.end_max_attempts = end_max_attempts
        self._devices = devices
        self._renewals = renewals
        self._store = context.store
        self._now = context.now
        self._leases = leases
        self._observed_seconds = observed_seconds
        # When, by `observed_seconds`, an attempt was first seen to be as it is.
        self._quiet_since: dict[QuietRow, float] = {}
        self._unstarted_since: dict[tuple[str, int], float] = {}
        self._looked_at: float | None = None

    @property
    def most(self) -> int:
        """The most attempts that one look finds."""
        return KINDS * self.end_max_attempts

    async def find(self, put_off: int = 0) -> list[Ended]:
        """Return attempts to end; call this periodically.

        Args:
            put_off: the number of attempts that the caller skips; it is added to the limit of each
                kind.

        Raises:
            StoreError: the database is unavailable, so reports of devices may be missing as well.
        """
        await self._devices.reports.flush()
        await self._renewals.flush()
        observed, limit = self._observed_seconds(), self.end_max_attempts + put_off
        look = await self._store.read(_look, self._now())
        ended = [
            *self._silent(look.quiet, observed)[:limit],
            *self._unstarted(look.unstarted, observed)[:limit],
        ]
        if not look.runs_any:  # an idle daemon writes nothing
            self._looked_at = observed
            return ended
        passed = 0 if self._looked_at is None else int(observed - self._looked_at)
        due = await self._store.write(_let_pass, min(passed, LOOK_MAX_SECONDS), limit=limit)
        # The fraction of a second remains for the next look.
        self._looked_at = observed if self._looked_at is None else self._looked_at + passed
        ended += [
            Ended(
                row.job_id,
                row.attempt,
                NOT_READY if row.is_unready else TOO_LONG,
                is_timeout=bool(row.has_payload),
            )
            for row in due
        ]
        return ended

    def _silent(self, rows: Sequence[QuietRow], observed: float) -> list[Ended]:
        self._quiet_since = _since(self._quiet_since, rows, observed)
        silent = []
        for row, since in self._quiet_since.items():
            most = self._leases.lease_seconds if row.has_lease else SILENCE_SECONDS
            if since <= observed - (most - QUIET_SECONDS):
                silent.append(Ended(row.job_id, row.attempt, VANISHED))
        return silent

    def _unstarted(self, rows: Sequence[UnstartedRow], observed: float) -> list[Ended]:
        keys = [(row.job_id, row.attempt) for row in rows]
        self._unstarted_since = _since(self._unstarted_since, keys, observed)
        late = []
        for row in rows:
            prepares = row.phase == PREPARING
            most = self._leases.prepare_seconds if prepares else self._leases.start_seconds
            if self._unstarted_since[row.job_id, row.attempt] <= observed - most:
                late.append(Ended(row.job_id, row.attempt, NOT_STARTED))
        return late


def _since(before: dict[Row, float], rows: Sequence[Row], observed: float) -> dict[Row, float]:
    """Return the time since which each of these keys is present: its earlier time, or now."""
    return {row: before.get(row, observed) for row in rows}


async def _look(tx: Transaction, now: int) -> _Look:
    return _Look(
        quiet=await queries.quiet(
            tx, since=now - QUIET_SECONDS, ahead=now + QUIET_SECONDS, limit=LOOK_MAX_ATTEMPTS
        ),
        unstarted=await queries.unstarted(tx, limit=LOOK_MAX_ATTEMPTS),
        runs_any=await queries.runs_any(tx),
    )


async def _let_pass(tx: Transaction, seconds: int, *, limit: int) -> list[OverdueRow]:
    """Advance the clock of running attempts. Return the attempts without time left."""
    untimed = await queries.untimed(tx, limit=TIME_MAX_ATTEMPTS)
    shown = await queries.advance_clock(tx, seconds)
    if untimed:
        await queries.set_deadlines(tx, untimed, shown=shown, plain_times=PLAIN_TIMES)
    return await queries.overdue(
        tx,
        shown=shown,
        grace=GRACE_SECONDS,
        stop=STOP_SECONDS,
        delivery=DELIVERY_SECONDS,
        limit=limit,
    )
