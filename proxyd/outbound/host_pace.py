"""The pace of one user's webhooks at one host: a burst, and then a rate."""

from collections.abc import Callable
from time import monotonic

# Of one user at one server, for any number of endpoints: a queue of 10,000 is empty
# within a quarter of an hour, and no server is brought down.
PER_SECOND = 10.0
BURST = 50
# Pairs of a user and a host; beyond it, idle pairs are forgotten.
KNOWN_MAX = 10_000


class HostPace:
    """Calculates the wait before each attempt.

    Args:
        per_second: attempts of one user at one host, in the long run.
        burst: the number of attempts without a wait after a pause.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        per_second: float = PER_SECOND,
        burst: int = BURST,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._step = 1 / per_second
        self._ahead = burst / per_second
        self._clock = clock
        self._next: dict[tuple[str, str], float] = {}

    def delay(self, user_id: str, host: str) -> float:
        """Count an attempt, and return the seconds that it must wait."""
        now, key = self._clock(), (user_id, host)
        if len(self._next) >= KNOWN_MAX:
            self._next = {each: at for each, at in self._next.items() if at > now - self._ahead}
        at = max(self._next.get(key, 0.0), now - self._ahead) + self._step
        self._next[key] = at
        return max(at - now, 0.0)
