"""Queries on the particulars of buyers for their invoices."""

from typing import NamedTuple

from storage.engines.store import Transaction


class ParticularsRow(NamedTuple):
    """The particulars on the next documents of a user; `address` has lines, `country` is a code."""

    user_id: str
    name: str
    address: str
    country: str
    tax_number: str
    changed_at: int


_COLUMNS = ", ".join(ParticularsRow._fields)


async def find(tx: Transaction, user_id: str) -> ParticularsRow | None:
    """Return the particulars of a user; None for a user without."""
    return await tx.one(
        ParticularsRow,
        f"SELECT {_COLUMNS} FROM buyer_particulars WHERE user_id = :user_id",
        user_id=user_id,
    )


async def put(tx: Transaction, row: ParticularsRow) -> None:
    """Set the particulars of a user."""
    await tx.run(
        f"""
        INSERT INTO buyer_particulars ({_COLUMNS})
        VALUES (:user_id, :name, :address, :country, :tax_number, :changed_at)
        ON CONFLICT (user_id) DO UPDATE SET name = :name, address = :address,
            country = :country, tax_number = :tax_number, changed_at = :changed_at
        """,
        **row._asdict(),
    )


async def remove(tx: Transaction, user_id: str) -> None:
    """Remove the particulars of a user, if there are any."""
    await tx.run("DELETE FROM buyer_particulars WHERE user_id = :user_id", user_id=user_id)
