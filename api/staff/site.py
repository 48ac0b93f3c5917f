"""Routes about the public side: published texts, notices, and invitations."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.words import PREFIX, Reason, ReasonRequest, author, moment
from market.base.errors import Code
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.site import site
from market.staff.site.site import (
    BODY_MAX_CHARACTERS,
    DAYS_MAX,
    TITLE_MAX_CHARACTERS,
    USES_MAX,
    Invited,
)
from storage.site.invitations import InvitationRow
from storage.site.status import NoticeRow

SITE = f"{PREFIX}/site"
NOTICES = f"{SITE}/notices"
INVITATIONS = f"{SITE}/invitations"


class NoticeRequest(Struct):
    """A notice for the page of the status."""

    title: Annotated[str, Meta(max_length=TITLE_MAX_CHARACTERS)]
    reason: Reason
    text: Annotated[str, Meta(max_length=BODY_MAX_CHARACTERS)] = ""
    severity: Literal["info", "warning", "outage"] = "info"


class InvitationRequest(Struct):
    """A new invitation."""

    reason: Reason
    uses: Annotated[int, Meta(ge=1, le=USES_MAX)] = 1
    days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] = 30


class SiteTextItem(Struct):
    """A version of a text in one language."""

    kind: str
    version: int
    locale: str
    hash: str
    published_at: Timestamp
    valid_from: Timestamp


class SiteNoticeItem(Struct):
    """A notice."""

    id: str
    severity: str
    title: str
    text: str
    began_at: Timestamp
    ended_at: Timestamp | None


class InvitationItem(Struct):
    """An invitation, without its code."""

    id: str
    uses: int
    uses_left: int
    created_at: Timestamp
    expires_at: Timestamp


class SiteStateReply(Reply, kw_only=True):
    """The valid and the newest texts, the newest notices, and the newest invitations."""

    texts: list[SiteTextItem]
    notices: list[SiteNoticeItem]
    invitations: list[InvitationItem]


class NoticeReply(Reply, kw_only=True):
    """A new notice."""

    notice: SiteNoticeItem


class NamedReply(Reply, kw_only=True):
    """The notice or the invitation that an act has ended."""

    id: str


class InvitedReply(Reply, kw_only=True):
    """A new invitation; its code and its link are shown once."""

    invitation: InvitationItem
    code: str
    link: str


class SiteRoutes:
    """The routes of the public side; texts are published by a command."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._app_url = desk.terms.app_url

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        why = {"reason": "a new disk"}
        return [
            StaffRoute(
                "GET",
                SITE,
                "Texts, notices and invitations",
                self.show,
                SiteStateReply,
                action=Action.SITE_CHECK,
            ),
            StaffRoute(
                "POST",
                NOTICES,
                "Show a notice on the page of the status",
                self.notify,
                NoticeReply,
                action=Action.STATUS_NOTICE,
                body=NoticeRequest,
                idempotent=True,
                example={"title": "Maintenance on Sunday", **why},
            ),
            StaffRoute(
                "POST",
                f"{NOTICES}/{{notice}}/end",
                "End a notice",
                self.end,
                NamedReply,
                action=Action.STATUS_NOTICE,
                body=ReasonRequest,
                idempotent=True,
                errors=(Code.NOTICE_NOT_FOUND,),
                example=why,
            ),
            StaffRoute(
                "POST",
                INVITATIONS,
                "Make a code that opens accounts",
                self.invite,
                InvitedReply,
                action=Action.SITE_INVITE,
                body=InvitationRequest,
                idempotent=True,
                example={"uses": 5, "days": 14, **why},
            ),
            StaffRoute(
                "POST",
                f"{INVITATIONS}/{{invitation}}/withdraw",
                "Take the remaining uses from an invitation",
                self.withdraw,
                NamedReply,
                action=Action.SITE_INVITE,
                body=ReasonRequest,
                idempotent=True,
                errors=(Code.INVITATION_NOT_FOUND,),
                example=why,
            ),
        ]

    async def show(self, call: Call[Nothing, Any]) -> SiteStateReply:
        """Return texts, notices and invitations."""
        by = author(call)
        return SiteStateReply(
            texts=[
                SiteTextItem(
                    row.kind,
                    row.version,
                    row.locale,
                    row.hash,
                    timestamp(row.published_at),
                    timestamp(row.valid_from),
                )
                for row in await site.published(self._context, by)
            ],
            notices=[_notice(row) for row in await site.notices(self._context, by)],
            invitations=[_invitation(row) for row in await site.invited(self._context, by)],
        )

    async def notify(self, call: Call[NoticeRequest, Any]) -> NoticeReply:
        """Show a notice."""
        body = call.body
        row = await site.notify(
            self._context,
            author(call, _noticed),
            severity=body.severity,
            title=body.title,
            body=body.text,
            why=body.reason,
        )
        return _noticed(row)

    async def end(self, call: Call[ReasonRequest, Any]) -> NamedReply:
        """End a notice."""
        by, notice = author(call, _named), call.path["notice"]
        return _named(await site.finish(self._context, by, notice, call.body.reason))

    async def invite(self, call: Call[InvitationRequest, Any]) -> InvitedReply:
        """Make an invitation."""
        body = call.body
        made = await site.invite(
            self._context,
            author(call, self._invited),
            uses=body.uses,
            days=body.days,
            why=body.reason,
        )
        return self._invited(made)

    async def withdraw(self, call: Call[ReasonRequest, Any]) -> NamedReply:
        """Take the remaining uses from an invitation."""
        by, invitation = author(call, _named), call.path["invitation"]
        return _named(await site.withdraw(self._context, by, invitation, call.body.reason))

    def _invited(self, made: Invited) -> InvitedReply:
        return InvitedReply(
            invitation=_invitation(made.row),
            code=made.code,
            link=f"{self._app_url}/register?invitation={made.code}",
        )


def _noticed(row: NoticeRow) -> NoticeReply:
    return NoticeReply(notice=_notice(row))


def _named(name: str) -> NamedReply:
    return NamedReply(id=name)


def _notice(row: NoticeRow) -> SiteNoticeItem:
    return SiteNoticeItem(
        id=row.id,
        severity=row.severity,
        title=row.title,
        text=row.body,
        began_at=timestamp(row.began_at),
        ended_at=moment(row.ended_at),
    )


def _invitation(row: InvitationRow) -> InvitationItem:
    return InvitationItem(
        id=row.id,
        uses=row.uses,
        uses_left=row.uses_left,
        created_at=timestamp(row.created_at),
        expires_at=timestamp(row.expires_at),
    )
