"""The statements that suspend users and halt sessions; only `market.staff` may import them."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row
from storage.staff.base.writes import TextRow, insert_text, lock_head

KEPT_SECONDS = 86_400
# The newest orders are kept at any age. The ages are by the clocks of several hosts, and such a
# clock may jump; a node carries out an order within seconds, or has lost its leases.
KEPT_MIN = 1_000


class EndedRow(NamedTuple):
    """A part whose suspension is over."""

    user_id: str
    part: str


class HaltedRow(NamedTuple):
    """A session whose halt is over, and its user."""

    id: str
    user_id: str
    status: str


async def lock_orders(tx: Transaction) -> None:
    """Lock the head of the log, as each act does: it also gives the orders their order."""
    await lock_head(tx)


async def insert_shown(
    tx: Transaction, text_id: str, user_id: str, body: str, *, number: int, salt: str, now: int
) -> None:
    """Add the text that a user reads about a suspension, of the act with a number."""
    await insert_text(tx, TextRow(text_id, "decision", number, user_id, body, salt, now))


async def suspend(
    tx: Transaction,
    user_id: str,
    parts: Sequence[str],
    *,
    shown_id: str,
    now: int,
    ends_at: int | None,
) -> None:
    """Suspend parts of a user; a part that is suspended gets the new text and end."""
    for part in parts:
        await tx.run(
            """
            INSERT INTO suspended_parts (user_id, part, shown_id, began_at, ends_at)
            VALUES (:user_id, :part, :shown_id, :now, :ends_at)
            ON CONFLICT (user_id, part) DO UPDATE SET
                shown_id = excluded.shown_id, began_at = excluded.began_at,
                ends_at = excluded.ends_at
            """,
            user_id=user_id,
            part=part,
            shown_id=shown_id,
            now=now,
            ends_at=ends_at,
        )


async def resume(tx: Transaction, user_id: str, parts: Sequence[str]) -> None:
    """End the suspension of parts of a user."""
    for part in parts:
        await tx.run(
            "DELETE FROM suspended_parts WHERE user_id = :user_id AND part = :part",
            user_id=user_id,
            part=part,
        )


async def due(tx: Transaction, *, now: int, limit: int) -> list[EndedRow]:
    """Return the parts whose suspension is over by now, the oldest first."""
    return await tx.all(
        EndedRow,
        """
        SELECT user_id, part FROM suspended_parts
        WHERE ends_at IS NOT NULL AND ends_at <= :now ORDER BY ends_at LIMIT :limit
        """,
        now=now,
        limit=limit,
    )


async def set_halted(tx: Transaction, session_id: str, halted_at: int, reason: str) -> None:
    """Halt one session until a person lets it go on; a halt with an end loses this end.

    Args:
        tx: the transaction.
        session_id: the session.
        halted_at: the begin of the halt, in UTC seconds.
        reason: the text for its user.
    """
    await tx.run(
        """
        UPDATE bandwidth_sessions
        SET halted_at = :halted_at, halted_until = NULL, halt_reason = :reason
        WHERE id = :id
        """,
        id=session_id,
        halted_at=halted_at,
        reason=reason,
    )


async def halt_until(
    tx: Transaction, session_id: str, *, now: int, until: int, reason: str, found_at: int
) -> bool:
    """Halt one session for a time, because of a finding.

    Return False for a session that is over, halted, or was released since the finding.

    Args:
        tx: the transaction.
        session_id: the session.
        now: UTC seconds.
        until: the end of the halt.
        reason: its buyer reads it.
        found_at: the time of the finding.
    """
    changed = await tx.run(
        """
        UPDATE bandwidth_sessions
        SET halted_at = :now, halted_until = :until, halt_reason = :reason
        WHERE id = :id AND status = 'active' AND halted_at IS NULL
            AND COALESCE(released_at, 0) < :found_at
        """,
        id=session_id,
        now=now,
        until=until,
        reason=reason,
        found_at=found_at,
    )
    return changed > 0


async def release(tx: Transaction, session_id: str, *, now: int) -> bool:
    """Let one session go on; return False for a session that is not halted."""
    return await _release(tx, session_id, "halted_at IS NOT NULL", now)


async def release_due(tx: Transaction, session_id: str, *, now: int) -> bool:
    """Let one session go on whose halt is over; return False for another session."""
    return await _release(tx, session_id, "halted_until <= :now", now)


async def _release(tx: Transaction, session_id: str, condition: str, now: int) -> bool:
    changed = await tx.run(
        f"""
        UPDATE bandwidth_sessions
        SET halted_at = NULL, halted_until = NULL, halt_reason = '', released_at = :now
        WHERE id = :id AND {condition}
        """,
        id=session_id,
        now=now,
    )
    return changed > 0


async def to_release(tx: Transaction, *, now: int, limit: int) -> list[HaltedRow]:
    """Return the sessions whose halt is over by now, the oldest end first."""
    return await tx.all(
        HaltedRow,
        """
        SELECT id, user_id, status FROM bandwidth_sessions
        WHERE halted_until IS NOT NULL AND halted_until <= :now
        ORDER BY halted_until LIMIT :limit
        """,
        now=now,
        limit=limit,
    )


async def order(
    tx: Transaction, kind: str, user_id: str, session_id: str | None, *, now: int
) -> int:
    """Add an order to all nodes, and return its number; the caller has locked the log's head.

    Orders of more than `KEPT_SECONDS` ago are deleted, but for the newest `KEPT_MIN`: nodes count
    from the newest, and one of them may not have read the others yet.
    """
    number = (await tx.one(int, "SELECT COALESCE(MAX(number), 0) FROM halts") or 0) + 1
    await insert_row(
        tx,
        "halts",
        number=number,
        kind=kind,
        user_id=user_id,
        session_id=session_id,
        created_at=now,
    )
    for table in ("halt_acks", "halts"):
        await tx.run(
            f"""
            DELETE FROM {table} WHERE number IN (
                SELECT number FROM halts WHERE number <= :last AND created_at < :old
                ORDER BY number LIMIT 100
            )
            """,
            last=number - KEPT_MIN,
            old=now - KEPT_SECONDS,
        )
    return number
