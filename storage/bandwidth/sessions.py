"""Queries on bandwidth sessions and on the leases under which their bytes are handed out."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind, in_turns, matches
from storage.engines.store import Transaction, insert_row


class SessionRow(NamedTuple):
    """A session: sizes in bytes, price in micro-USD per GB, times in UTC seconds.

    `exit` is the buyer's wish for an exit, "" for a session that leaves directly. Owners of exits
    get `exit_share_percent` of the price of the bytes that their exits carry.
    """

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
    exit: str = ""
    exit_share_percent: int = 0


class ListedRow(NamedTuple):
    """Session as its buyer sees it, with a node's open lease and the bytes last reported for that.

    `captured` is the cost of a session that is over, in micro-USD; `port_index` is the port without
    passwords on which client addresses open it, None if there is no such port. Its own
    halt, or that of all sessions of its user, began at `halted_at`; with `halted_until` it ends by
    itself.
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
    port_index: int | None
    exit: str
    halted_at: int | None
    halted_until: int | None
    halt_reason: str


class UsedLeaseRow(NamedTuple):
    """An open lease of an active session: its last report in bytes, the price of the session."""

    session_id: str
    price_per_gb: int
    lease_id: str
    reported: int


class LeaseRow(NamedTuple):
    """A lease: bytes of a session that one daemon may hand out, and how many it has used.

    `exit_bytes` of those used went through exits.
    """

    id: str
    session_id: str
    granted_bytes: int
    used_bytes: int
    exit_bytes: int


class CountsRow(NamedTuple):
    """The counters of a session, in bytes."""

    status: str
    quota_bytes: int
    bytes_used: int
    bytes_leased: int


class CountedRow(NamedTuple):
    """Bytes that a session has used so far."""

    session_id: str
    user_id: str
    quota_bytes: int
    bytes_used: int


class LowRow(NamedTuple):
    """A session that has little left, in bytes, and its owner."""

    id: str
    user_id: str
    quota_bytes: int
    bytes_left: int


class ExpiringRow(NamedTuple):
    """A session whose time is nearly over, and its owner; times in UTC seconds."""

    id: str
    user_id: str
    bytes_left: int
    created_at: int
    expires_at: int


_COLUMNS = """id, user_id, username, password_hash, quota_bytes, bytes_used, bytes_leased,
    price_per_gb, status, created_at, expires_at, ended_at, exit, exit_share_percent"""
LEASE_COLUMNS = "id, session_id, granted_bytes, used_bytes, exit_bytes"
_SESSION = f"SELECT {_COLUMNS} FROM bandwidth_sessions"


async def insert(tx: Transaction, session: SessionRow) -> None:
    """Add a session."""
    await insert_row(tx, "bandwidth_sessions", **session._asdict())


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
    session_id: str | None = None,
) -> list[ListedRow]:
    """Return a user's sessions, newest first.

    Args:
        tx: the transaction.
        user_id: whose.
        only: a status, or "" for every one.
        before: only sessions older than this identifier; "" for the newest.
        limit: how many at most.
        node_id: whose leases are looked at.
        session_id: only this one; None for all.
    """
    # Most callers request the active sessions, which have cost nothing yet.
    is_active = only == "active"
    shown = matches("s.status", "only") if only else "TRUE"
    hold = "" if is_active else "LEFT JOIN holds AS h ON h.id = 'bandwidth:' || s.id"
    return await tx.all(
        ListedRow,
        f"""
        SELECT s.id, s.quota_bytes, s.bytes_used, s.price_per_gb, s.status, s.created_at,
            s.expires_at, s.ended_at, l.id, l.used_bytes,
            {"NULL" if is_active else "h.captured"},
            COALESCE(
                (SELECT MIN(a.slot) FROM session_addresses AS a WHERE a.session_id = s.id),
                (SELECT MIN(p.slot) FROM pending_addresses AS p WHERE p.session_id = s.id)
            ),
            s.exit, COALESCE(p.began_at, s.halted_at),
            CASE WHEN p.user_id IS NULL THEN s.halted_until ELSE p.ends_at END,
            CASE WHEN p.user_id IS NULL THEN s.halt_reason ELSE COALESCE(t.body, '') END
        FROM bandwidth_sessions AS s
        LEFT JOIN suspended_parts AS p ON p.user_id = s.user_id AND p.part = 'sessions'
        LEFT JOIN texts AS t ON t.id = p.shown_id
        {hold}
        LEFT JOIN bandwidth_leases AS l
            ON l.session_id = s.id AND l.closed_at IS NULL AND l.{of_node(node_id)}
        WHERE s.user_id = :user_id AND s.id < :before AND {shown}
            {"" if session_id is None else "AND s.id = :session_id"}
        ORDER BY s.id {NEWEST_FIRST}
        LIMIT :limit
        """,
        user_id=user_id,
        only=only,
        before=behind(before),
        limit=limit,
        **({} if node_id is None else {"node_id": node_id}),
        **({} if session_id is None else {"session_id": session_id}),
    )


