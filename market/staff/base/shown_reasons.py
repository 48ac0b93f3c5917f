"""Reasons of acts that several users read: each of them has the text of its own."""

import secrets
from collections.abc import Iterable

from market.events.context import Context
from market.staff.base.acts import SALT_BYTES, Changes, TextKind
from market.staff.base.chain import text_digest
from storage.engines.store import Transaction
from storage.staff.base import log as log_queries
from storage.staff.base import writes
from storage.staff.base.writes import TextRow


async def show_reason(
    tx: Transaction, context: Context, users: Iterable[str], body: str
) -> Changes:
    """Write the reason of an act that takes place for its users, within the act.

    Their texts are equal, so one hash among the changes proves all of them.

    Args:
        tx: the transaction of the act.
        context: gives identifiers and the time.
        users: the readers.
        body: the reason; "" if it was erased.
    """
    readers = list(users)
    if not body or not readers:
        return {}
    salt, number = secrets.token_hex(SALT_BYTES), (await log_queries.head(tx)).number + 1
    for user_id in readers:
        new_id, now = context.identifiers.new(), context.now()
        text = TextRow(new_id, TextKind.DECISION, number, user_id, body, salt, now)
        await writes.insert_text(tx, text)
    return {"shown": (None, text_digest(salt, body))}
