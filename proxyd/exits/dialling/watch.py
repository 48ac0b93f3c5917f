"""Watch on the present exit of a dial: the times of a ping and of a change to another exit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from proxyd.exits.attached.attached import Attached
from proxyd.loop.alarms import EARLY_SECONDS, Alarm, Alarms

if TYPE_CHECKING:
    import asyncio

# An answer takes a round trip to the exit, and one from there to the target. The exit gets four,
# and never less than a busy device may need.
PATIENCE_ROUND_TRIPS: Final = 4
PATIENCE_LEAST_SECONDS: Final = 0.25
# An exit that is late with its answers on purpose must not be believed to be far away.
PATIENCE_MOST_SECONDS: Final = 1.2
# An exit that does not answer a question in this time is gone: an answer takes one round trip, and
# a label has to get another exit within 1.5 seconds.
SILENCE_SECONDS: Final = 0.8
ASK_AGAIN_SECONDS: Final = 0.3  # while an exit that is there has not said how it went
# A timer that is so late shows that this process stood still or has much to do: the bytes that the
# exit has sent meanwhile are not read yet.
LATE_SECONDS: Final = 0.1


@final
class Watch(Alarm):
    """The timer of one dial, and its last question to an exit.

    `chosen_at` is when the last exit was chosen (loop time, seconds).
    `has_hedged` says whether the order went out a second time because the exit was slow, and
    `has_repeated` whether an order was repeated whose connection the exit had closed.
    """

    __slots__ = (
        "_alarms",
        "_asked_at",
        "_due",
        "_loop",
        "_then",
        "chosen_at",
        "has_hedged",
        "has_repeated",
    )

    def __init__(self, loop: "asyncio.AbstractEventLoop", alarms: Alarms) -> None:
        self._loop = loop
        self._alarms = alarms
        self._then: Callable[[], None] | None = None
        self._due = 0.0  # when the timer should ring (loop time, seconds)
        self._asked_at = 0.0  # when the exit was last asked for a sign of life
        self.chosen_at = 0.0
        self.has_hedged = self.has_repeated = False

    def wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` after some seconds, in place of an earlier call."""
        self._then = then
        self._due = self._loop.time() + seconds
        self._alarms.set(self, self._due)

    def stop(self) -> None:
        """Cancel the call."""
        if self._then is not None:
            self._alarms.cancel(self)
            self._then = None

    def ring(self) -> None:
        """See `Alarm.ring`."""
        then, self._then = self._then, None
        if then is not None:
            then()

    def ask(self, attached: Attached) -> None:
        """Send a ping to an exit."""
        self._asked_at = attached.load.now()
        attached.pulse.ping()

    def is_late(self, now: float) -> bool:
        """Return whether this process was so busy that answers may be unread."""
        return now >= self._due + LATE_SECONDS

    def is_silent(self, attached: Attached) -> bool:
        """Return whether an exit has sent nothing since the question."""
        return attached.pulse.heard_at < self._asked_at

    def silence_left(self, now: float) -> float:
        """Return the seconds that an exit still has for its answer; 0 if no alarm waits for them.

        An alarm may ring so early that a moment is left. An alarm for that moment rings
        immediately.
        """
        left = self._asked_at + SILENCE_SECONDS - now
        return left if left > EARLY_SECONDS else 0.0


def patience(attached: Attached) -> float:
    """Return the time in seconds that an exit has for an answer."""
    seconds = max(PATIENCE_LEAST_SECONDS, PATIENCE_ROUND_TRIPS * attached.pool.demand.rtt)
    return min(seconds, PATIENCE_MOST_SECONDS)
