"""The statement that writes decisions about cases; only `market.staff` may import it.

It runs within an act, like those of `storage.staff.base.writes`.
"""

from storage.engines.store import Transaction, insert_row
from storage.staff.cases.case_decisions import DecisionRow


async def insert(tx: Transaction, row: DecisionRow) -> None:
    """Record a decision about a case that has none."""
    await insert_row(tx, "case_decisions", **row._asdict())
