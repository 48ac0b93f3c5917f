"""What a report on a lease changes: arithmetic on the rows of leases and their sessions.

A report says how much of a lease is used in all, so that repeating it is harmless. It is taken
whole or rejected whole, and never lets `bytes_used + bytes_leased` pass the quota.
"""

import logging
from collections.abc import Sequence

from msgspec import Struct

from market.states import SessionStatus
from storage.bandwidth import CountsRow, LeaseRow

# The first slice of a node: small files need no second one, and it is soon doubled for a large one.
SLICE_FIRST_BYTES = 1024 * 1024
# The last bytes of a session go in slices of this size: smaller ones would cost a request each.
SLICE_LEAST_BYTES = 64 * 1024
# A node gets this part of a remainder at most, so that three others find some too.
SHARE_OF_REMAINDER = 4

_logger = logging.getLogger("leases")


class Usage(Struct, frozen=True):
    """How many bytes of a session's lease are used, in all.

    `exits` says how many of them have left through which device, in all under this lease too. Only
    those are there whose counts have changed.
    """

    session_id: str
    lease_id: str
    used_bytes: int
    exits: tuple[tuple[str, int], ...] = ()


class Grant(Struct, frozen=True):
    """A session as its meter sees it; without a lease nothing may be handed out.

    Sizes in bytes, `expires_at` in UTC seconds. `entries` are the client addresses that open it
    without a password while it is active, each behind the index of its port; `pending` are those
    that will once a client comes from them with the password. `exit` is by which exits it leaves,
    as it was sold (`market.wants`); empty for directly.
    """

    session_id: str
    username: str
    password_hash: str
    status: SessionStatus
    expires_at: int
    lease_id: str | None
    granted_bytes: int
    entries: tuple[tuple[int, str], ...]
    pending: tuple[str, ...] = ()
    exit: str = ""


class Ask(Struct, frozen=True):
    """A report on a lease, and what is asked of it.

    `want_bytes` are to be granted in addition; with `keep_bytes` the lease shall grant that many
    in all, and the rest is for other nodes.
    """

    usage: Usage
    want_bytes: int = 0
    keep_bytes: int | None = None


class LeaseState(Struct, frozen=True):
    """A lease after a report: what it grants in all, and whether the session is used up."""

    granted_bytes: int
    is_used_up: bool


class Rejection(Struct, frozen=True):
    """A report that was not written: more than the lease grants, or less than nothing."""


LeaseReply = LeaseState | Rejection | None


def slice_of(remainder: int, want_bytes: int) -> int:
    """Return how many bytes of a remainder a node gets: a quarter, so that others find some too.

    Args:
        remainder: how many bytes are neither used nor leased.
        want_bytes: how many it asked for.
    """
    fair = max(SLICE_LEAST_BYTES, remainder // SHARE_OF_REMAINDER)
    return min(remainder, want_bytes, fair)


class Book:
    """Leases and their sessions while they are locked: replies change it, and it is written then.

    `wanted` are the sessions of which nothing is left to lease, while other leases hold some.

    Args:
        rows: the leases and the counters of their sessions, as they are in the store.
    """

    def __init__(self, rows: Sequence[tuple[LeaseRow, CountsRow]]) -> None:
        self.leases = {lease.id: lease for lease, _ in rows}
        self.sessions = {lease.session_id: counts for lease, counts in rows}
        self.wanted: list[str] = []

    def reply(self, ask: Ask) -> LeaseReply:
        """Take a report, and change what its lease grants."""
        lease = self.leases.get(ask.usage.lease_id)
        if lease is None:
            return None
        counts, used = self.sessions[lease.session_id], ask.usage.used_bytes
        more = used - lease.used_bytes
        is_within = 0 <= used <= lease.granted_bytes
        is_leased = counts.bytes_leased >= lease.granted_bytes - lease.used_bytes
        if not (is_within and is_leased) or counts.bytes_used + more < 0:
            _logger.error(
                "session %s: report rejected: %d bytes used, %d granted",
                lease.session_id,
                used,
                lease.granted_bytes,
            )
            return Rejection()
        counts = counts._replace(
            bytes_used=counts.bytes_used + more, bytes_leased=counts.bytes_leased - more
        )
        lease = lease._replace(used_bytes=used)
        granted = self._granted(ask, lease, counts)
        counts = counts._replace(bytes_leased=counts.bytes_leased + granted - lease.granted_bytes)
        self.leases[lease.id] = lease._replace(granted_bytes=granted)
        self.sessions[lease.session_id] = counts
        return LeaseState(granted, counts.bytes_used == counts.quota_bytes)

    def _granted(self, ask: Ask, lease: LeaseRow, counts: CountsRow) -> int:
        """Return how much a lease grants from now on, in all."""
        if ask.keep_bytes is not None:
            return max(lease.used_bytes, min(lease.granted_bytes, ask.keep_bytes))
        if not ask.want_bytes or counts.status != SessionStatus.ACTIVE:
            return lease.granted_bytes
        left = counts.quota_bytes - counts.bytes_used - counts.bytes_leased
        if left == 0 and counts.bytes_leased > lease.granted_bytes - lease.used_bytes:
            self.wanted.append(lease.session_id)
        return lease.granted_bytes + slice_of(left, ask.want_bytes)
