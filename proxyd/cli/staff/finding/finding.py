"""Commands that search and read: `who`, `log`, `user show`, and the notes of a user."""

from argparse import Namespace

from config.settings import Settings
from market.accounts.keys import KEYS_MAX
from market.accounts.levels import Limited, limited
from market.base.errors import Code, MarketError
from market.base.states import ClosureStatus
from market.money.money import GB, as_decimal
from market.staff.finding import history, search, tables, users
from market.staff.finding.search import HITS_MAX, Found
from market.staff.finding.users import COUNTED_MAX, UserPage
from proxyd.cli.staff.base.desk import (
    FAILED,
    Command,
    Desk,
    Ended,
    Report,
    Row,
    act_row,
    table,
    when,
)
from proxyd.cli.staff.money.limits import limits_of, personal_row
from proxyd.wiring.new_accounts import new_accounts
from storage.accounts.closures import ClosureRow
from storage.engines.paging import NEWEST_NUMBER


async def _log(desk: Desk, options: Namespace) -> Report:
    rows = await history.read(
        desk.context,
        desk.author,
        user=options.user,
        staff=options.staff,
        action=options.action,
        before=options.before or NEWEST_NUMBER,
        limit=options.limit,
    )
    return {"log": [act_row(row) for row in rows]}


async def _who(desk: Desk, options: Namespace) -> Report | Ended:
    if (options.text is None) == (options.exit_ip is None):
        raise MarketError(Code.INVALID_FIELD, "Give a TEXT, or --exit-ip with --at.")
    if options.exit_ip is not None:
        from proxyd.cli.staff.abuse import abuse  # other forms do not wait for it

        return await abuse.who_exit(desk, options)
    found = await search.who(desk.context, desk.author, options.text)
    report: Report = {"found": [_found(each) for each in found]}
    return report if found else Ended(report, FAILED)


async def _show(desk: Desk, options: Namespace) -> Report:
    page = await users.view(desk.context, desk.author, options.user)
    policy, now = new_accounts(desk.settings), desk.context.now()
    limits = await desk.context.store.read(limited, page.user.id, policy, now)
    report = _user_page(page, desk.settings)
    report["user"]["identity_checked"] = page.is_verified
    if limits is not None:
        report["limited"] = _limits_of_new(limits)
    if page.closure is None:
        return report
    return {"user": report.pop("user"), "closure": _closure(page.closure), **report}


async def _reveal(desk: Desk, options: Namespace) -> Report:
    revealed = await users.reveal(desk.context, desk.author, options.user, options.reason)
    return {"revealed": {"user": revealed.user_id, "until": when(revealed.until)}}


async def _note(desk: Desk, options: Namespace) -> Report:
    user_id = await users.note(desk.context, desk.author, options.user, options.text)
    return {"noted": {"user": user_id}}


def _found(found: Found) -> Row:
    return {
        "by": found.by,
        "hits": [
            {
                "kind": hit.kind,
                "id": hit.id,
                "user": hit.user_id,
                "username": hit.username,
                "email": hit.email,
                "matched": hit.matched,
            }
            for hit in found.hits
        ],
        "more_than": HITS_MAX if found.has_more else None,
    }


def _closure(row: ClosureRow) -> Row:
    return {
        "state": row.state,
        "closed": when(row.closed_at),
        "erased_after": when(row.due_at) if row.state == ClosureStatus.CLOSED else None,
        "erased": when(row.erased_at),
    }


def _limits_of_new(limits: Limited) -> Row:
    return {
        "reason": "the account is new",
        "until": when(limits.until),
        "connections": limits.connections,
        "ports": ", ".join(str(port) for port in sorted(limits.ports)),
        "gb_per_day": limits.bytes_per_day / GB,
        "lacks_email": limits.lacks_email,
    }


def _user_page(page: UserPage, settings: Settings) -> Report:
    user, limits = page.user, limits_of(page.personal, settings)

    tabled = {name: table(getattr(page, name), columns) for name, columns in tables.TABLES.items()}
    return {
        "user": {
            "id": user.id,
            "username": user.username,
            "email": user.email,
            "email_confirmed": when(user.email_verified_at),
            "created": when(user.created_at),
        },
        "suspended": tabled.pop("suspended"),
        "balances": [
            {"currency": currency, "available": as_decimal(available), "held": as_decimal(held)}
            for currency, available, held in tables.balances(page)
        ],
        "limits": [
            {"of": of, "open": _count(number), "limit": limit or None}
            for of, number, limit in (
                ("sessions", page.open.sessions, limits["sessions"]),
                ("jobs", page.open.jobs, limits["jobs"]),
                ("devices", page.open.devices, limits["devices"]),
                ("keys", page.open.keys, KEYS_MAX),
            )
        ],
        **({} if page.personal is None else {"personal": personal_row(page.personal)}),
        **tabled,
        "log": [act_row(row) for row in page.log],
    }


def _count(number: int) -> int | str:
    return f"{COUNTED_MAX}+" if number > COUNTED_MAX else number


COMMANDS: dict[str, Command] = {
    "log": _log,
    "who": _who,
    "user show": _show,
    "user note": _note,
    "user reveal": _reveal,
}
