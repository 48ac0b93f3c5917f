"""Routes about the public side: published texts, notices, and invitations."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.words import PREFIX, Reason, ReasonRequest, author, moment
from market.base.errors import Code, MarketError
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.site import site
from market.staff.site.site import (
    BODY_MAX_CHARACTERS,
    DAYS_MAX,
    TEXT_MAX_CHARACTERS,
    TITLE_MAX_CHARACTERS,
    USES_MAX,
    Invited,
    Publication,
    TextKind,
)
from storage.site.invitations import InvitationRow
from storage.site.status import NoticeRow
from storage.site.texts import TextRow

SITE = f"{PREFIX}/site"
NOTICES = f"{SITE}/notices"
INVITATIONS = f"{SITE}/invitations"
TEXTS = f"{SITE}/texts"
VERSION_MAX = 999_999
_NUMBER = re.compile("[1-9][0-9]{0,5}")


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


class SiteTextRequest(Struct):
    """A text to publish, in Markdown.

    It is valid from `valid_from`, now by default; the `version` that it translates is null for a
    new version.
    """

    kind: TextKind
    locale: Annotated[str, Meta(max_length=8)]
    text: Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS)]
    reason: Reason
    valid_from: Annotated[datetime, Meta(tz=True)] | None = None
    version: Annotated[int, Meta(ge=1, le=VERSION_MAX)] | None = None


class SiteTextReply(Reply, kw_only=True):
    """A version of a text in one language, with its body."""

    head: SiteTextItem
    text: str


class PublishedReply(Reply, kw_only=True):
    """A published text."""

    head: SiteTextItem


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
    """The routes of the public side."""

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
                TEXTS,
                "Publish a version of a text, or a translation of one; it is never changed",
                self.publish,
                PublishedReply,
                action=Action.SITE_PUBLISH,
                body=SiteTextRequest,
                idempotent=True,
                errors=(Code.TEXT_NOT_FOUND,),
                example={
                    "kind": "imprint",
                    "locale": "en",
                    "text": "# Imprint\n\nExample Ltd.",
                    **why,
                },
            ),
            StaffRoute(
                "GET",
                f"{TEXTS}/{{kind}}/{{version}}/{{locale}}",
                "A version of a text in one language, also before it is valid",
                self.text,
                SiteTextReply,
                action=Action.SITE_CHECK,
                errors=(Code.TEXT_NOT_FOUND,),
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
            texts=[_text(row) for row in await site.published(self._context, by)],
            notices=[_notice(row) for row in await site.notices(self._context, by)],
            invitations=[_invitation(row) for row in await site.invited(self._context, by)],
        )

    async def publish(self, call: Call[SiteTextRequest, Any]) -> PublishedReply:
        """Publish a text."""
        body, begins = call.body, call.body.valid_from
        now = self._context.now()
        new = Publication(
            body.kind,
            body.locale,
            body.text,
            now if begins is None else int(begins.timestamp()),
            body.version,
        )
        by = author(call, _published)
        return _published(await site.publish(self._context, by, new, body.reason))

    async def text(self, call: Call[Nothing, Any]) -> SiteTextReply:
        """Return a text."""
        kind, version, locale = (call.path[each] for each in ("kind", "version", "locale"))
        if kind not in set(TextKind) or not _NUMBER.fullmatch(version):
            raise MarketError(Code.TEXT_NOT_FOUND)
        row, body = await site.text(
            self._context, author(call), TextKind(kind), int(version), locale
        )
        return SiteTextReply(head=_text(row), text=body)

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


def _text(row: TextRow) -> SiteTextItem:
    return SiteTextItem(
        row.kind,
        row.version,
        row.locale,
        row.hash,
        timestamp(row.published_at),
        timestamp(row.valid_from),
    )


def _published(row: TextRow) -> PublishedReply:
    return PublishedReply(head=_text(row))


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
