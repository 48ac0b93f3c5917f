"""Life cycles of sold things: every state, and every transition between states."""

from enum import StrEnum
from typing import Self


class Status(StrEnum):
    """A state of something with a life cycle."""

    def require_before(self, after: Self) -> None:
        """Check that this state has a transition to `after`.

        Raises:
            ValueError: the transition does not exist, which is an error of the caller.
        """
        if after not in TRANSITIONS[type(self)][self]:
            raise ValueError(f"no transition from {self} to {after}")


class SessionStatus(Status):
    """The states of a proxy session."""

    ACTIVE = "active"
    ENDED = "ended"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"


class JobStatus(Status):
    """The states of a job; back to `waiting` when its worker fails or vanishes."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ReviewStatus(Status):
    """The states of a finished job whose buyer may look at the result before it is paid for."""

    HELD = "held"
    CONFIRMED = "confirmed"
    EXPIRED = "expired"
    DISPUTED = "disputed"
    UPHELD = "upheld"
    REVERSED = "reversed"


class PayoutStatus(Status):
    """The states of a payout of earned money; `failed` also when it came back after it was paid."""

    REQUESTED = "requested"
    CANCELLED = "cancelled"
    APPROVED = "approved"
    REJECTED = "rejected"
    SENT = "sent"
    PAID = "paid"
    FAILED = "failed"


class CopiesStatus(Status):
    """The states of several copies of one job; agreed when most of their results are the same."""

    OPEN = "open"
    AGREED = "agreed"
    UNDECIDED = "undecided"


class ClosureStatus(Status):
    """The states of a closed account; a login takes the closing back until the erasure."""

    CLOSED = "closed"
    TAKEN_BACK = "taken_back"
    ERASED = "erased"


class PaymentStatus(Status):
    """The states of a payment; `doubtful` when the provider reports other facts than expected."""

    OPEN = "open"
    PAID = "paid"
    EXPIRED = "expired"
    FAILED = "failed"
    DOUBTFUL = "doubtful"


class ReturnStatus(Status):
    """The states of a refund or a dispute; `void` when the money stays, or came back."""

    PENDING = "pending"
    DONE = "done"
    VOID = "void"


class TopUpStatus(Status):
    """The states of an automatic top-up.

    `paused` until its user acts: the card needs its owner. `disabled` after too many refusals.
    """

    ON = "on"
    OFF = "off"
    PAUSED = "paused"
    DISABLED = "disabled"


TRANSITIONS: dict[type[Status], dict[Status, frozenset[Status]]] = {
    SessionStatus: {
        SessionStatus.ACTIVE: frozenset(
            {SessionStatus.ENDED, SessionStatus.EXHAUSTED, SessionStatus.EXPIRED}
        ),
        SessionStatus.ENDED: frozenset(),
        SessionStatus.EXHAUSTED: frozenset(),
        SessionStatus.EXPIRED: frozenset(),
    },
    JobStatus: {
        JobStatus.WAITING: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED}),
        JobStatus.RUNNING: frozenset(
            {JobStatus.WAITING, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED}
        ),
        JobStatus.COMPLETED: frozenset(),
        JobStatus.FAILED: frozenset(),
        JobStatus.CANCELLED: frozenset(),
    },
    ReviewStatus: {
        ReviewStatus.HELD: frozenset(
            {
                ReviewStatus.CONFIRMED,
                ReviewStatus.EXPIRED,
                ReviewStatus.DISPUTED,
                ReviewStatus.REVERSED,  # of a copy that differs from most others
            }
        ),
        ReviewStatus.DISPUTED: frozenset(
            {
                ReviewStatus.CONFIRMED,
                ReviewStatus.UPHELD,
                ReviewStatus.REVERSED,
                ReviewStatus.HELD,  # the failed sample behind it was void
            }
        ),
        ReviewStatus.CONFIRMED: frozenset(),
        ReviewStatus.EXPIRED: frozenset(),
        ReviewStatus.UPHELD: frozenset(),
        ReviewStatus.REVERSED: frozenset(),
    },
    PayoutStatus: {
        PayoutStatus.REQUESTED: frozenset(
            {PayoutStatus.CANCELLED, PayoutStatus.APPROVED, PayoutStatus.REJECTED}
        ),
        PayoutStatus.APPROVED: frozenset({PayoutStatus.SENT, PayoutStatus.REJECTED}),
        PayoutStatus.SENT: frozenset({PayoutStatus.PAID, PayoutStatus.FAILED}),
        PayoutStatus.PAID: frozenset({PayoutStatus.FAILED}),
        PayoutStatus.CANCELLED: frozenset(),
        PayoutStatus.REJECTED: frozenset(),
        PayoutStatus.FAILED: frozenset(),
    },
    CopiesStatus: {
        CopiesStatus.OPEN: frozenset({CopiesStatus.AGREED, CopiesStatus.UNDECIDED}),
        CopiesStatus.AGREED: frozenset(),
        CopiesStatus.UNDECIDED: frozenset(),
    },
    ClosureStatus: {
        ClosureStatus.CLOSED: frozenset({ClosureStatus.TAKEN_BACK, ClosureStatus.ERASED}),
        ClosureStatus.TAKEN_BACK: frozenset({ClosureStatus.CLOSED, ClosureStatus.ERASED}),
        ClosureStatus.ERASED: frozenset(),
    },
    PaymentStatus: {
        PaymentStatus.OPEN: frozenset(
            {
                PaymentStatus.PAID,
                PaymentStatus.EXPIRED,
                PaymentStatus.FAILED,
                PaymentStatus.DOUBTFUL,
            }
        ),
        # Money may arrive late.
        PaymentStatus.EXPIRED: frozenset({PaymentStatus.PAID, PaymentStatus.DOUBTFUL}),
        PaymentStatus.FAILED: frozenset({PaymentStatus.PAID, PaymentStatus.DOUBTFUL}),
        # The operator accepts it, or gives it up.
        PaymentStatus.DOUBTFUL: frozenset({PaymentStatus.PAID, PaymentStatus.FAILED}),
        PaymentStatus.PAID: frozenset(),
    },
    TopUpStatus: {
        TopUpStatus.OFF: frozenset({TopUpStatus.ON}),
        TopUpStatus.ON: frozenset({TopUpStatus.OFF, TopUpStatus.PAUSED, TopUpStatus.DISABLED}),
        TopUpStatus.PAUSED: frozenset({TopUpStatus.ON, TopUpStatus.OFF}),
        TopUpStatus.DISABLED: frozenset({TopUpStatus.ON, TopUpStatus.OFF}),
    },
    ReturnStatus: {
        ReturnStatus.PENDING: frozenset({ReturnStatus.DONE, ReturnStatus.VOID}),
        ReturnStatus.DONE: frozenset({ReturnStatus.VOID}),  # a card may refuse the money later
        ReturnStatus.VOID: frozenset(),
    },
}
