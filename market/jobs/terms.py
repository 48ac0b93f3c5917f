"""The terms of jobs that the operator decides."""

from msgspec import Struct

from market.jobs.overdue import Leases

HOUR_SECONDS = 3_600


class JobTerms(Struct, frozen=True):
    """The operator's decisions about jobs.

    Attributes:
        fee: the house's part of a payment, in ten-thousandths.
        waiting_seconds: how long a job waits for a worker.
        review_hours: how long the buyer of a job with a payload may look at its result before the
            worker is paid; 0 pays without a review.
        has_samples: whether jobs are counted after which a device is given a sample.
    """

    fee: int
    waiting_seconds: int
    leases: Leases = Leases()
    review_hours: int = 24
    has_samples: bool = False

    def review_seconds(self, hours: int | None) -> int:
        """Return the time of review: the buyer's own hours, or the operator's without them."""
        return (self.review_hours if hours is None else hours) * HOUR_SECONDS
