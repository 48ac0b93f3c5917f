"""Changes by a report on a lease: arithmetic on the rows of leases and their sessions.

A report has the total of the used bytes of a lease, so a repeated report is harmless. It is
accepted whole or rejected whole, and never lets `bytes_used + bytes_leased` pass the quota. The
counts of exits in it are accepted with it. They never fall, and their sum never exceeds the used
bytes of the lease.
"""

import logging
from collections.abc import Sequence

from msgspec import Struct

from market.accounts.levels import Limited
from market.base.states import SessionStatus
from market.money.money import GB
from storage.bandwidth.sessions import CountsRow, LeaseRow
from storage.exits.exits import DayRow, UseRow

# The first slice of a node: small files need no second one, and it is soon doubled for a large one.
SLICE_FIRST_BYTES = 1024 * 1024
# The last bytes of a session go in slices of this size: smaller ones would cost a request each.
SLICE_LEAST_BYTES = 64 * 1024
# A node gets this part of a remainder at most, so that three others find some too.
SHARE_OF_REMAINDER = 4

# The buyer of a session is notified when less than this part of it is left.
LOW_PART = 10

_logger = logging.getLogger("leases")


class Usage(Struct, frozen=True):
    """Total of the used bytes of a session's lease.

    `exits` are devices, with the total of these bytes that went through each. A device without a
    change may be left out.
    """

    session_id: str
    lease_id: str
    used_bytes: int
    exits: tuple[tuple[str, int], ...] = ()


class Tally(Struct, frozen=True):
    """Connections of a session since its last report, by outcome; counted, never billed.

    `connections` is the number that began; `refusals` are numbers by reason, in the words of access
    records.
    """

    session_id: str
    connections: int = 0
    refusals: tuple[tuple[str, int], ...] = ()


