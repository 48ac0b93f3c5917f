"""The statements that write tickets; only `market.staff` may import them."""

from storage.engines.store import Transaction, insert_row
from storage.staff.abuse.tickets import TicketRow


async def insert(tx: Transaction, row: TicketRow) -> None:
    """Add a ticket."""
    await insert_row(tx, "tickets", **row._asdict())


async def change(tx: Transaction, row: TicketRow) -> None:
    """Write the state, the user, the facts and the end of a ticket."""
    await tx.run(
        """
        UPDATE tickets SET state = :state, user_id = :user_id, facts = :facts,
            closed_at = :closed_at, outcome = :outcome
        WHERE number = :number
        """,
        number=row.number,
        state=row.state,
        user_id=row.user_id,
        facts=row.facts,
        closed_at=row.closed_at,
        outcome=row.outcome,
    )
