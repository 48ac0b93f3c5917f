"""Acts of the staff on the public side of the service: invitations, and published texts."""

import hashlib
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.site.gate import ALPHABET, CODE_CHARACTERS, CONSENT_KINDS, code_hash
from market.staff.base.acts import (
    Act,
    Changes,
    act,
    checked_text,
    permit,
    reason,
    require_name,
)
from market.staff.base.roles import Action, Author
from storage.engines.store import Transaction
from storage.site import invitations, status, texts
from storage.site.invitations import InvitationRow
from storage.site.status import NoticeRow
from storage.site.texts import TextRow
from storage.site.writes import (
    end_notice,
    insert_invitation,
    insert_notice,
    insert_text,
    withdraw_invitation,
)

DAY_SECONDS = 86_400
USES_MAX = 10_000
DAYS_MAX = 365
LISTED_MAX = 100
TEXT_MAX_CHARACTERS = 200_000
LOCALE = re.compile("[a-z]{2}(-[A-Z]{2})?")
# The codes of ISO 639-1.
LANGUAGES = frozenset(
    re.findall(
        "..",
        "aaabaeafakamanarasavayazbabebgbibmbnbobrbscacechcocrcscucvcydadedvdzeeeleneoeseteufafffifj"
        "fofrfygagdglgngugvhahehihohrhthuhyhziaidieigiiikioisitiujajvkakgkikjkkklkmknkokrkskukvkwky"
        "lalblglilnloltlulvmgmhmimkmlmnmrmsmtmynanbndnengnlnnnonrnvnyocojomorospapiplpsptqurmrnroru"
        "rwsascsdsesgsiskslsmsnsosqsrssstsusvswtatetgthtitktltntotrtstttwtyugukuruzvevivowawoxhyiyo"
        "zazhzu",
    )
)
# Users read a changed text before it is valid. The first text replaces none, and the imprint needs
# no consent.
NOTICE_DAYS = 14
YEARS_MAX_DAYS = 3_650
_Read = TypeVar("_Read")
INVITATION, TEXT, NOTICE = "invitation", "site text", "notice"
TITLE_MAX_CHARACTERS = 120
BODY_MAX_CHARACTERS = 2_000
SEVERITIES = ("info", "warning", "outage")


class TextKind(StrEnum):
    """Kinds of published texts."""

    TERMS = "terms"
    PRIVACY = "privacy"
    IMPRINT = "imprint"


class Invited(Struct, frozen=True):
    """A new invitation; its code is shown once."""

    code: str
    row: InvitationRow


class Publication(Struct, frozen=True):
    """A text to publish.

    Args:
        kind: the kind of text.
        locale: its language, such as "en".
        body: Markdown.
        valid_from: UTC seconds.
        version: the version that this text translates; None for a new version.
    """

    kind: TextKind
    locale: str
    body: str
    valid_from: int
    version: int | None = None


async def invite(context: Context, author: Author, *, uses: int, days: int, why: str) -> Invited:
    """Make a code that opens accounts.

    Raises:
        MarketError: `not_permitted`, `invalid_field`.
    """
    for field, value, most in (("uses", uses, USES_MAX), ("days", days, DAYS_MAX)):
        if not 1 <= value <= most:
            raise MarketError(Code.INVALID_FIELD, f"An invitation has 1 to {most} {field}.")
    plain = "".join(secrets.choice(ALPHABET) for _ in range(CODE_CHARACTERS))
    now = context.now()
    row = InvitationRow(context.identifiers.new(), uses, uses, now, now + days * DAY_SECONDS)

    code = "-".join(plain[at : at + 4] for at in range(0, CODE_CHARACTERS, 4))

    async def change(tx: Transaction) -> tuple[Invited, Changes]:
        await insert_invitation(tx, row, code_hash=code_hash(plain))
        return Invited(code, row), {"uses_left": (None, uses), "expires_at": (None, row.expires_at)}

    new = Act(author, Action.SITE_INVITE, INVITATION, row.id, text=reason(why))
    return await context.store.write(act, context, new, change)


