"""Begun and refused connections of sessions since the last write, with the reasons of refusals.

Kept by session and not in the session itself, because one that is over is refused as well, and one
that is forgotten was. Nothing is billed by these counts: they stand beside the bytes, so that a
buyer sees why there are so few.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final, final

from market.bandwidth.lease_book import Tally


@dataclass(frozen=True, slots=True)
class TallyBounds:
    """The number of sessions with counts.

    Attributes:
        sessions_max: with counts that are not written down. There are as many as were used within
            half a second; while the store is away more come, and those beyond this are not counted.
        reported_max_sessions: in one report: it is one transaction, which locks its sessions.
    """

    sessions_max: int = 10_000
    reported_max_sessions: int = 1_000


USUAL: Final = TallyBounds()


@final
class Tallies:
    """Counts by session, until they are taken to be written down."""

    __slots__ = ("_begun", "_bounds", "_refused")

    def __init__(self, bounds: TallyBounds = USUAL) -> None:
        self._bounds = bounds
        self._begun: dict[str, int] = {}
        self._refused: dict[str, Counter[str]] = {}

    def begin(self, session_id: str, count: int = 1) -> None:
        """Count a connection that has reached its target, or that relays datagrams."""
        begun = self._begun
        if session_id in begun:
            begun[session_id] += count
        elif len(begun) < self._bounds.sessions_max:
            begun[session_id] = count

    def refuse(self, session_id: str, reason: str, count: int = 1) -> None:
        """Count a connection that was refused.

        Args:
            session_id: whose credentials it had shown.
            reason: the word for it in access records (`proxyd.access.Ending`).
            count: the number to add.
        """
        refused = self._refused.get(session_id)
        if refused is None:
            if len(self._refused) >= self._bounds.sessions_max:
                return
            refused = self._refused[session_id] = Counter()
        refused[reason] += count

    def take(self) -> list[Tally]:
        """Return counts, of `reported_max_sessions` at most, and forget them."""
        sessions = list(dict.fromkeys((*self._begun, *self._refused)))
        return [
            Tally(
                each,
                self._begun.pop(each, 0),
                tuple(sorted(self._refused.pop(each, Counter()).items())),
            )
            for each in sessions[: self._bounds.reported_max_sessions]
        ]

    def put_back(self, tallies: list[Tally]) -> None:
        """Count tallies again after a failed write."""
        for tally in tallies:
            if tally.connections:
                self.begin(tally.session_id, tally.connections)
            for reason, count in tally.refusals:
                self.refuse(tally.session_id, reason, count)
