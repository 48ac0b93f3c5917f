"""Evidence about the target of one dial: the answers of exits that have not connected."""

from collections.abc import Callable
from typing import Final, final

from proxyctl.protocol.frames import DialOutcome
from proxyd.exits.attached.attached import Attached
from proxyd.exits.dialling.target import Target
from proxyd.wire.events import Failure

# The target's words, which no other exit would change.
FAILURE_OF_OUTCOME: Final = {
    DialOutcome.REFUSED: Failure.REFUSED,
    DialOutcome.HOST_UNREACHABLE: Failure.HOST_UNREACHABLE,
    DialOutcome.NAME_UNKNOWN: Failure.HOST_UNREACHABLE,
}
# Outcomes that may be the exit's own fault: the buyer gets one when a second exit has also failed.
FAILURE_OF_DOUBTFUL: Final = {
    DialOutcome.TIMED_OUT: Failure.TIMED_OUT,
    DialOutcome.NETWORK_UNREACHABLE: Failure.NETWORK_UNREACHABLE,
    DialOutcome.NOT_ALLOWED: Failure.NOT_ALLOWED,
}


@final
class Evidence:
    """Evidence about the target of one dial.

    `failure` is the answer of an exit that another one should confirm. `doubted` is an exit that
    has not answered how its dial went. `refused_by` is at fault if another one reaches the target.
    """

    __slots__ = ("doubted", "failure", "refused_by")

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.doubted: Attached | None = None
        self.refused_by: Attached | None = None

    def add(
        self,
        attached: Attached,
        outcome: DialOutcome,
        target: Target,
        doubts: Callable[[Attached], bool] | None,
    ) -> Failure | None:
        """Add the answer of an exit; return the failure for the buyer if that is certain now.

        Args:
            attached: the exit.
            outcome: its answer.
            target: the target.
            doubts: returns whether a second exit should check a refusal; None if none may.
        """
        failure = FAILURE_OF_OUTCOME.get(outcome)  # the target's words
        doubtful = FAILURE_OF_DOUBTFUL.get(outcome)
        if failure is not None:
            if self.failure is not None:
                return self.failure  # the first exit's answer, confirmed
            if doubts is None or not doubts(attached):
                return failure
            self.refused_by = attached
            doubtful = failure
        if doubtful is None:
            return None
        confirmed = self.failure  # of another exit
        is_own = outcome is not DialOutcome.NETWORK_UNREACHABLE or target.tests_routes_of(attached)
        if self.refused_by is None and is_own:
            self.refused_by = attached
        self.failure = doubtful
        return confirmed

    def concerns_target(self, outcome: DialOutcome) -> bool:
        """Return whether an answer is about the target, so that its exit would repeat it."""
        return outcome in FAILURE_OF_OUTCOME or outcome in FAILURE_OF_DOUBTFUL

    def note_late(self, attached: Attached) -> None:
        """Note that an exit has not reported the outcome of its dial."""
        self.doubted, self.failure = attached, Failure.TIMED_OUT