async def withdraw(context: Context, author: Author, invitation_id: str, why: str) -> str:
    """Take the remaining uses from an invitation, and return its identifier.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `invitation_not_found`.
    """
    require_name(invitation_id)

    async def change(tx: Transaction) -> tuple[str, Changes]:
        left = await withdraw_invitation(tx, invitation_id)
        if left is None:
            raise MarketError(Code.INVITATION_NOT_FOUND)
        return invitation_id, {"uses_left": (left, 0)}

    new = Act(author, Action.SITE_INVITE, INVITATION, invitation_id, text=reason(why))
    return await context.store.write(act, context, new, change)


async def invited(context: Context, author: Author) -> list[InvitationRow]:
    """Return the newest invitations.

    Raises:
        MarketError: `not_permitted`.
    """
    return await _read(context, author, partial(invitations.newest, limit=LISTED_MAX))


async def publish(context: Context, author: Author, new: Publication, why: str) -> TextRow:
    """Publish a new version of a text, or a version in another language.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `text_not_found`.
    """
    body = _checked(new)
    digest = hashlib.sha256(body.encode()).hexdigest()

    async def change(tx: Transaction) -> tuple[TextRow, Changes]:
        now = context.now()
        version, valid_from = await _place(tx, new, now)
        row = TextRow(new.kind, version, new.locale, digest, now, valid_from)
        await insert_text(tx, row, body)
        return row, {
            "version": (None, version),
            "locale": (None, new.locale),
            "hash": (None, digest),
            "valid_from": (None, valid_from),
        }

    acted = Act(author, Action.SITE_PUBLISH, TEXT, new.kind, text=reason(why))
    return await context.store.write(act, context, acted, change)


async def names_number(context: Context, rows: Iterable[TextRow], number: int) -> bool:
    """Return whether one of some texts, such as the terms, has a number as a word of its own."""
    word = re.compile(rf"(?<!\d){number}(?!\d)")
    for row in rows:
        body = await context.store.read(texts.body, row.kind, row.version, row.locale)
        if body is not None and word.search(body):
            return True
    return False


async def published(context: Context, author: Author) -> list[TextRow]:
    """Return the valid and the newest version of each text, in each language.

    Raises:
        MarketError: `not_permitted`.
    """

    async def look(tx: Transaction) -> list[TextRow]:
        rows: list[TextRow] = []
        for kind in TextKind:
            valid = await texts.valid(tx, kind, context.now())
            newest = await texts.newest(tx, kind)
            if valid is not None and (not newest or newest[0].version != valid.version):
                rows += await texts.languages(tx, kind, valid.version)
            rows += newest
        return rows

    return await _read(context, author, look)


async def text(
    context: Context, author: Author, kind: TextKind, version: int, locale: str
) -> tuple[TextRow, str]:
    """Return a version of a text in one language, with its body, also before it is valid.

    Raises:
        MarketError: `not_permitted`, `text_not_found`.
    """

    async def look(tx: Transaction) -> tuple[TextRow, str]:
        rows = await texts.languages(tx, kind, version)
        body = await texts.body(tx, kind, version, locale)
        row = next((each for each in rows if each.locale == locale), None)
        if row is None or body is None:
            raise MarketError(Code.TEXT_NOT_FOUND)
        return row, body

    return await _read(context, author, look)


async def notify(
    context: Context, author: Author, *, severity: str, title: str, body: str, why: str
) -> NoticeRow:
    """Show a notice on the page of the status.

    Raises:
        MarketError: `not_permitted`, `invalid_field`.
    """
    if severity not in SEVERITIES:
        raise MarketError(Code.INVALID_FIELD, f"The severities are: {', '.join(SEVERITIES)}.")
    title = checked_text(title, "title", TITLE_MAX_CHARACTERS)
    body = checked_text(body, "text", BODY_MAX_CHARACTERS) if body else ""
    row = NoticeRow(context.identifiers.new(), severity, title, body, context.now(), None)

    async def change(tx: Transaction) -> tuple[NoticeRow, Changes]:
        await insert_notice(tx, row)
        return row, {"severity": (None, severity)}

    new = Act(author, Action.STATUS_NOTICE, NOTICE, row.id, text=reason(why))
    return await context.store.write(act, context, new, change)


