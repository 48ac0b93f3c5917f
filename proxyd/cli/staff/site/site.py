"""Commands about the public side of the service: invitations, published texts, and notices."""

from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from config.settings import Settings
from market.base.errors import Code, MarketError
from market.staff.site import site
from market.staff.site.site import TEXT_MAX_CHARACTERS, Publication, TextKind
from proxyd.cli.staff.base.desk import FAILED, Command, Desk, Ended, Report, Row, when
from proxyd.ops.access_log.access_place import access_folder
from proxyd.wiring.slices import app_url
from storage.site.texts import TextRow

UTF8_MAX_BYTES = 4  # of a character


async def _invite(desk: Desk, options: Namespace) -> Report:
    made = await site.invite(
        desk.context, desk.author, uses=options.uses, days=options.days, why=options.reason
    )
    row, base = made.row, app_url(desk.settings, desk.settings.api.port)
    return {
        "invitation": {"id": row.id, "uses": row.uses, "expires": when(row.expires_at)},
        "code": made.code,
        "link": f"{base}/register?invitation={made.code}",
    }


async def _invitations(desk: Desk, _options: Namespace) -> Report:
    return {
        "invitations": [
            {
                "id": row.id,
                "uses": row.uses,
                "uses_left": row.uses_left,
                "created": when(row.created_at),
                "expires": when(row.expires_at),
            }
            for row in await site.invited(desk.context, desk.author)
        ]
    }


async def _withdraw(desk: Desk, options: Namespace) -> Report:
    await site.withdraw(desk.context, desk.author, options.invitation, options.reason)
    return {"withdrawn": {"id": options.invitation}}


async def _publish(desk: Desk, options: Namespace) -> Report:
    day = options.valid_from
    publication = Publication(
        TextKind(options.kind),
        options.locale,
        _read(options.file),
        desk.context.now() if day is None else _first_second(day),
        options.version,
    )
    row = await site.publish(desk.context, desk.author, publication, options.reason)
    return {"published": _text(row)}


async def _check(desk: Desk, _options: Namespace) -> Report | Ended:
    rows = await site.published(desk.context, desk.author)
    problems = [
        *_problems(desk.settings, rows, desk.context.now()),
        *await _unstated(desk, rows),
    ]
    settings = desk.settings.site
    report: Report = {
        "site": {
            "name": settings.name,
            "support": settings.support or None,
            "registration": settings.registration,
        },
        "texts": [_text(row) for row in rows],
        "problems": problems,
    }
    return Ended(report, FAILED) if problems else report


def _text(row: TextRow) -> Row:
    return {
        "kind": row.kind,
        "version": row.version,
        "locale": row.locale,
        "valid_from": when(row.valid_from),
        "published": when(row.published_at),
        "hash": row.hash,
    }


def _problems(settings: Settings, rows: list[TextRow], now: int) -> Iterator[str]:
    """Yield a line for each part of the public side that is missing."""
    if not settings.site.support:
        yield "site.support is not set, so users do not know where to ask"
    if not settings.mail.host:
        yield "mail.host is not set, so no e-mail reaches a user"
    for kind in TextKind:
        if not any(row.kind == kind and row.valid_from <= now for row in rows):
            name = "privacy policy" if kind is TextKind.PRIVACY else kind
            command = f"proxyd site publish {kind} --file FILE --reason TEXT"
            yield f"no version of the {name} is valid: {command}"


async def _unstated(desk: Desk, rows: list[TextRow]) -> list[str]:
    """Return a line if no text names the retention of the access records that are kept."""
    if access_folder(desk.settings) is None:
        return []
    days, now = desk.settings.access_log.keep_days, desk.context.now()
    kinds = (TextKind.TERMS, TextKind.PRIVACY)
    valid = [row for row in rows if row.kind in kinds and row.valid_from <= now]
    if not valid or await site.names_number(desk.context, valid, days):
        return []
    problem = (
        f"access records are kept for {days} days (access_log.keep_days), and neither the terms "
        "nor the privacy policy name this number"
    )
    return [problem]


def _read(path: Path) -> str:
    """Return the text in a file.

    Raises:
        MarketError: `invalid_field`.
    """
    most = TEXT_MAX_CHARACTERS * UTF8_MAX_BYTES
    try:
        with path.open("rb") as file:
            body = file.read(most + 1)
        if len(body) > most:
            raise MarketError(Code.INVALID_FIELD, f"{path} has more than {most} bytes.")
        return body.decode()
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise MarketError(Code.INVALID_FIELD, f"{path} cannot be read: {words}.") from None


def _first_second(day: str) -> int:
    """Return the first second of a day, in UTC.

    Raises:
        MarketError: `invalid_field`.
    """
    try:
        return int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise MarketError(
            Code.INVALID_FIELD, f"{day!r} is not a day, such as 2027-01-31."
        ) from None


async def _notice(desk: Desk, options: Namespace) -> Report:
    row = await site.notify(
        desk.context,
        desk.author,
        severity=options.severity,
        title=options.title,
        body=options.text or "",
        why=options.reason,
    )
    return {"notice": {"id": row.id, "severity": row.severity, "title": row.title}}


async def _end_notice(desk: Desk, options: Namespace) -> Report:
    await site.finish(desk.context, desk.author, options.notice, options.reason)
    return {"ended": {"id": options.notice}}


async def _notices(desk: Desk, _options: Namespace) -> Report:
    return {
        "notices": [
            {
                "id": row.id,
                "severity": row.severity,
                "title": row.title,
                "began": when(row.began_at),
                "ended": when(row.ended_at),
            }
            for row in await site.notices(desk.context, desk.author)
        ]
    }


COMMANDS: dict[str, Command] = {
    "site invite": _invite,
    "site invitations": _invitations,
    "site withdraw": _withdraw,
    "site publish": _publish,
    "site check": _check,
    "status notice": _notice,
    "status end": _end_notice,
    "status notices": _notices,
}
