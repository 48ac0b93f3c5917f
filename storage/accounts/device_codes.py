"""Queries on programs that request access from a logged-in user (RFC 8628)."""

from typing import NamedTuple

from storage.engines.store import Transaction


class DeviceCodeRow(NamedTuple):
    """Request of a program for access: both codes are hashed, times are UTC seconds.

    `user_id` is the answering user. Until `next_poll_at` the program should wait. `share` is the
    network that the request counts for when too many requests wait.
    """

    id: str
    device_hash: str
    user_hash: str
    client_name: str
    scopes: str
    network: str
    status: str
    user_id: str | None
    interval_seconds: int
    next_poll_at: int
    created_at: int
    expires_at: int
    share: str


_CODE = """SELECT id, device_hash, user_hash, client_name, scopes, network, status, user_id,
        interval_seconds, next_poll_at, created_at, expires_at, share
    FROM device_codes"""


async def insert(tx: Transaction, row: DeviceCodeRow) -> bool:
    """Add a program that asks; False when one of its codes is taken."""
    row_count = await tx.run(
        """
        INSERT INTO device_codes
            (id, device_hash, user_hash, client_name, scopes, network, status, user_id,
             interval_seconds, next_poll_at, created_at, expires_at, share)
        VALUES
            (:id, :device_hash, :user_hash, :client_name, :scopes, :network, :status, :user_id,
             :interval_seconds, :next_poll_at, :created_at, :expires_at, :share)
        ON CONFLICT DO NOTHING
        """,
        **row._asdict(),
    )
    return row_count == 1


async def count_waiting(tx: Transaction, now: int) -> int:
    """Return how many programs wait for an answer."""
    count = await tx.one(
        int,
        "SELECT COUNT(*) FROM device_codes WHERE status = 'pending' AND expires_at > :now",
        now=now,
    )
    return count or 0


async def drop_waiting(tx: Transaction, now: int) -> None:
    """Delete the oldest program that waits of the share with the most."""
    await tx.run(
        """
        DELETE FROM device_codes WHERE id = (
            SELECT id FROM device_codes
            WHERE status = 'pending' AND expires_at > :now AND share = (
                SELECT share FROM device_codes
                WHERE status = 'pending' AND expires_at > :now
                GROUP BY share ORDER BY COUNT(*) DESC, share LIMIT 1
            )
            ORDER BY expires_at, id LIMIT 1
        )
        """,
        now=now,
    )


async def find_by_device(tx: Transaction, device_hash: str) -> DeviceCodeRow | None:
    """Return the program that asks with a code."""
    return await tx.one(
        DeviceCodeRow, f"{_CODE} WHERE device_hash = :device_hash", device_hash=device_hash
    )


async def find_waiting(tx: Transaction, user_hash: str, now: int) -> DeviceCodeRow | None:
    """Return the unanswered request of the program whose code a person has typed."""
    return await tx.one(
        DeviceCodeRow,
        f"""{_CODE}
        WHERE user_hash = :user_hash AND status = 'pending' AND expires_at > :now""",
        user_hash=user_hash,
        now=now,
    )


async def answer(tx: Transaction, row_id: str, *, status: str, user_id: str, now: int) -> bool:
    """Answer a program that waits; False when it does not any more."""
    row_count = await tx.run(
        """
        UPDATE device_codes SET status = :status, user_id = :user_id
        WHERE id = :id AND status = 'pending' AND expires_at > :now
        """,
        id=row_id,
        status=status,
        user_id=user_id,
        now=now,
    )
    return row_count == 1


async def redeem(tx: Transaction, row_id: str, now: int) -> bool:
    """Use a code that was approved up; False when it is used, or has run out."""
    row_count = await tx.run(
        """
        UPDATE device_codes SET status = 'redeemed'
        WHERE id = :id AND status = 'approved' AND expires_at > :now
        """,
        id=row_id,
        now=now,
    )
    return row_count == 1


async def pace(tx: Transaction, row_id: str, now: int) -> bool:
    """Let a program ask again after its interval; False, without a change, if it may not yet."""
    row_count = await tx.run(
        """
        UPDATE device_codes SET next_poll_at = :now + interval_seconds
        WHERE id = :id AND next_poll_at <= :now
        """,
        id=row_id,
        now=now,
    )
    return row_count == 1


async def slow_down(tx: Transaction, row_id: str, now: int, *, more_seconds: int) -> None:
    """Make the interval of a program longer, and have it begin now."""
    await tx.run(
        """
        UPDATE device_codes SET interval_seconds = interval_seconds + :more,
            next_poll_at = :now + interval_seconds + :more
        WHERE id = :id
        """,
        id=row_id,
        now=now,
        more=more_seconds,
    )


async def deny_approved(tx: Transaction, user_id: str) -> None:
    """Deny the requests that a user has approved and no program has used."""
    await tx.run(
        """
        UPDATE device_codes SET status = 'denied'
        WHERE user_id = :user_id AND status = 'approved'
        """,
        user_id=user_id,
    )


async def delete_before(tx: Transaction, moment: int, *, limit: int) -> None:
    """Delete those that ran out first, at most `limit`, up to a moment."""
    await tx.run(
        """
        DELETE FROM device_codes WHERE id IN (
            SELECT id FROM device_codes WHERE expires_at <= :moment
            ORDER BY expires_at LIMIT :limit
        )
        """,
        moment=moment,
        limit=limit,
    )
