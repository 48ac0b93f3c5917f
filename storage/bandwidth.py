"""Queries on bandwidth sessions and on the leases under which their bytes are handed out."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.store import Transaction


class SessionRow(NamedTuple):
    """A session: sizes in bytes, price in micro-USD per GB, times in UTC seconds."""

    id: str
    user_id: str
    username: str
    password_hash: str
    quota_bytes: int
    bytes_used: int
    bytes_leased: int
    price_per_gb: int
    status: str
    created_at: int
    expires_at: int
    ended_at: int | None


class ListedRow(NamedTuple):
    """A session as its buyer sees it, with a node's open lease and what that last reported.

    `captured` is what it has cost, in micro-USD, once it is over.
    """

    id: str
    quota_bytes: int
    bytes_used: int
    price_per_gb: int
    status: str
    created_at: int
    expires_at: int
    ended_at: int | None
    lease_id: str | None
    reported: int | None
    captured: int | None


class LeaseRow(NamedTuple):
    """Bytes of a session that one meter may hand out."""

    id: str
    session_id: str
    granted_bytes: int
    used_bytes: int


class _SessionCounts(NamedTuple):
    status: str
    quota_bytes: int
    bytes_used: int
    bytes_leased: int


class CountsRow(NamedTuple):
    """The counters of a session and of one of its leases, after a report."""

    status: str
    quota_bytes: int
    bytes_used: int
    bytes_leased: int
    lease: LeaseRow


class IdRow(NamedTuple):
    """An identifier alone."""

    id: str


_COLUMNS = """id, user_id, username, password_hash, quota_bytes, bytes_used, bytes_leased,
    price_per_gb, status, created_at, expires_at, ended_at"""
_SESSION = f"SELECT {_COLUMNS} FROM bandwidth_sessions"


async def insert(tx: Transaction, session: SessionRow) -> None:
    """Add a session."""
    await tx.run(
        f"""
        INSERT INTO bandwidth_sessions ({_COLUMNS})
        VALUES (:id, :user_id, :username, :password_hash, :quota_bytes, :bytes_used,
            :bytes_leased, :price_per_gb, :status, :created_at, :expires_at, :ended_at)
        """,
        **session._asdict(),
    )


async def lock(tx: Transaction, session_ids: Sequence[str]) -> None:
    """Lock sessions, so that their counters and leases change together."""
    await tx.lock("bandwidth_sessions", session_ids)


async def find(tx: Transaction, session_id: str) -> SessionRow | None:
    """Return a session by its identifier."""
    return await tx.one(SessionRow, f"{_SESSION} WHERE id = :id", id=session_id)


async def find_by_username(tx: Transaction, username: str) -> SessionRow | None:
    """Return a session by the user name of its credentials."""
    return await tx.one(SessionRow, f"{_SESSION} WHERE username = :username", username=username)


async def page(
    tx: Transaction,
    *,
    user_id: str,
    only: str,
    before: str,
    limit: int,
    node_id: str | None = None,
) -> list[ListedRow]:
    """Return a user's sessions, newest first.

    Args:
        tx: the transaction.
        user_id: whose.
        only: a status, or "" for every one.
        before: only sessions older than this identifier; "" for the newest.
        limit: how many at most.
        node_id: whose leases are looked at.
    """
    return await tx.all(
        ListedRow,
        """
        SELECT s.id, s.quota_bytes, s.bytes_used, s.price_per_gb, s.status, s.created_at,
            s.expires_at, s.ended_at, l.id, l.used_bytes, h.captured
        FROM bandwidth_sessions AS s
        LEFT JOIN holds AS h ON h.id = 'bandwidth:' || s.id
        LEFT JOIN bandwidth_leases AS l
            ON l.session_id = s.id AND l.closed_at IS NULL AND COALESCE(l.node_id, '') = :node_id
        WHERE s.user_id = :user_id
            AND (:only = '' OR s.status = :only)
            AND (:before = '' OR s.id < :before)
        ORDER BY s.id DESC
        LIMIT :limit
        """,
        user_id=user_id,
        only=only,
        before=before,
        limit=limit,
        node_id=node_id or "",
    )


async def due_to_expire(tx: Transaction, *, now: int, limit: int) -> list[str]:
    """Return active sessions whose time is over, at most `limit`, the oldest first."""
    rows = await tx.all(
        IdRow,
        """
        SELECT id FROM bandwidth_sessions
        WHERE status = 'active' AND expires_at <= :now
        ORDER BY expires_at
        LIMIT :limit
        """,
        now=now,
        limit=limit,
    )
    return [row.id for row in rows]


async def used_up(tx: Transaction) -> list[str]:
    """Return active sessions of which every byte is used."""
    rows = await tx.all(
        IdRow,
        "SELECT id FROM bandwidth_sessions WHERE status = 'active' AND bytes_used = quota_bytes",
    )
    return [row.id for row in rows]


async def is_used_up(tx: Transaction, session_id: str) -> bool:
    """Say whether every byte of a session is used."""
    found = await tx.one(
        IdRow,
        "SELECT id FROM bandwidth_sessions WHERE id = :id AND bytes_used = quota_bytes",
        id=session_id,
    )
    return found is not None


async def change_status(
    tx: Transaction, session_id: str, *, before: str, after: str, now: int
) -> SessionRow | None:
    """Move a session from one status to another and return it; None when it had left `before`."""
    return await tx.one(
        SessionRow,
        f"""
        UPDATE bandwidth_sessions SET status = :after, ended_at = :now
        WHERE id = :id AND status = :before
        RETURNING {_COLUMNS}
        """,
        id=session_id,
        before=before,
        after=after,
        now=now,
    )


async def lease(
    tx: Transaction, session: SessionRow, lease_id: str, size: int, node_id: str | None = None
) -> bool:
    """Lease `size` bytes of a session; False when it changed since it was read.

    Args:
        tx: the transaction.
        session: as it was read.
        lease_id: the new lease.
        size: at most what nobody has used or leased.
        node_id: the node that will hand them out; None for the one daemon of the database.
    """
    changed = await tx.run(
        """
        UPDATE bandwidth_sessions SET bytes_leased = bytes_leased + :size
        WHERE id = :id AND status = 'active'
            AND bytes_used = :bytes_used AND bytes_leased = :bytes_leased
        """,
        id=session.id,
        size=size,
        bytes_used=session.bytes_used,
        bytes_leased=session.bytes_leased,
    )
    if changed == 0:
        return False
    await tx.run(
        """
        INSERT INTO bandwidth_leases (id, session_id, granted_bytes, node_id)
        VALUES (:id, :session_id, :granted_bytes, :node_id)
        """,
        id=lease_id,
        session_id=session.id,
        granted_bytes=size,
        node_id=node_id,
    )
    return True


async def resize(tx: Transaction, lease: LeaseRow, granted_bytes: int) -> None:
    """Let an open lease grant more or less than it does."""
    await tx.run(
        "UPDATE bandwidth_sessions SET bytes_leased = bytes_leased + :more WHERE id = :session_id",
        more=granted_bytes - lease.granted_bytes,
        session_id=lease.session_id,
    )
    await tx.run(
        "UPDATE bandwidth_leases SET granted_bytes = :granted_bytes WHERE id = :id",
        granted_bytes=granted_bytes,
        id=lease.id,
    )


async def leased_elsewhere(tx: Transaction, session_id: str, node_id: str) -> bool:
    """Say whether other nodes have open leases of a session."""
    found = await tx.one(
        IdRow,
        """
        SELECT id FROM bandwidth_leases
        WHERE closed_at IS NULL AND session_id = :session_id AND COALESCE(node_id, '') <> :node_id
        LIMIT 1
        """,
        session_id=session_id,
        node_id=node_id,
    )
    return found is not None


async def status_of(tx: Transaction, session_ids: Sequence[str]) -> dict[str, str]:
    """Return the status of each session that there is."""
    found = [await find(tx, session_id) for session_id in session_ids]
    return {session.id: session.status for session in found if session is not None}


async def report(tx: Transaction, lease_id: str, used_bytes: int) -> CountsRow | None:
    """Set how much of an open lease is used, in all; None when the lease is not open."""
    session = await tx.one(
        _SessionCounts,
        """
        UPDATE bandwidth_sessions AS s
        SET bytes_used = s.bytes_used + (:used_bytes - l.used_bytes),
            bytes_leased = s.bytes_leased - (:used_bytes - l.used_bytes)
        FROM bandwidth_leases AS l
        WHERE l.id = :lease_id AND l.closed_at IS NULL AND s.id = l.session_id
        RETURNING status, quota_bytes, bytes_used, bytes_leased
        """,
        lease_id=lease_id,
        used_bytes=used_bytes,
    )
    if session is None:
        return None
    lease = await tx.one(
        LeaseRow,
        """
        UPDATE bandwidth_leases SET used_bytes = :used_bytes WHERE id = :lease_id
        RETURNING id, session_id, granted_bytes, used_bytes
        """,
        lease_id=lease_id,
        used_bytes=used_bytes,
    )
    return CountsRow(*session, lease) if lease is not None else None


async def open_leases(tx: Transaction, session_id: str) -> list[LeaseRow]:
    """Return the open leases of a session."""
    return await tx.all(
        LeaseRow,
        """
        SELECT id, session_id, granted_bytes, used_bytes FROM bandwidth_leases
        WHERE closed_at IS NULL AND session_id = :session_id
        """,
        session_id=session_id,
    )


async def find_open_lease(tx: Transaction, lease_id: str) -> LeaseRow | None:
    """Return a lease while it is open."""
    return await tx.one(
        LeaseRow,
        """
        SELECT id, session_id, granted_bytes, used_bytes FROM bandwidth_leases
        WHERE id = :id AND closed_at IS NULL
        """,
        id=lease_id,
    )


async def close_lease(tx: Transaction, lease: LeaseRow, now: int) -> None:
    """Close an open lease: what it did not use is the session's again."""
    await tx.run(
        """
        UPDATE bandwidth_sessions SET bytes_leased = bytes_leased - :unused WHERE id = :session_id
        """,
        unused=lease.granted_bytes - lease.used_bytes,
        session_id=lease.session_id,
    )
    await tx.run(
        "UPDATE bandwidth_leases SET closed_at = :now, node_id = NULL WHERE id = :id",
        id=lease.id,
        now=now,
    )


async def usage_mismatches(tx: Transaction) -> list[str]:
    """Return the sessions whose counters are not the sums of their leases."""
    rows = await tx.all(
        IdRow,
        """
        SELECT s.id FROM bandwidth_sessions AS s
        LEFT JOIN bandwidth_leases AS l ON l.session_id = s.id
        GROUP BY s.id, s.bytes_used, s.bytes_leased
        HAVING s.bytes_used <> COALESCE(SUM(l.used_bytes), 0)
            OR s.bytes_leased <> COALESCE(SUM(
                CASE WHEN l.closed_at IS NULL THEN l.granted_bytes - l.used_bytes ELSE 0 END
            ), 0)
        """,
    )
    return [row.id for row in rows]
