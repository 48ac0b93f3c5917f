"""Queries on the client addresses that open a session without a password."""

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


async def of_sessions(
    tx: Transaction, user_id: str, *, oldest: str, newest: str
) -> list[AddressRow]:
    """Return the addresses that open a user's sessions, from one session to another."""
    return await tx.all(
        AddressRow,
        """
        SELECT a.address, a.slot, a.session_id
        FROM bandwidth_sessions AS s JOIN session_addresses AS a ON a.session_id = s.id
        WHERE s.user_id = :user_id AND s.id >= :oldest AND s.id <= :newest
        """,
        user_id=user_id,
        oldest=oldest,
        newest=newest,
    )


async def delete(tx: Transaction, session_id: str) -> int:
    """Have a session opened by no address any more; return how many did."""
    return await tx.run(
        "DELETE FROM session_addresses WHERE session_id = :session_id", session_id=session_id
    )
