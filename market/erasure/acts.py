"""The acts of the staff about a user, as that user reads them: what an export of the user has."""

from msgspec import Struct

from market.events.context import Context
from storage.engines.paging import NEWEST_NUMBER
from storage.engines.store import Transaction
from storage.erasure import acts as queries
from storage.erasure.acts import ActRow


class OwnAct(Struct, frozen=True):
    """An act, and the reason that the staff wrote for the user; "" without one."""

    row: ActRow
    reason: str

    @property
    def id(self) -> str:
        """Its number in the log, as text."""
        return str(self.row.number)


class OwnActs:
    """Reads the acts of the staff about a user."""

    def __init__(self, context: Context) -> None:
        self._store = context.store

    async def page(self, user_id: str, *, before: int = NEWEST_NUMBER, limit: int) -> list[OwnAct]:
        """Return the newest acts about a user before a number.

        Names of the staff, their notes and their reasons for one another are not among them.
        """
        return await self._store.read(_page, user_id, before, limit)


async def _page(tx: Transaction, user_id: str, before: int, limit: int) -> list[OwnAct]:
    rows = await queries.newest(tx, user_id, before=before, limit=limit)
    if not rows:
        return []
    reasons: dict[int, list[str]] = {}
    for text in await queries.shown(tx, user_id, first=rows[-1].number, last=rows[0].number):
        reasons.setdefault(text.number, []).append(text.body)
    return [OwnAct(row, "\n".join(reasons.get(row.number, []))) for row in rows]
