"""Routes that stop and resume users, sessions, keys, devices and jobs, on all nodes."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api.routing.codec import money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.money import OutcomeReply, outcome_reply
from api.staff.users import CHANGING, ONE
from api.staff.words import PREFIX, Reason, ReasonRequest, author, moment
from market.accounts.suspensions import Part
from market.bandwidth import halts
from market.base.errors import Code
from market.base.states import SessionStatus
from market.staff.base.acts import REASON_MAX_CHARACTERS
from market.staff.base.roles import Action
from market.staff.cases import clawing
from market.staff.desk import StaffDesk
from market.staff.stopping import stopping, suspending
from market.staff.stopping.suspending import ALL, Ordered

SESSION = f"{PREFIX}/sessions/{{session}}"
DEVICE = f"{PREFIX}/devices/{{device}}"
ALONE = ("",)  # the daemon that serves a database alone has no name among nodes


class SuspendRequest(Struct):
    """Parts to suspend; `shown` is the reason for the user, `until` null for no end."""

    parts: Annotated[list[Part], Meta(min_length=1, max_length=len(Part))]
    shown: Annotated[str, Meta(max_length=REASON_MAX_CHARACTERS)]
    reason: Reason
    until: Annotated[datetime, Meta(tz=True)] | None = None


class ResumeRequest(Struct):
    """Parts to resume: all by default."""

    reason: Reason
    parts: Annotated[list[Part], Meta(min_length=1, max_length=len(Part))] | None = None


class ClawBackRequest(Struct):
    """The reason, which is kept with the device; `with_owner` for all exits of the owner."""

    reason: Reason
    with_owner: bool = False


class ClawedBackReply(Reply, kw_only=True):
    """The barred exits, and their reversed earnings: the owner loses `usd`.

    The buyers get `refunded_usd`. `waiting` are the requests that a second person decides, one for
    an exit.
    """

    devices: list[str]
    earnings: int
    usd: float
    refunded_usd: float
    waiting: list[OutcomeReply]


class OrderReply(Reply, kw_only=True):
    """Order to the nodes, and their answers within a second.

    `silent` are the nodes that have not answered: each acts when it can read the database.
    """

    user_id: str
    session_id: str | None
    parts: list[str]
    until: Timestamp | None
    nodes: int
    connections: int
    seconds: float
    silent: list[str]


class RevokedReply(Reply, kw_only=True):
    """The revoked key, by the name that its owner gave it."""

    name: str


class SessionReply(Reply, kw_only=True):
    """A session; `state` is null for one that is over.

    `suspended`: all sessions of its user are. `leases` is the number of nodes with a lease on it.
    """

    id: str
    user_id: str
    status: SessionStatus
    state: Literal["open", "halted", "suspended"] | None
    halted_at: Timestamp | None
    used_bytes: int
    quota_bytes: int
    created_at: Timestamp
    expires_at: Timestamp
    leases: int


Handler = Callable[[Call[ReasonRequest, Any]], Awaitable[OrderReply]]


class StopRoutes:
    """The routes that stop and resume."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._letters = desk.letters
        self._outcomes = desk.terms.outcomes
        self._limits = desk.terms.limits

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        example = {"reason": "ticket A-17"}
        return [
            StaffRoute(
                "POST",
                f"{ONE}/suspend",
                "Suspend parts of a user on all nodes",
                self.suspend,
                OrderReply,
                action=Action.USER_SUSPEND,
                body=SuspendRequest,
                errors=CHANGING,
                example={
                    "parts": ["logins", "sessions"],
                    "until": "2030-01-31T12:00:00Z",
                    "shown": "Your sessions sent mail to strangers.",
                    **example,
                },
            ),
            StaffRoute(
                "POST",
                f"{ONE}/resume",
                "End the suspension of parts of a user",
                self.resume,
                OrderReply,
                action=Action.USER_RESUME,
                body=ResumeRequest,
                errors=(*CHANGING, Code.NOT_SUSPENDED),
                example=example,
            ),
            StaffRoute(
                "GET",
                SESSION,
                "One session; the log records the view",
                self.session,
                SessionReply,
                action=Action.SESSION_VIEW,
                errors=(Code.SESSION_NOT_FOUND,),
            ),
            StaffRoute(
                "POST",
                f"{DEVICE}/claw-back",
                "Bar an exit that has cheated, and return its unpaid earnings to the buyers",
                self.claw_back,
                ClawedBackReply,
                action=Action.DEVICE_CLAW_BACK,
                body=ClawBackRequest,
                errors=(Code.TOKEN_NOT_FOUND,),
                example=example,
            ),
            *(
                StaffRoute(
                    "POST",
                    path,
                    summary,
                    handler,
                    OrderReply,
                    action=action,
                    body=ReasonRequest,
                    errors=errors,
                    example=example,
                )
                for path, summary, handler, action, errors in self._things()
            ),
            StaffRoute(
                "POST",
                f"{PREFIX}/users/keys/{{key}}/revoke",
                "Revoke an API key of a user",
                self.revoke,
                RevokedReply,
                action=Action.KEY_REVOKE,
                body=ReasonRequest,
                errors=(Code.KEY_NOT_FOUND, Code.AMBIGUOUS),
                example=example,
            ),
        ]

    def _things(self) -> list[tuple[str, str, Handler, Action, tuple[Code, ...]]]:
        """Return the acts about one session, device or job."""
        over = (Code.SESSION_NOT_FOUND,)
        return [
            (
                f"{SESSION}/halt",
                "Cut a session on all nodes until it goes on",
                self.halt,
                Action.SESSION_HALT,
                over,
            ),
            (
                f"{SESSION}/go",
                "Let a halted session go on",
                self.let_go,
                Action.SESSION_GO,
                (*over, Code.SESSION_NOT_HALTED),
            ),
            (
                f"{SESSION}/end",
                "Cut a session, and settle it",
                self.end,
                Action.SESSION_END,
                over,
            ),
            (
                f"{DEVICE}/bar",
                "Bar a device from being an exit; its earnings stay",
                self.bar,
                Action.DEVICE_BAR,
                (Code.TOKEN_NOT_FOUND,),
            ),
            (
                f"{DEVICE}/pardon",
                "Let a barred device be an exit again",
                self.pardon,
                Action.DEVICE_PARDON,
                (Code.TOKEN_NOT_FOUND,),
            ),
            (
                f"{PREFIX}/jobs/{{job}}/cancel",
                "Cancel a job, as its buyer does",
                self.cancel,
                Action.JOB_CANCEL,
                (Code.JOB_NOT_FOUND, Code.JOB_OVER),
            ),
        ]

    async def session(self, call: Call[Nothing, Any]) -> SessionReply:
        """Return one session."""
        by, session = author(call), call.path["session"]
        shown = await stopping.show_session(self._context, by, session)
        row = shown.row
        return SessionReply(
            id=row.id,
            user_id=row.user_id,
            status=SessionStatus(row.status),
            state=shown.state,
            halted_at=moment(shown.halted_at),
            used_bytes=row.bytes_used,
            quota_bytes=row.quota_bytes,
            created_at=timestamp(row.created_at),
            expires_at=timestamp(row.expires_at),
            leases=shown.leases,
        )

    async def suspend(self, call: Call[SuspendRequest, Any]) -> OrderReply:
        """Suspend parts of a user."""
        body = call.body
        ordered = await suspending.suspend(
            self._context,
            self._letters,
            author(call),
            call.path["user"],
            parts=body.parts,
            ends_at=None if body.until is None else int(body.until.timestamp()),
            shown=body.shown,
            why=body.reason,
        )
        return await self._answer(ordered)

    async def resume(self, call: Call[ResumeRequest, Any]) -> OrderReply:
        """Resume parts of a user."""
        body = call.body
        ordered = await suspending.resume(
            self._context,
            self._letters,
            author(call),
            call.path["user"],
            parts=ALL if body.parts is None else body.parts,
            why=body.reason,
        )
        return await self._answer(ordered)

    async def halt(self, call: Call[ReasonRequest, Any]) -> OrderReply:
        """Halt a session."""
        return await self._answer(await stopping.halt_session(*self._session(call)))

    async def let_go(self, call: Call[ReasonRequest, Any]) -> OrderReply:
        """Let a halted session go on."""
        return await self._answer(await stopping.let_session_go(*self._session(call)))

    async def end(self, call: Call[ReasonRequest, Any]) -> OrderReply:
        """End a session: the nodes report a last time, then it is settled."""
        ordered = await stopping.begin_end(*self._session(call))
        reply = await self._answer(ordered)
        await stopping.finish_end(self._context, ordered.session_id or "")
        return reply

    async def bar(self, call: Call[ReasonRequest, Any]) -> OrderReply:
        """Bar a device from being an exit."""
        device, reason = call.path["device"], call.body.reason
        ordered = await stopping.bar_device(self._context, author(call), device, reason)
        return await self._answer(ordered)

    async def claw_back(self, call: Call[ClawBackRequest, Any]) -> ClawedBackReply:
        """Bar an exit, and return its earnings to the buyers."""
        body, device = call.body, call.path["device"]
        done = await clawing.claw_back(
            self._context,
            author(call),
            self._limits,
            device,
            body.reason,
            with_owner=body.with_owner,
        )
        return ClawedBackReply(
            devices=list(done.devices),
            earnings=done.earnings,
            usd=money(done.amount),
            refunded_usd=money(done.refunded),
            waiting=[outcome_reply(each) for each in done.waiting],
        )

    async def pardon(self, call: Call[ReasonRequest, Any]) -> OrderReply:
        """Let a barred device be an exit again."""
        device, reason = call.path["device"], call.body.reason
        ordered = await stopping.pardon_device(self._context, author(call), device, reason)
        return await self._answer(ordered)

    async def cancel(self, call: Call[ReasonRequest, Any]) -> OrderReply:
        """Cancel a job."""
        job, reason = call.path["job"], call.body.reason
        ordered = await stopping.cancel_job(
            self._context, self._outcomes, author(call), job, reason
        )
        return await self._answer(ordered)

    async def revoke(self, call: Call[ReasonRequest, Any]) -> RevokedReply:
        """Revoke a key."""
        key, reason = call.path["key"], call.body.reason
        name = await stopping.revoke_key(self._context, self._letters, author(call), key, reason)
        return RevokedReply(name=name)

    def _session(self, call: Call[ReasonRequest, Any]) -> tuple[Any, ...]:
        return self._context, author(call), call.path["session"], call.body.reason

    async def _answer(self, ordered: Ordered) -> OrderReply:
        names = ordered.nodes or ALONE
        answer = await halts.answered(self._context, ordered.number, names)
        return OrderReply(
            user_id=ordered.user_id,
            session_id=ordered.session_id,
            parts=[str(each) for each in ordered.parts],
            until=moment(ordered.ends_at),
            nodes=answer.nodes,
            connections=answer.connections,
            seconds=answer.seconds,
            silent=[each or "the daemon" for each in answer.silent],
        )