async def leases_of_user(
    tx: Transaction, user_id: str, *, node_id: str | None, session_id: str | None
) -> list[UsedLeaseRow]:
    """Return a node's open leases of a user's active sessions; `session_id` None for all."""
    return await tx.all(
        UsedLeaseRow,
        f"""
        SELECT s.id, s.price_per_gb, l.id, l.used_bytes
        FROM bandwidth_sessions AS s
        JOIN bandwidth_leases AS l
            ON l.session_id = s.id AND l.closed_at IS NULL AND l.{of_node(node_id)}
        WHERE s.user_id = :user_id AND s.status = 'active'
            {"" if session_id is None else "AND s.id = :session_id"}
        """,
        user_id=user_id,
        **({} if node_id is None else {"node_id": node_id}),
        **({} if session_id is None else {"session_id": session_id}),
    )


def of_node(node_id: str | None) -> str:
    """Return SQL for the leases of a node; for None, SQL for the leases that no node holds.

    A planner has statistics of the column itself, and none of COALESCE over it: with that it would
    read every open lease rather than look one up.
    """
    return "node_id IS NULL" if node_id is None else "node_id = :node_id"


async def due_to_expire(tx: Transaction, *, now: int, limit: int) -> list[str]:
    """Return active sessions whose time is over, at most `limit`; their users take turns."""
    return await tx.all(
        str,
        in_turns(
            "bandwidth_sessions", by="expires_at", due="status = 'active' AND expires_at <= :now"
        ),
        now=now,
        limit=limit,
    )


async def count_active(tx: Transaction, user_id: str) -> int:
    """Return how many active sessions a user has."""
    counted = await tx.one(
        int,
        "SELECT COUNT(*) FROM bandwidth_sessions WHERE user_id = :user_id AND status = 'active'",
        user_id=user_id,
    )
    return counted or 0


async def count(tx: Transaction, user_id: str, *, most: int) -> int:
    """Return how many sessions a user has had, `most` where there are more."""
    counted = await tx.one(
        int,
        """
        SELECT COUNT(*) FROM (
            SELECT 1 FROM bandwidth_sessions WHERE user_id = :user_id LIMIT :most
        ) AS counted
        """,
        user_id=user_id,
        most=most,
    )
    return counted or 0


async def used_up(tx: Transaction) -> list[str]:
    """Return active sessions whose bytes are all used."""
    return await tx.all(
        str,
        "SELECT id FROM bandwidth_sessions WHERE status = 'active' AND bytes_used = quota_bytes",
    )


async def is_used_up(tx: Transaction, session_id: str) -> bool:
    """Return whether every byte of a session is used."""
    row = await tx.one(
        str,
        "SELECT id FROM bandwidth_sessions WHERE id = :id AND bytes_used = quota_bytes",
        id=session_id,
    )
    return row is not None


