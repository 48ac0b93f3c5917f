"""The statements of the staff about the public side; only `market.staff` may import them.

The transaction of each statement also writes a row of the log (`market/staff/base/acts.py`).
"""

from storage.engines.store import Transaction, insert_row
from storage.site.invitations import InvitationRow
from storage.site.status import NoticeRow
from storage.site.texts import TextRow


async def insert_invitation(tx: Transaction, row: InvitationRow, *, code_hash: str) -> None:
    """Add an invitation."""
    await insert_row(tx, "invitations", code_hash=code_hash, **row._asdict())


async def withdraw_invitation(tx: Transaction, invitation_id: str) -> int | None:
    """Take all uses from an invitation. Return the uses that it had left; None if it is unknown."""
    left = await tx.one(int, "SELECT uses_left FROM invitations WHERE id = :id", id=invitation_id)
    if left:
        await tx.run("UPDATE invitations SET uses_left = 0 WHERE id = :id", id=invitation_id)
    return left


async def insert_text(tx: Transaction, row: TextRow, body: str) -> None:
    """Publish a text in one language."""
    await insert_row(tx, "site_texts", body=body, **row._asdict())


async def insert_notice(tx: Transaction, row: NoticeRow) -> None:
    """Add a notice to the page of the status."""
    await insert_row(tx, "status_notices", **row._asdict())


async def end_notice(tx: Transaction, notice_id: str, now: int) -> bool:
    """End a notice; return False if it is unknown or has ended."""
    ended = await tx.run(
        "UPDATE status_notices SET ended_at = :now WHERE id = :id AND ended_at IS NULL",
        id=notice_id,
        now=now,
    )
    return ended == 1
