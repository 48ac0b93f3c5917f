"""Queries on the client addresses that open a session without a password.

An address is pending until a client that may use the session has come from it. A pending address
opens nothing and takes nothing from others.

An address opens at most one session on each port: the key of a row is the port's index and the
address. It has the index and not the port's number, because a number may change, and because all
nodes have the same list of ports.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction


class AddressRow(NamedTuple):
    """An address, and the session that it opens.

    `port_index` is the place of the port without passwords in the settings: the column `slot`.
    """

    address: str
    port_index: int
    session_id: str


class ListedAddressRow(NamedTuple):
    """An address of a session as its buyer sees it."""

    address: str
    port_index: int
    session_id: str
    is_pending: bool


async def insert(tx: Transaction, row: AddressRow) -> bool:
    """Add an address that opens a session; return False if it opens another one on that port."""
    added = await tx.run(
        """
        INSERT INTO session_addresses (address, slot, session_id)
        VALUES (:address, :port_index, :session_id)
        ON CONFLICT (address, slot) DO NOTHING
        """,
        **row._asdict(),
    )
    return added == 1


async def insert_pending(tx: Transaction, rows: Sequence[AddressRow]) -> None:
    """Note addresses that open a session once they are proved."""
    for row in rows:
        await tx.run(
            """
            INSERT INTO pending_addresses (address, slot, session_id)
            VALUES (:address, :port_index, :session_id)
            """,
            **row._asdict(),
        )


async def is_any_taken(tx: Transaction, user_id: str, rows: Sequence[AddressRow]) -> bool:
    """Return whether one of these is in use on its port, or is pending there for the same user.

    An address that is pending for another user is free.
    """
    taken = await tx.one(
        int,
        f"""
        SELECT 1 FROM {tx.table("asked", address="TEXT", slot="BIGINT")}
        WHERE EXISTS (
            SELECT 1 FROM session_addresses AS a
            WHERE a.address = asked.address AND a.slot = asked.slot
        ) OR (asked.address, asked.slot) IN (
            SELECT p.address, p.slot FROM bandwidth_sessions AS s
            JOIN pending_addresses AS p ON p.session_id = s.id
            WHERE s.user_id = :user_id AND s.status = 'active'
        )
        LIMIT 1
        """,
        asked=json.dumps([{"address": row.address, "slot": row.port_index} for row in rows]),
        user_id=user_id,
    )
    return taken is not None


async def find_session(tx: Transaction, port_index: int, address: str) -> str | None:
    """Return the active session that an address opens."""
    return await tx.one(
        str,
        "SELECT session_id FROM session_addresses WHERE address = :address AND slot = :port_index",
        address=address,
        port_index=port_index,
    )


async def of_session(tx: Transaction, session_id: str) -> list[AddressRow]:
    """Return the addresses that open a session; none when it is not active."""
    return await tx.all(
        AddressRow,
        "SELECT address, slot, session_id FROM session_addresses WHERE session_id = :session_id",
        session_id=session_id,
    )


async def pending_of_session(tx: Transaction, session_id: str) -> list[AddressRow]:
    """Return the addresses of a session that are not proved; none when it is not active."""
    return await tx.all(
        AddressRow,
        "SELECT address, slot, session_id FROM pending_addresses WHERE session_id = :session_id",
        session_id=session_id,
    )


async def of_sessions(tx: Transaction, session_ids: Sequence[str]) -> list[ListedAddressRow]:
    """Return the addresses of sessions, pending ones too, in one statement for all of them."""
    asked = tx.table("asked", id="TEXT")
    return await tx.all(
        _listed,
        f"""
        SELECT a.address, a.slot, a.session_id, 0
        FROM {asked} JOIN session_addresses AS a ON a.session_id = asked.id
        UNION ALL
        SELECT p.address, p.slot, p.session_id, 1
        FROM {asked} JOIN pending_addresses AS p ON p.session_id = asked.id
        """,
        asked=json.dumps([{"id": session_id} for session_id in session_ids]),
    )


def _listed(address: str, port_index: int, session_id: str, pending: int) -> ListedAddressRow:
    return ListedAddressRow(address, port_index, session_id, bool(pending))


async def count_of_user(tx: Transaction, user_id: str) -> int:
    """Return how many addresses the active sessions of a user have, pending ones too."""
    count = await tx.one(
        int,
        """
        SELECT (
            SELECT COUNT(*) FROM bandwidth_sessions AS s
            JOIN session_addresses AS a ON a.session_id = s.id
            WHERE s.user_id = :user_id AND s.status = 'active'
        ) + (
            SELECT COUNT(*) FROM bandwidth_sessions AS s
            JOIN pending_addresses AS p ON p.session_id = s.id
            WHERE s.user_id = :user_id AND s.status = 'active'
        )
        """,
        user_id=user_id,
    )
    return count or 0


async def delete_pending(tx: Transaction, row: AddressRow) -> None:
    """Forget that an address of a session is not proved."""
    await tx.run(
        "DELETE FROM pending_addresses WHERE session_id = :session_id AND address = :address",
        session_id=row.session_id,
        address=row.address,
    )


async def delete(tx: Transaction, session_id: str) -> None:
    """Remove all addresses of a session, also the pending ones."""
    await tx.run(
        "DELETE FROM session_addresses WHERE session_id = :session_id", session_id=session_id
    )
    await tx.run(
        "DELETE FROM pending_addresses WHERE session_id = :session_id", session_id=session_id
    )