async def change_status(
    tx: Transaction, session_id: str, *, before: str, after: str, now: int
) -> SessionRow | None:
    """Move a session from one status to another and return it; None when it had left `before`."""
    return await tx.one(
        SessionRow,
        f"""
        UPDATE bandwidth_sessions SET status = :after, ended_at = :now
        WHERE id = :id AND {matches("status", "before")}
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
        size: at most the bytes that are neither used nor leased.
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
    await insert_row(
        tx,
        "bandwidth_leases",
        id=lease_id,
        session_id=session.id,
        granted_bytes=size,
        node_id=node_id,
    )
    return True


async def leased_elsewhere(tx: Transaction, session_id: str, node_id: str) -> bool:
    """Return whether other nodes have open leases of a session."""
    row = await tx.one(
        str,
        """
        SELECT id FROM bandwidth_leases
        WHERE closed_at IS NULL AND session_id = :session_id AND COALESCE(node_id, '') <> :node_id
        LIMIT 1
        """,
        session_id=session_id,
        node_id=node_id,
    )
    return row is not None


async def status_of(tx: Transaction, session_ids: Sequence[str]) -> dict[str, str]:
    """Return the status of each of the sessions that exists."""
    return dict(
        await tx.all(
            _pair,
            f"""
            SELECT s.id, s.status FROM {tx.table("asked", id="TEXT")}
            JOIN bandwidth_sessions AS s ON s.id = asked.id
            """,
            asked=json.dumps([{"id": session_id} for session_id in session_ids]),
        )
    )


def _pair(first: str, second: str) -> tuple[str, str]:
    return first, second


async def leases_with_counts(
    tx: Transaction, lease_ids: Sequence[str]
) -> list[tuple[LeaseRow, CountsRow]]:
    """Return the open leases among these, and the counters of their sessions."""

    def row(*columns: Any) -> tuple[LeaseRow, CountsRow]:  # noqa: ANN401 - of several types
        return LeaseRow(*columns[:5]), CountsRow(*columns[5:])

    return await tx.all(
        row,
        f"""
        SELECT l.id, l.session_id, l.granted_bytes, l.used_bytes, l.exit_bytes,
            s.status, s.quota_bytes, s.bytes_used, s.bytes_leased
        FROM {tx.table("asked", id="TEXT")}
        JOIN bandwidth_leases AS l ON l.id = asked.id
        JOIN bandwidth_sessions AS s ON s.id = l.session_id
        WHERE l.closed_at IS NULL
        """,
        asked=json.dumps([{"id": lease_id} for lease_id in lease_ids]),
    )


async def change(
    tx: Transaction, leases: Sequence[LeaseRow], sessions: Mapping[str, CountsRow]
) -> None:
    """Set the granted and used bytes of leases, and the counters of sessions, in two statements.

    Raises:
        ConstraintError: more would be used than was granted, or granted than was sold, or less
            used than went through exits.
    """
    await tx.run(
        f"""
        UPDATE bandwidth_sessions AS s
        SET bytes_used = counted.used, bytes_leased = counted.leased
        FROM {tx.table("counted", id="TEXT", used="BIGINT", leased="BIGINT")}
        WHERE s.id = counted.id
        """,
        counted=json.dumps(
            [
                {"id": session_id, "used": each.bytes_used, "leased": each.bytes_leased}
                for session_id, each in sessions.items()
            ]
        ),
    )
    await tx.run(
        f"""
        UPDATE bandwidth_leases AS l
        SET used_bytes = counted.used, granted_bytes = counted.granted
        FROM {tx.table("counted", id="TEXT", used="BIGINT", granted="BIGINT")}
        WHERE l.id = counted.id
        """,
        counted=json.dumps(
            [
                {"id": each.id, "used": each.used_bytes, "granted": each.granted_bytes}
                for each in leases
            ]
        ),
    )


async def mark_low(tx: Transaction, session_ids: Sequence[str]) -> list[LowRow]:
    """Mark sessions whose buyers should know that little is left; return the newly marked ones.

    The buyers of the others were notified before.
    """
    return await tx.all(
        LowRow,
        f"""
        UPDATE bandwidth_sessions SET is_low = 1
        WHERE id IN (SELECT id FROM {tx.table("asked", id="TEXT")}) AND is_low = 0
        RETURNING id, user_id, quota_bytes, quota_bytes - bytes_used
        """,
        asked=json.dumps([{"id": each} for each in session_ids]),
    )


async def mark_expiring(tx: Transaction, *, now: int, before: int, limit: int) -> list[ExpiringRow]:
    """Mark sessions that expire before a time; return those whose buyers have no notice yet."""
    return await tx.all(
        ExpiringRow,
        """
        UPDATE bandwidth_sessions SET is_expiry_told = 1
        WHERE is_expiry_told = 0 AND id IN (
            SELECT id FROM bandwidth_sessions
            WHERE status = 'active' AND is_expiry_told = 0 AND expires_at > :now
                AND expires_at <= :before
            ORDER BY expires_at LIMIT :limit
        )
        RETURNING id, user_id, quota_bytes - bytes_used, created_at, expires_at
        """,
        now=now,
        before=before,
        limit=limit,
    )


async def open_leases(tx: Transaction, session_id: str) -> list[LeaseRow]:
    """Return the open leases of a session."""
    return await tx.all(
        LeaseRow,
        f"""
        SELECT {LEASE_COLUMNS} FROM bandwidth_leases
        WHERE closed_at IS NULL AND session_id = :session_id
        """,
        session_id=session_id,
    )


async def close_leases(tx: Transaction, leases: Sequence[LeaseRow], now: int) -> None:
    """Close open leases as they are: their unused bytes become available to the sessions again.

    If fewer bytes of a session are leased than that, another program has changed it: then none stay
    leased.
    """
    unused: Counter[str] = Counter()
    for lease in leases:
        unused[lease.session_id] += lease.granted_bytes - lease.used_bytes
    await tx.run(
        f"""
        UPDATE bandwidth_sessions AS s SET bytes_leased =
            CASE WHEN s.bytes_leased > freed.unused THEN s.bytes_leased - freed.unused ELSE 0 END
        FROM {tx.table("freed", id="TEXT", unused="BIGINT")}
        WHERE s.id = freed.id
        """,
        freed=json.dumps([{"id": each, "unused": size} for each, size in unused.items()]),
    )
    await tx.run(
        f"""
        UPDATE bandwidth_leases AS l SET closed_at = :now, node_id = NULL
        FROM {tx.table("closed", id="TEXT")}
        WHERE l.id = closed.id
        """,
        closed=json.dumps([{"id": lease.id} for lease in leases]),
        now=now,
    )


async def usage_mismatches(tx: Transaction) -> list[str]:
    """Return the sessions whose counters are not the sums of their leases."""
    return await tx.all(
        str,
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


async def counted_of_users(tx: Transaction, user_ids: Sequence[str]) -> list[CountedRow]:
    """Return the reported use of the active sessions of users."""
    return await tx.all(
        CountedRow,
        f"""
        SELECT s.id, s.user_id, s.quota_bytes, s.bytes_used
        FROM {tx.table("asked", id="TEXT")}
        JOIN bandwidth_sessions AS s ON s.user_id = asked.id AND s.status = 'active'
        """,
        asked=json.dumps([{"id": each} for each in user_ids]),
    )
