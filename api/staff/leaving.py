"""Routes of the end of an account: closed, or erased with a second person."""

from typing import Any, Literal

from msgspec import Struct

from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Reply, StaffRoute
from api.staff.money import STATES
from api.staff.users import FINDING, ONE
from api.staff.words import Reason, author, moment
from market.base.errors import Code
from market.erasure.closing import Closed
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.money import erasing
from market.staff.money.approvals import Outcome
from market.staff.stopping import closing


class LeaveRequest(Struct):
    """The reason, and whether the user has given up the money that is left."""

    reason: Reason
    waived: bool = False


class ClosedReply(Reply, kw_only=True):
    """A closed account; a login before `erased_after` opens it again."""

    user_id: str
    erased_after: Timestamp


class ErasureReply(Reply, kw_only=True):
    """An erasure: done, or waiting for a second person until `expires_at`.

    `id` is the request that waits, or the user.
    """

    state: Literal["done", "done_before", "waits"]
    id: str
    user_id: str
    expires_at: Timestamp | None


class StaffLeavingRoutes:
    """The routes that close and erase an account. Its export is made on the machine."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._tools = desk.tools
        self._needs_second = desk.terms.erase_needs_second

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        errors = (*FINDING, Code.ACCOUNT_NOT_EMPTY, Code.ACCOUNT_CLOSED)
        example = {"reason": "asked by letter of 3 May", "waived": False}
        return [
            StaffRoute(
                "POST",
                f"{ONE}/close",
                "Close an account; a login within 14 days opens it again",
                self.close,
                ClosedReply,
                action=Action.USER_CLOSE,
                body=LeaveRequest,
                idempotent=True,
                errors=errors,
                example=example,
            ),
            StaffRoute(
                "POST",
                f"{ONE}/erase",
                "Erase an account for ever, or ask a second person to do it",
                self.erase,
                ErasureReply,
                action=Action.USER_ERASE,
                body=LeaveRequest,
                idempotent=True,
                errors=errors,
                example=example,
            ),
        ]

    async def close(self, call: Call[LeaveRequest, Any]) -> ClosedReply:
        """Close an account; if its money is waived, the sessions are ended first."""
        name, body, by = call.path["user"], call.body, author(call, _closed)
        if body.waived:
            await closing.end_sessions(self._context, by, name, body.reason)
        closed = await closing.close(
            self._context,
            self._tools.letters,
            by,
            name,
            waives=body.waived,
            why=body.reason,
        )
        return _closed(closed)

    async def erase(self, call: Call[LeaveRequest, Any]) -> ErasureReply:
        """Erase an account."""
        outcome = await erasing.erase(
            self._context,
            self._tools,
            author(call, _erased),
            call.path["user"],
            waives=call.body.waived,
            needs_second=self._needs_second,
            why=call.body.reason,
        )
        return _erased(outcome)


def _closed(closed: Closed) -> ClosedReply:
    return ClosedReply(user_id=closed.user_id, erased_after=timestamp(closed.due_at))


def _erased(outcome: Outcome) -> ErasureReply:
    return ErasureReply(
        state=STATES[outcome.state],
        id=outcome.id,
        user_id=outcome.user_id,
        expires_at=moment(outcome.expires_at),
    )
