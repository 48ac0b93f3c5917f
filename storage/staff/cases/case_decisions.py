"""Queries on the decisions about cases."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction


class DecisionRow(NamedTuple):
    """The decision about a case: upheld or voided, at a time (UTC seconds)."""

    kind: str
    subject_id: str
    user_id: str
    decision: str
    decided_at: int


_COLUMNS = ", ".join(f"d.{name}" for name in DecisionRow._fields)


async def of_cases(
    tx: Transaction, kind: str, subject_ids: Sequence[str]
) -> dict[str, DecisionRow]:
    """Return the decisions about these cases of a kind, by their subjects."""
    rows = await tx.all(
        DecisionRow,
        f"""
        SELECT {_COLUMNS} FROM {tx.table("asked", id="TEXT")}
        JOIN case_decisions AS d ON d.kind = :kind AND d.subject_id = asked.id
        """,
        asked=json.dumps([{"id": each} for each in subject_ids]),
        kind=kind,
    )
    return {row.subject_id: row for row in rows}


async def deciders(tx: Transaction, job_id: str, attempts: Sequence[int]) -> list[str]:
    """Return the authors of the decision about a disputed job, and its second person."""
    return await tx.all(
        str,
        f"""
        SELECT m.author FROM {tx.table("asked", id="TEXT")}
        JOIN staff_money AS m ON m.business_key = asked.id
        UNION
        SELECT p.decided_by FROM {tx.table("asked", id="TEXT")}
        JOIN staff_money AS m ON m.business_key = asked.id
        JOIN approvals AS p ON p.id = m.approval_id
        """,
        asked=json.dumps([{"id": f"decide:{job_id}:{each}"} for each in attempts]),
    )
