"""Heartbeats: they find exits that are gone, and exits that have used up the bytes of their day."""

import asyncio
from collections.abc import Callable
from typing import Final, final

from proxyd.exits.attached.attached import SILENT_BEATS, Attached
from proxyd.exits.attached.neighbours import Neighbours
from proxyd.exits.attached.roster import Roster
from proxyd.loop.deadlines import Deadlines

DAY_SECONDS: Final = 86_400


@final
class Heartbeats:
    """Checks each exit every few seconds.

    Args:
        seconds: between two heartbeats of an exit.
        now: the wall clock, in UTC seconds.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        roster: Roster,
        neighbours: Neighbours,
        seconds: float,
        now: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._roster = roster
        self._neighbours = neighbours
        self._now = now
        self._beats: Deadlines[Attached] = Deadlines(loop, seconds)

    @property
    def seconds(self) -> float:
        """The time between two heartbeats of an exit."""
        return self._beats.seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self._beats.seconds = seconds

    @property
    def today(self) -> int:
        """The number of this day."""
        return self._now() // DAY_SECONDS

    def add(self, attached: Attached) -> None:
        """Begin to check an exit."""
        self._beats.add(attached)

    def discard(self, attached: Attached) -> None:
        """Stop checking an exit."""
        self._beats.discard(attached)

    def close(self) -> None:
        """Stop all checks."""
        self._beats.close()

    def beat(self, attached: Attached) -> None:
        """Cut a silent exit, or send it a ping."""
        silence = self._loop.time() - attached.pulse.heard_at
        if silence >= SILENT_BEATS * self._beats.seconds:
            self._roster.control_of(attached).cut("silent")
            return
        was_spent = attached.is_spent
        attached.spend(self.today)
        if attached.is_spent != was_spent:
            self._neighbours.changed(attached)
        attached.agent.tend()
        attached.pulse.ping()
        if not attached.is_gone:  # it may have been cut just now: it does not read
            self._beats.add(attached)
