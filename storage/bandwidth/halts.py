"""Queries on halted sessions, and on the orders that each node carries out and acknowledges."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.accounts.suspensions import is_suspended
from storage.engines.store import Transaction


class HaltRow(NamedTuple):
    """An order to all nodes: `kind` is halt, go or look; without a session it is about a user."""

    number: int
    kind: str
    user_id: str
    session_id: str | None


class AckRow(NamedTuple):
    """The acknowledgement of a node: how many connections it has cut."""

    node_id: str
    connections: int


async def newest(tx: Transaction) -> int:
    """Return the number of the newest order, 0 for none."""
    return await tx.one(int, "SELECT COALESCE(MAX(number), 0) FROM halts") or 0


async def after(tx: Transaction, number: int, *, limit: int) -> list[HaltRow]:
    """Return the orders after a number, the oldest first."""
    return await tx.all(
        HaltRow,
        """
        SELECT number, kind, user_id, session_id FROM halts
        WHERE number > :number ORDER BY number LIMIT :limit
        """,
        number=number,
        limit=limit,
    )


async def acknowledge(
    tx: Transaction, node_id: str, carried_out: Sequence[tuple[int, int]]
) -> None:
    """Record that a node has carried out orders; one that was deleted meanwhile is left out.

    Args:
        tx: the transaction.
        node_id: the node, "" for the one daemon of the database.
        carried_out: by the number of the order, the connections that were cut.
    """
    for number, connections in carried_out:
        await tx.run(
            """
            INSERT INTO halt_acks (number, node_id, connections)
            SELECT number, :node_id, :connections FROM halts WHERE number = :number
            ON CONFLICT DO NOTHING
            """,
            number=number,
            node_id=node_id,
            connections=connections,
        )


async def acks(tx: Transaction, number: int) -> list[AckRow]:
    """Return the acknowledgements of an order."""
    return await tx.all(
        AckRow,
        "SELECT node_id, connections FROM halt_acks WHERE number = :number ORDER BY node_id",
        number=number,
    )


async def is_halted(tx: Transaction, session_id: str) -> bool:
    """Return whether a session is halted, by itself or with all sessions of its user."""
    row = await tx.one(
        int,
        f"""
        SELECT 1 FROM bandwidth_sessions AS s
        WHERE s.id = :id AND (s.halted_at IS NOT NULL OR {is_suspended("s.user_id", "sessions")})
        """,
        id=session_id,
    )
    return row is not None


async def is_leased(tx: Transaction, session_id: str) -> bool:
    """Return whether a node has an open lease of a session."""
    row = await tx.one(
        int,
        """
        SELECT 1 FROM bandwidth_leases
        WHERE closed_at IS NULL AND session_id = :session_id LIMIT 1
        """,
        session_id=session_id,
    )
    return row is not None


async def halted_at(tx: Transaction, session_id: str) -> int | None:
    """Return the time at which a session itself was halted, in UTC seconds; None if it is not."""
    return await tx.one(
        int,
        "SELECT halted_at FROM bandwidth_sessions WHERE id = :id AND halted_at IS NOT NULL",
        id=session_id,
    )
