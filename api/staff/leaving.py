"""Routes of the end of an account: closed, or erased with a second person."""

from secrets import token_hex
from typing import Any, Literal

from msgspec import Struct

from api.http.errors import Transport
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Download, Nothing, Reply, StaffRoute
from api.staff.money import STATES
from api.staff.users import FINDING, ONE
from api.staff.words import Reason, author, moment
from market.base.errors import Code
from market.erasure.closing import Closed
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.finding.users import find
from market.staff.leaving import closing, erasing
from market.staff.money.approvals import Outcome


class LeaveRequest(Struct):
    """The reason, and whether the user has given up the money that is left."""

    reason: Reason
    waived: bool = False


class ClosedReply(Reply, kw_only=True):
    """A closing: done, or waiting for a second person until `expires_at`.

    `id` is the request that waits, or the user. A login before `erased_after` opens a closed
    account again.
    """

    state: Literal["done", "waits"]
    id: str
    user_id: str
    erased_after: Timestamp | None
    expires_at: Timestamp | None


class ErasureReply(Reply, kw_only=True):
    """An erasure: done, or waiting for a second person until `expires_at`.

    `id` is the request that waits, or the user.
    """

    state: Literal["done", "done_before", "waits"]
    id: str
    user_id: str
    expires_at: Timestamp | None


class StaffLeavingRoutes:
    """The routes that export, close and erase an account."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._tools = desk.tools
        self._exports = desk.terms.exports
        self._limits = desk.terms.limits
        self._needs_second = desk.terms.erase_needs_second

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        errors = (*FINDING, Code.ACCOUNT_NOT_EMPTY, Code.ACCOUNT_CLOSED)
        example = {"reason": "asked by letter of 3 May", "waived": False}
        return [
            StaffRoute(
                "GET",
                f"{ONE}/export",
                "Download all data of a user; the log records it",
                self.export,
                Reply,
                action=Action.USER_EXPORT,
                errors=(*FINDING, Code.ACCOUNT_CLOSED, Code.TOO_BUSY),
                unavailable=(Transport.FILES_FULL,),
                has_file=True,
            ),
            StaffRoute(
                "POST",
                f"{ONE}/close",
                "Close an account, or ask a second person; a login within 14 days opens it again",
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

    async def export(self, call: Call[Nothing, Any]) -> Reply:
        """Make the export of a user, and send it."""
        by = author(call)
        user = await find(self._context, by, call.path["user"])

        async def permit() -> None:
            await closing.export(self._context, by, user.id)

        content = await self._exports.open_after(permit, user.id)
        # Made again for each request: a range of one must not continue another one.
        etag = f"{user.id}-{token_hex(8)}"
        return Download(name=f"export-{user.id}.zip", etag=etag, content=content)

    async def close(self, call: Call[LeaveRequest, Any]) -> ClosedReply:
        """Close an account; if one person waives its money, the sessions are ended first."""
        name, body, by = call.path["user"], call.body, author(call, _closed)
        if body.waived:
            name = await closing.end_sessions(self._context, self._limits, by, name, body.reason)
        closed = await closing.close(
            self._context,
            self._tools.letters,
            self._limits,
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
            limits=self._limits,
            why=call.body.reason,
        )
        return _erased(outcome)


def _closed(closed: Closed | Outcome) -> ClosedReply:
    if isinstance(closed, Outcome):
        return ClosedReply(
            state="waits",
            id=closed.id,
            user_id=closed.user_id,
            erased_after=None,
            expires_at=moment(closed.expires_at),
        )
    return ClosedReply(
        state="done",
        id=closed.user_id,
        user_id=closed.user_id,
        erased_after=timestamp(closed.due_at),
        expires_at=None,
    )


def _erased(outcome: Outcome) -> ErasureReply:
    return ErasureReply(
        state=STATES[outcome.state],
        id=outcome.id,
        user_id=outcome.user_id,
        expires_at=moment(outcome.expires_at),
    )
