"""Queries on questions about records, and on the answers of the nodes; both live for minutes."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row

LIVES_SECONDS = 600


class LookRow(NamedTuple):
    """A question, in JSON."""

    id: str
    question: str


class FindingsRow(NamedTuple):
    """The answer of a node, in JSON."""

    node_id: str
    findings: str


async def insert(tx: Transaction, look: LookRow, *, now: int) -> None:
    """Add a question, and delete old ones."""
    await delete_old(tx, now=now)
    await insert_row(tx, "looks", id=look.id, question=look.question, created_at=now)


async def unanswered(tx: Transaction, node_id: str, *, since: int, limit: int) -> list[LookRow]:
    """Return questions since a time that a node has not answered, the oldest first."""
    return await tx.all(
        LookRow,
        """
        SELECT id, question FROM looks AS l
        WHERE created_at > :since AND NOT EXISTS (
            SELECT 1 FROM look_findings AS f WHERE f.look_id = l.id AND f.node_id = :node_id
        )
        ORDER BY created_at LIMIT :limit
        """,
        node_id=node_id,
        since=since,
        limit=limit,
    )


async def answer(tx: Transaction, look_id: str, node_id: str, findings: str) -> None:
    """Add the answer of a node, if the question still lives."""
    await tx.run(
        """
        INSERT INTO look_findings (look_id, node_id, findings)
        SELECT id, :node_id, :findings FROM looks WHERE id = :look_id
        ON CONFLICT DO NOTHING
        """,
        look_id=look_id,
        node_id=node_id,
        findings=findings,
    )


async def answered(tx: Transaction, look_id: str) -> list[str]:
    """Return the nodes that have answered a question."""
    return await tx.all(
        str,
        "SELECT node_id FROM look_findings WHERE look_id = :look_id ORDER BY node_id",
        look_id=look_id,
    )


async def findings(tx: Transaction, look_id: str) -> list[FindingsRow]:
    """Return the answers to a question."""
    return await tx.all(
        FindingsRow,
        """
        SELECT node_id, findings FROM look_findings
        WHERE look_id = :look_id ORDER BY node_id
        """,
        look_id=look_id,
    )


async def delete_old(tx: Transaction, *, now: int) -> int:
    """Delete questions whose time is over, with their answers; return their number."""
    old = now - LIVES_SECONDS
    await tx.run(
        """
        DELETE FROM look_findings
        WHERE look_id IN (SELECT id FROM looks WHERE created_at <= :old)
        """,
        old=old,
    )
    return await tx.run("DELETE FROM looks WHERE created_at <= :old", old=old)
