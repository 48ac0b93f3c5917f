"""Queries on requests of the staff that wait for a second person."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction


class ApprovalRow(NamedTuple):  # as wide as its table
    """A request for an act: `payload` is the act, as JSON. Its times are UTC seconds."""

    id: str
    action: str
    business_key: str
    user_id: str
    currency: str
    amount: int
    payload: str
    payload_hash: str
    asked_by: str
    log_number: int
    asked_at: int
    expires_at: int
    decided_by: str | None
    decided_at: int | None
    decision: str | None


class ShownApprovalRow(NamedTuple):
    """A request with the name of its user, and the reason of the act that asked ("" if erased).

    `asked_email` is the address of a member who asked.
    """

    approval: ApprovalRow
    username: str
    reason: str | None
    asked_email: str | None


class PayloadRow(NamedTuple):
    """The payload of a request, and its hash."""

    id: str
    payload: str
    payload_hash: str


_COLUMNS = ", ".join(ApprovalRow._fields)
_WIDTH = len(ApprovalRow._fields)


async def find(tx: Transaction, approval_id: str) -> ApprovalRow | None:
    """Return a request."""
    return await tx.one(
        ApprovalRow, f"SELECT {_COLUMNS} FROM approvals WHERE id = :id", id=approval_id
    )


async def find_open(tx: Transaction, business_key: str) -> ApprovalRow | None:
    """Return the undecided request with a business key."""
    return await tx.one(
        ApprovalRow,
        f"SELECT {_COLUMNS} FROM approvals WHERE business_key = :key AND decision IS NULL",
        key=business_key,
    )


async def undecided_of(tx: Transaction, user_id: str) -> list[ApprovalRow]:
    """Return the undecided requests about a user, the oldest first."""
    return await tx.all(
        ApprovalRow,
        f"""
        SELECT {_COLUMNS} FROM approvals WHERE user_id = :user AND decision IS NULL ORDER BY id
        """,
        user=user_id,
    )


async def page(
    tx: Transaction, *, is_open: bool, before: str, limit: int
) -> list[ShownApprovalRow]:
    """Return requests older than an identifier ("" for none), the newest first."""
    columns = ", ".join(f"a.{name}" for name in ApprovalRow._fields)
    where = "a.decision IS NULL AND " if is_open else ""
    order = NEWEST_FIRST if is_open else "DESC"  # all of them: the primary key has the order
    return await tx.all(
        lambda *row: ShownApprovalRow(ApprovalRow(*row[:_WIDTH]), *row[_WIDTH:]),
        f"""
        SELECT {columns}, u.username, t.body,
            (SELECT s.email FROM staff AS s WHERE s.id = SUBSTR(a.asked_by, 7))
        FROM approvals AS a
        JOIN users AS u ON u.id = a.user_id
        LEFT JOIN staff_log AS l ON l.number = a.log_number
        LEFT JOIN texts AS t ON t.id = l.text_id
        WHERE {where} a.id < :before
        ORDER BY a.id {order} LIMIT :limit
        """,
        before=behind(before),
        limit=limit,
    )


async def payloads(tx: Transaction) -> list[PayloadRow]:
    """Return the payload and its hash of each request, for the audit."""
    return await tx.all(PayloadRow, "SELECT id, payload, payload_hash FROM approvals ORDER BY id")
