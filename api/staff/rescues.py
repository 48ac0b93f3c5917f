"""Routes of the rescues: listed, and acknowledged by another operator."""

from typing import Any

from msgspec import Struct

from api.http.identifiers import in_path
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.words import PREFIX, Reason, author, moment
from market.base.errors import Code
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.members import rescue
from storage.staff.base.rows import RescueRow

ALL = f"{PREFIX}/rescues"


class AcknowledgeRequest(Struct):
    """The reason of an act, which is kept with the log."""

    reason: Reason


class RescueItem(Struct):
    """A login of an operator that was made at the machine."""

    id: str
    email: str
    at: Timestamp
    expires_at: Timestamp
    acknowledged_at: Timestamp | None
    acknowledged_by: str | None


class RescuesReply(Reply, kw_only=True):
    """The newest rescues, the newest first."""

    rescues: list[RescueItem]


class RescueReply(Reply, kw_only=True):
    """The rescue that an operator has acknowledged."""

    id: str
    email: str


class RescueRoutes:
    """The routes of the rescues."""

    def __init__(self, desk: StaffDesk) -> None:
        self._desk = desk

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        return [
            StaffRoute(
                "GET",
                ALL,
                "Logins of operators that were made at the machine",
                self.all,
                RescuesReply,
                action=Action.STAFF_RESCUES,
            ),
            StaffRoute(
                "POST",
                f"{ALL}/{{rescue}}/acknowledge",
                "Acknowledge the rescue of another operator; its alert ends",
                self.acknowledge,
                RescueReply,
                action=Action.STAFF_ACKNOWLEDGE,
                body=AcknowledgeRequest,
                idempotent=True,
                errors=(Code.STAFF_UNCHANGED,),
                example={"reason": "Rita lost her telephone"},
            ),
        ]

    async def all(self, call: Call[Nothing, Any]) -> RescuesReply:
        """List the newest rescues."""
        rows = await rescue.listed(self._desk.context, author(call))
        return RescuesReply(rescues=[_item(row) for row in rows])

    async def acknowledge(self, call: Call[AcknowledgeRequest, Any]) -> RescueReply:
        """Acknowledge a rescue."""
        found = await rescue.acknowledge(
            self._desk.context,
            author(call, _reply),
            in_path(call.path["rescue"], Code.STAFF_UNCHANGED, rescue.NONE_WAITS),
            call.body.reason,
        )
        return _reply(found)


def _reply(row: RescueRow) -> RescueReply:
    return RescueReply(id=row.id, email=row.email)


def _item(row: RescueRow) -> RescueItem:
    return RescueItem(
        id=row.id,
        email=row.email,
        at=timestamp(row.at),
        expires_at=timestamp(row.expires_at),
        acknowledged_at=moment(row.acknowledged_at),
        acknowledged_by=row.acknowledged_by,
    )
