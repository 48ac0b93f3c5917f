"""A wall clock that tests set."""


class Clock:
    """UTC time; starts at 2027-01-15T08:00:00Z and moves when told."""

    def __init__(self, seconds: int = 1_800_000_000) -> None:
        self.now = seconds
        self._jumped = 0

    def jump(self, seconds: int) -> None:
        """Set the clock to another time, while none passes."""
        self.now += seconds
        self._jumped += seconds

    def seconds(self) -> int:
        return self.now

    def milliseconds(self) -> int:
        return self.now * 1000

    def steady(self) -> float:
        """The time of a clock that no operator sets."""
        return self.now - self._jumped
