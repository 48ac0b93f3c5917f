"""Queries on the daemons that share a database."""

from typing import NamedTuple

from storage.bandwidth.sessions import LEASE_COLUMNS, LeaseRow, of_node
from storage.engines.store import Transaction


class SeenRow(NamedTuple):
    """Node, with the fields that each of its renewals changes.

    `seen_at` is the time on the database's clock at the last renewal, in whole seconds; `renewals`
    is their number.
    """

    id: str
    seen_at: int
    renewals: int


async def lock(tx: Transaction, node_id: str) -> None:
    """Lock a node, so that it neither opens a lease nor renews its row meanwhile."""
    await tx.lock("nodes", [node_id])


async def seen(tx: Transaction) -> list[SeenRow]:
    """Return every node."""
    return await tx.all(SeenRow, "SELECT id, seen_at, renewals FROM nodes")


async def leases(tx: Transaction, node_id: str | None) -> list[LeaseRow]:
    """Return the open leases of a node; of None those that no node holds."""
    return await tx.all(
        LeaseRow,
        f"""
        SELECT {LEASE_COLUMNS} FROM bandwidth_leases
        WHERE closed_at IS NULL AND {of_node(node_id)}
        """,
        **({} if node_id is None else {"node_id": node_id}),
    )


async def remove(tx: Transaction, node_id: str) -> None:
    """Remove a node that holds no lease."""
    await tx.run("DELETE FROM nodes WHERE id = :id", id=node_id)