class Grant(Struct, frozen=True):
    """A session as its meter sees it; without a lease nothing may be handed out.

    Sizes in bytes, `expires_at` in UTC seconds. `entries` are the client addresses that open it
    without a password while it is active, each behind the index of its port; `pending` are those
    that will once a client comes from them with the password.

    It was bought by `user_id` for `price_per_gb` micro-USD. `exit` has the buyer's wishes
    unless a client sends others, as `exit_wishes.canonical` writes them; "" to leave directly.
    `limited` are the limits of a new account.
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
    user_id: str = ""
    price_per_gb: int = 0
    exit: str = ""
    limited: Limited | None = None


class Ask(Struct, frozen=True):
    """Report on a lease, with a request to change the lease.

    `want_bytes` requests more bytes. `keep_bytes` sets the total of the lease, and gives the rest
    to other nodes.
    """

    usage: Usage
    want_bytes: int = 0
    keep_bytes: int | None = None


class LeaseState(Struct, frozen=True):
    """Lease after a report: the total of its granted bytes, and whether the session is used up."""

    granted_bytes: int
    is_used_up: bool


class Rejection(Struct, frozen=True):
    """A report that was not written, because its counts are impossible.

    A lease count exceeds the grant or is negative. Or the count of an exit exceeds the lease's use,
    is lower than before, or names an unknown device.
    """


LeaseReply = LeaseState | Rejection | None


def slice_of(remainder: int, want_bytes: int) -> int:
    """Return a node's slice of the remaining bytes: a quarter, so that other nodes get some.

    Args:
        remainder: the number of bytes that are neither used nor leased.
        want_bytes: the number of requested bytes.
    """
    fair = max(SLICE_LEAST_BYTES, remainder // SHARE_OF_REMAINDER)
    return min(remainder, want_bytes, fair)


def earned_by_exit(size_bytes: int, price_per_gb: int, share_percent: int) -> int:
    """Return an owner's share of the price of bytes, in micro-USD, rounded down.

    The shares of any number of exits add up to less than `money.earned` of all of their bytes.
    """
    return size_bytes * price_per_gb * share_percent // (GB * 100)


class Book:
    """Leases and their sessions while they are locked: replies change the book; then it is stored.

    `wanted` are the sessions without bytes left to lease, while other leases hold some. `uses` are
    the counts of exits that have changed.

    Args:
        rows: the leases and the counters of their sessions, as stored.
        uses: the bytes of the reported exits under these leases so far.
    """

    def __init__(
        self, rows: Sequence[tuple[LeaseRow, CountsRow]], uses: Sequence[UseRow] = ()
    ) -> None:
        self.leases = {lease.id: lease for lease, _ in rows}
        self.sessions = {lease.session_id: counts for lease, counts in rows}
        self.wanted: list[str] = []
        self.uses: dict[tuple[str, str], UseRow] = {}
        self._used_before = {each: counts.bytes_used for each, counts in self.sessions.items()}
        self._before = {(use.lease_id, use.device_id): use for use in uses}

    def reply(self, ask: Ask) -> LeaseReply:
        """Process a report, and change the granted bytes of its lease."""
        lease = self.leases.get(ask.usage.lease_id)
        if lease is None:
            return None
        counts, used = self.sessions[lease.session_id], ask.usage.used_bytes
        more = used - lease.used_bytes
        is_within = 0 <= used <= lease.granted_bytes
        is_leased = counts.bytes_leased >= lease.granted_bytes - lease.used_bytes
        uses = self._uses(ask.usage, lease)
        if not (is_within and is_leased) or counts.bytes_used + more < 0 or uses is None:
            _logger.error(
                "session %s: report rejected: %d bytes used, %d through exits, %d granted",
                lease.session_id,
                used,
                sum(size for _, size in ask.usage.exits),
                lease.granted_bytes,
            )
            return Rejection()
        exit_bytes = lease.exit_bytes + sum(self._more_bytes(use) for use in uses)
        self.uses.update({(use.lease_id, use.device_id): use for use in uses})
        counts = counts._replace(
            bytes_used=counts.bytes_used + more, bytes_leased=counts.bytes_leased - more
        )
        lease = lease._replace(used_bytes=used, exit_bytes=exit_bytes)
        granted = self._granted(ask, lease, counts)
        counts = counts._replace(bytes_leased=counts.bytes_leased + granted - lease.granted_bytes)
        self.leases[lease.id] = lease._replace(granted_bytes=granted)
        self.sessions[lease.session_id] = counts
        return LeaseState(granted, counts.bytes_used == counts.quota_bytes)

    def moved(self) -> dict[str, int]:
        """Return the change in used bytes of each session that has one."""
        return {
            session_id: counts.bytes_used - self._used_before[session_id]
            for session_id, counts in self.sessions.items()
            if counts.bytes_used != self._used_before[session_id]
        }

    def nearly_used_up(self) -> list[str]:
        """Return the sessions that have little left, and had more before these reports."""
        return [
            session_id
            for session_id, counts in self.sessions.items()
            if _is_low(counts, counts.bytes_used)
            and not _is_low(counts, self._used_before[session_id])
        ]

    def days(self, day: int) -> list[DayRow]:
        """Return the new bytes and earnings of each exit, as of a day."""
        added: dict[str, DayRow] = {}
        for key, use in self.uses.items():
            before = self._before[key]
            row = added.get(use.device_id, DayRow(use.device_id, day, 0, 0))
            added[use.device_id] = row._replace(
                used_bytes=row.used_bytes + use.used_bytes - before.used_bytes,
                earned=row.earned + use.earned - before.earned,
            )
        return list(added.values())

    def _uses(self, usage: Usage, lease: LeaseRow) -> list[UseRow] | None:
        """Return the counts of exits that a report changes; None when they are impossible."""
        uses: dict[str, UseRow] = {}
        for device_id, size in usage.exits:
            key = lease.id, device_id
            last = uses.get(device_id) or self.uses.get(key) or self._before.get(key)
            if last is None or size < last.used_bytes:
                return None
            if size > last.used_bytes:
                earned = earned_by_exit(size, last.price_per_gb, last.share_percent)
                uses[device_id] = last._replace(used_bytes=size, earned=earned)
        changed = list(uses.values())
        exit_bytes = lease.exit_bytes + sum(self._more_bytes(use) for use in changed)
        return changed if exit_bytes <= usage.used_bytes else None

    def _more_bytes(self, use: UseRow) -> int:
        """Return the number of bytes that a count adds to its exit's last count."""
        key = use.lease_id, use.device_id
        return use.used_bytes - (self.uses.get(key) or self._before[key]).used_bytes

    def _granted(self, ask: Ask, lease: LeaseRow, counts: CountsRow) -> int:
        """Return the new total of a lease's granted bytes."""
        if ask.keep_bytes is not None:
            return max(lease.used_bytes, min(lease.granted_bytes, ask.keep_bytes))
        if not ask.want_bytes or counts.status != SessionStatus.ACTIVE:
            return lease.granted_bytes
        left = counts.quota_bytes - counts.bytes_used - counts.bytes_leased
        if left == 0 and counts.bytes_leased > lease.granted_bytes - lease.used_bytes:
            self.wanted.append(lease.session_id)
        return lease.granted_bytes + slice_of(left, ask.want_bytes)


def _is_low(counts: CountsRow, used_bytes: int) -> bool:
    """Return whether `used_bytes` would leave little of a session, but more than nothing."""
    return 0 < (counts.quota_bytes - used_bytes) * LOW_PART <= counts.quota_bytes