async def finish(context: Context, author: Author, notice_id: str, why: str) -> str:
    """End a notice, and return its identifier.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `notice_not_found`.
    """
    require_name(notice_id)

    async def change(tx: Transaction) -> tuple[str, Changes]:
        if not await end_notice(tx, notice_id, context.now()):
            raise MarketError(Code.NOTICE_NOT_FOUND)
        return notice_id, {"state": ("shown", "ended")}

    new = Act(author, Action.STATUS_NOTICE, NOTICE, notice_id, text=reason(why))
    return await context.store.write(act, context, new, change)


async def notices(context: Context, author: Author) -> list[NoticeRow]:
    """Return the newest notices.

    Raises:
        MarketError: `not_permitted`.
    """
    return await _read(context, author, partial(status.notices, limit=LISTED_MAX))


async def _read(
    context: Context, author: Author, look: Callable[[Transaction], Coroutine[Any, Any, _Read]]
) -> _Read:
    """Return a part of the public side to a member.

    Raises:
        MarketError: `not_permitted`, or an error of `look`.
    """

    async def permitted(tx: Transaction) -> _Read:
        await permit(tx, author, Action.SITE_CHECK)
        return await look(tx)

    return await context.store.read(permitted)


def _checked(new: Publication) -> str:
    """Return the body of a text, with Unix line ends.

    Raises:
        MarketError: `invalid_field`.
    """
    body = new.body.replace("\r\n", "\n").strip() + "\n"
    if not 2 <= len(body) <= TEXT_MAX_CHARACTERS:
        raise MarketError(Code.INVALID_FIELD, f"A text has 1 to {TEXT_MAX_CHARACTERS} characters.")
    if not all(each.isprintable() or each in "\n\t" for each in body):
        raise MarketError(Code.INVALID_FIELD, "The text has characters that cannot be shown.")
    if not LOCALE.fullmatch(new.locale) or new.locale[:2] not in LANGUAGES:
        raise MarketError(
            Code.INVALID_FIELD, "A language is a code of ISO 639-1, written as en or pt-BR."
        )
    return body


async def _place(tx: Transaction, new: Publication, now: int) -> tuple[int, int]:
    """Return the version of a text and the beginning of its validity.

    Raises:
        MarketError: `invalid_field`, `text_not_found`.
    """
    newest = await texts.newest(tx, new.kind)
    if new.version is not None:
        rows = await texts.languages(tx, new.kind, new.version)
        if not rows:
            raise MarketError(Code.TEXT_NOT_FOUND)
        if new.locale in {row.locale for row in rows}:
            raise MarketError(
                Code.INVALID_FIELD,
                f"Version {new.version} has a text in {new.locale}, and no text is ever changed; "
                "publish a new version.",
            )
        return new.version, rows[0].valid_from
    # A version is valid from its date on, also if an earlier version has a later date: a wrong year
    # can be corrected.
    least = now
    if newest and new.kind in CONSENT_KINDS:
        least = now + NOTICE_DAYS * DAY_SECONDS
    # A date is its first second: one that has begun counts as now.
    valid_from = new.valid_from
    if not newest or new.kind not in CONSENT_KINDS:
        valid_from = max(valid_from, least)
    if not least <= valid_from <= now + YEARS_MAX_DAYS * DAY_SECONDS:
        first_day = datetime.fromtimestamp(-(-least // DAY_SECONDS) * DAY_SECONDS, UTC).date()
        raise MarketError(
            Code.INVALID_FIELD,
            f"A new version of the {new.kind} is valid {NOTICE_DAYS} days after its publication at "
            f"the earliest, and {YEARS_MAX_DAYS} days at the latest: valid_from is {first_day} or "
            "later.",
        )
    return (newest[0].version + 1 if newest else 1), valid_from
