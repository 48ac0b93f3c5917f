"""Nodes of a cluster that is not there: rows, as daemons make them by their links."""

from storage.engines.store import Transaction


async def register(tx: Transaction, node_id: str, now: int) -> None:
    """Register a node that was last seen at a time, on any engine."""
    await tx.run(
        "INSERT INTO nodes (id, started_at, seen_at) VALUES (:id, :now, :now)", id=node_id, now=now
    )
