"""The route of the acts of the staff about the caller."""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from api.routing.codec import money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Route
from market.erasure.acts import OwnAct, OwnActs
from market.staff.base.columns import written_changes
from storage.engines.paging import NEWEST_NUMBER

Value = str | int | float | bool | None


class ActsQuery(Page):
    """The acts about the caller to list."""

    cursor: Annotated[str, Meta(pattern="^[0-9]{0,18}$")] = ""

    @property
    def number(self) -> int:
        """The number of the act that this part begins after."""
        return int(self.cursor) if self.cursor else NEWEST_NUMBER


class ActChange(Struct):
    """The old and the new value of a field: amounts in USD or credits, times in UTC seconds."""

    old: Value
    new: Value


class OwnActItem(Struct):
    """An act of the staff about the caller.

    `reason` is the text that the staff wrote for the caller, "" without one.
    """

    id: str
    created_at: Timestamp
    action: str
    subject_kind: str
    subject_id: str | None
    reason: str
    changes: dict[str, ActChange]


class OwnActsReply(Listed[OwnActItem], kw_only=True):
    """Acts of the staff about the caller, newest first; with `next_cursor` there are more."""

    items: list[OwnActItem] = field(name="acts")


class ActRoutes:
    """The route of the acts about the caller; it is open to suspended users as well."""

    def __init__(self, acts: OwnActs) -> None:
        self._acts = acts

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/auth/me/acts",
                "Acts of the staff about me",
                self.acts,
                OwnActsReply,
                auth=Auth.JWT,
                while_suspended=True,
                query=ActsQuery,
            ),
        ]

    async def acts(self, call: Call[Nothing, Any]) -> OwnActsReply:
        """Return a part of the acts about the caller."""
        query = call.query
        rows = await self._acts.page(call.user_id, before=query.number, limit=query.fetch_limit)
        return OwnActsReply.of(query, rows, _item)


def _item(act: OwnAct) -> OwnActItem:
    changes = written_changes(act.row.changes, write_money=money)
    return OwnActItem(
        id=act.id,
        created_at=timestamp(act.row.at),
        action=act.row.action,
        subject_kind=act.row.subject_kind,
        subject_id=act.row.subject_id,
        reason=act.reason,
        changes={name: ActChange(*values) for name, values in changes.items()},
    )
