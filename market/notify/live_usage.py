"""Live usage of sessions, which buyers see once a second.

Where one daemon has every session, its own counters say it, to the byte and without a query for
each round. Among several, each knows only its own traffic, so the reports of all of them are read,
which are a second old at most.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from market.bandwidth.leases import Leases
from market.events.context import Context
from storage.bandwidth import sessions as queries
from storage.bandwidth.sessions import CountedRow


class LiveUse(NamedTuple):
    """Session in the memory of this process: the user, and the use under its lease."""

    session_id: str
    user_id: str
    lease_id: str
    used_bytes: int
    connections: int


class LiveUses(Protocol):
    """Interface to the counters in memory; the proxy implements it."""

    def live(self, user_ids: Collection[str]) -> list[LiveUse]:
        """Return the active sessions of these users that are leased here."""


class UsageFrame(Struct, frozen=True):
    """Used and remaining bytes of a session, and the rate of the change.

    `connections` is the number of open ones; None where other daemons may have some.
    """

    session_id: str
    bytes_used: int
    bytes_left: int
    bytes_per_second: int
    connections: int | None


class Shown(NamedTuple):
    """Frame, the user of its session, and whether it has news."""

    user_id: str
    frame: UsageFrame
    is_news: bool


class _Base(NamedTuple):
    """A session's bytes, and how many of them were used before its present lease."""

    lease_id: str
    quota_bytes: int
    used_before: int


class _Seen(NamedTuple):
    """Use of a session at a moment, and whether it changed then."""

    bytes_used: int
    at: float
    is_moving: bool


class LiveUsage:
    """Frames for users who watch.

    Args:
        uses: the counters in memory; None without counters, as in tests.
        monotonic: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        context: Context,
        leases: Leases,
        uses: LiveUses | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = context.store
        self._leases = leases
        self._uses = uses
        self._monotonic = monotonic
        self._bases: dict[str, _Base] = {}
        self._seen: dict[str, _Seen] = {}

    async def frames(self, user_ids: Collection[str]) -> list[Shown]:
        """Return frames of the users' sessions that are leased here, or on any node.

        A frame is new if its session moved since the last call, has just stopped, or is seen for
        the first time.

        Raises:
            StoreError: the database is unavailable.
        """
        if not user_ids:
            self._bases.clear()
            self._seen.clear()
            return []
        counted = await self._counted(user_ids)
        now, before = self._monotonic(), self._seen
        self._seen = {}
        frames = []
        for row, connections in counted:
            last = before.get(row.session_id)
            moved = 0 if last is None else row.bytes_used - last.bytes_used
            self._seen[row.session_id] = _Seen(row.bytes_used, now, bool(moved))
            rate = 0 if last is None else max(round(moved / max(now - last.at, 0.001)), 0)
            left = row.quota_bytes - row.bytes_used
            frame = UsageFrame(row.session_id, row.bytes_used, left, rate, connections)
            is_news = last is None or bool(moved) or last.is_moving
            frames.append(Shown(row.user_id, frame, is_news))
        return frames

    async def _counted(self, user_ids: Collection[str]) -> list[tuple[CountedRow, int | None]]:
        """Return the present use of the users' sessions, and their connections."""
        if self._leases.node_id is not None or self._uses is None:
            rows = await self._store.read(queries.counted_of_users, list(user_ids))
            return [(row, None) for row in rows]
        uses = self._uses.live(user_ids)
        await self._read_bases(uses)
        counted: list[tuple[CountedRow, int | None]] = []
        for use in uses:
            base = self._bases.get(use.session_id)
            if base is None or base.lease_id != use.lease_id:
                continue
            used = base.used_before + use.used_bytes
            row = CountedRow(use.session_id, use.user_id, base.quota_bytes, used)
            counted.append((row, use.connections))
        return counted

    async def _read_bases(self, uses: Sequence[LiveUse]) -> None:
        """Read the use before each lease, which stays the same while the lease is open.

        The one daemon's lease is the only one of its session, so its report adds the same bytes to
        the session and to the lease.
        """
        known = {use.session_id: use.lease_id for use in uses}
        self._bases = {
            session_id: base
            for session_id, base in self._bases.items()
            if known.get(session_id) == base.lease_id
        }
        new = [lease_id for each, lease_id in known.items() if each not in self._bases]
        if not new:
            return
        for lease, counts in await self._store.read(queries.leases_with_counts, new):
            used_before = counts.bytes_used - lease.used_bytes
            self._bases[lease.session_id] = _Base(lease.id, counts.quota_bytes, used_before)
