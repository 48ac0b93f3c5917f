"""Queries on the client addresses that open a session without a password."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.bandwidth import IdRow
from storage.store import Transaction


class AddressRow(NamedTuple):
    """An address, and the session that it opens; `slot` says on which port."""

    address: str
    slot: int
    session_id: str


async def insert(tx: Transaction, row: AddressRow) -> bool:
    """Have an address open a session; False when it opens another one on that port."""
    added = await tx.run(
        """
        INSERT INTO session_addresses (address, slot, session_id)
        VALUES (:address, :slot, :session_id)
        ON CONFLICT (address, slot) DO NOTHING
        """,
        **row._asdict(),
    )
    return added == 1


async def find_session(tx: Transaction, slot: int, address: str) -> str | None:
    """Return the active session that an address opens."""
    found = await tx.one(
        IdRow,
        "SELECT session_id FROM session_addresses WHERE address = :address AND slot = :slot",
        address=address,
        slot=slot,
    )
    return found.id if found is not None else None


async def of_session(tx: Transaction, session_id: str) -> list[AddressRow]:
    """Return the addresses that open a session; none when it is not active."""
    return await tx.all(
        AddressRow,
        "SELECT address, slot, session_id FROM session_addresses WHERE session_id = :session_id",
        session_id=session_id,
    )


async def of_sessions(tx: Transaction, session_ids: Sequence[str]) -> list[AddressRow]:
    """Return the addresses that open sessions, in one statement however many they are."""
    return await tx.all(
        AddressRow,
        f"""
        SELECT a.address, a.slot, a.session_id FROM {tx.table("asked", id="TEXT")}
        JOIN session_addresses AS a ON a.session_id = asked.id
        """,
        asked=json.dumps([{"id": session_id} for session_id in session_ids]),
    )


async def delete(tx: Transaction, session_id: str) -> int:
    """Have a session opened by no address any more; return how many did."""
    return await tx.run(
        "DELETE FROM session_addresses WHERE session_id = :session_id", session_id=session_id
    )
