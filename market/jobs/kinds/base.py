"""The values that the kinds of jobs take and return."""

from collections.abc import Sequence

from msgspec import Struct

from market.attempts.attempts import Ending
from market.base.states import JobStatus
from market.events.context import Context
from market.jobs.chances import attempt_outcome
from market.jobs.pay import Moment
from market.jobs.terms import JobTerms
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow


class Frame(Struct, frozen=True):
    """The transaction that changes a job, with the values that the change needs from outside.

    Attributes:
        tx: the transaction; it has locked the job, with a copy all copies.
        context: records events, and makes identifiers.
        least_price: micro-credits; a job with a lower price is as good as free.
        moment: the time, and identifiers of transfers.
    """

    tx: Transaction
    context: Context
    terms: JobTerms
    least_price: int
    moment: Moment


class Report(Struct, frozen=True):
    """The report of a device that an attempt is over.

    `attempt` is its number, None for the running one. `text` is the result, or the reason of a
    failure.
    """

    device: DeviceRow
    job_id: str
    attempt: int | None
    text: str
    ending: Ending


class JobOutcome(Struct, frozen=True):
    """The new state of a job at the end of an attempt.

    Attributes:
        result: the result, where the device has delivered one.
        failure_reason: the reason of a failure or a cancellation.
        attempt: the outcome of the attempt, where it is not the job's new status.
    """

    status: JobStatus
    result: str | None = None
    failure_reason: str | None = None
    attempt: str = ""
    ending: Ending = Ending()


class Failure(Struct, frozen=True):
    """An attempt that ended without a result.

    Attributes:
        reason: the reason, which the buyer reads.
        attempt: its outcome, "failed" or "lost".
        is_lost: whether its device has fallen silent.
    """

    reason: str
    ending: Ending
    attempt: str
    is_lost: bool = False

    @classmethod
    def of(cls, report: Report) -> "Failure":
        """Return the failure that a device reports."""
        return cls(report.text, report.ending, attempt_outcome(report.ending))

    def outcome(self, status: JobStatus) -> JobOutcome:
        """Return the outcome of a job with this failure."""
        return JobOutcome(
            status, failure_reason=self.reason, attempt=self.attempt, ending=self.ending
        )


class Costs(Struct, frozen=True):
    """The pay for a job if it were cancelled now, and the held price; in its own currency."""

    pays: int
    held: int


class Settled(Struct, frozen=True):
    """A job before the change, its status after it, and cancelled copies before their change."""

    job: JobRow
    status: JobStatus
    unneeded: Sequence[JobRow] = ()
