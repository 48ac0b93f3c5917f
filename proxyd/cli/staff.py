"""Commands of the operator about staff and users, for people and, with `--json`, for programs.

Each command prints lists of rows: as columns, or as one JSON document with the same names.
"""

import json
import os
import pwd
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from config.settings import Settings
from market.accounts.keys import KEYS_MAX
from market.accounts.passwords import Passwords
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.events.context import Context
from market.money.money import as_decimal
from market.staff import accounts, history, search, users
from market.staff.accounts import Created, Credentials
from market.staff.factors import Factors
from market.staff.roles import Machine, Role
from market.staff.search import HITS_MAX, Found
from market.staff.users import COUNTED_MAX, UserPage
from proxyd.cli.output import moment, printable
from proxyd.loop import runner
from proxyd.ops.books import context_of, opened
from proxyd.ops.signing_key import signing_key
from storage.staff.log import NEWEST, ShownLogRow

FAILED = 1
MISUSED = 2
# Refusals of a command that was called wrongly; a repetition fails as well.
MISUSES = frozenset((Code.INVALID_FIELD, Code.AMBIGUOUS))

Row = Mapping[str, Any]
Report = dict[str, Any]


class Desk:
    """The staff's services for one command.

    Args:
        settings: the settings of the daemon.
        context: the open store.
    """

    def __init__(self, settings: Settings, context: Context) -> None:
        auth = settings.auth
        self.settings = settings
        self.context = context
        self.author = Machine(_unix_user())
        self.passwords = Passwords(
            time_cost=auth.argon2_time_cost, memory_kib=auth.argon2_memory_kib
        )

    def factors(self) -> Factors:
        """Return the second factors; a command that needs none reads no signing key."""
        return Factors(Sealing(signing_key(self.settings), b"staff factors"))


Command = Callable[[Desk, Namespace], Awaitable[Report]]


def carry_out(
    settings: Settings,
    options: Namespace,
    *,
    read_password: Callable[..., str],
    say: Callable[[str], None],
    complain: Callable[[str], None],
) -> int:
    """Run a command, and print its report. Return the exit status.

    Args:
        settings: the settings of the daemon.
        options: the command line.
        read_password: returns a new password, from standard input or the terminal.
        say: prints the report.
        complain: prints an error.

    Raises:
        MarketError: the command failed.
        StoreError: the database cannot be used.
    """
    if options.command == "staff create":
        options.password = read_password(from_stdin=options.password_stdin)
    elif options.command == "staff check":
        options.password, options.code = _credentials()
    try:
        report = runner.run(_run(settings, options))
    except MarketError as error:
        if error.code not in MISUSES:
            raise
        complain(error.message)
        return MISUSED
    say(json.dumps(report) if options.json else _in_words(report))
    if options.command == "who" and not report["found"]:
        return FAILED
    return 0


def _credentials() -> tuple[str, str]:
    """Return a password and a code, each a line of standard input."""
    try:
        lines = [sys.stdin.buffer.readline().decode().rstrip("\r\n") for _ in range(2)]
    except UnicodeDecodeError:
        raise MarketError(Code.INVALID_FIELD, "The input is not UTF-8 text.") from None
    if not all(lines):
        raise MarketError(
            Code.INVALID_FIELD, "The input has two lines: the password, then the code."
        )
    return lines[0], lines[1]


async def _run(settings: Settings, options: Namespace) -> Report:
    # A mistyped path makes no database; the first member may come before the daemon's first start.
    async with opened(settings, create=options.command == "staff create") as store:
        desk = Desk(settings, context_of(store))
        try:
            return await COMMANDS[options.command](desk, options)
        finally:
            desk.passwords.close()


def _unix_user() -> str:
    """Return the name of the user that runs this command, or the number of a user without one."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


async def _create(desk: Desk, options: Namespace) -> Report:
    created = await accounts.create(
        desk.context,
        desk.passwords,
        desk.factors(),
        desk.author,
        email=options.email,
        password=options.password,
        role=Role(options.role),
        why=options.reason,
    )
    return {"created": _member(created), **_factor(created)}


async def _list(desk: Desk, _options: Namespace) -> Report:
    rows = await accounts.listed(desk.context, desk.author)
    return {
        "staff": [
            {
                "id": row.id,
                "email": row.email,
                "role": row.role,
                "state": "active" if row.locked_at is None else "locked",
                "created": _moment(row.created_at),
                "codes_left": row.codes_left,
            }
            for row in rows
        ]
    }


async def _role(desk: Desk, options: Namespace) -> Report:
    role = Role(options.role)
    row = await accounts.set_role(desk.context, desk.author, options.staff, role, options.reason)
    return {"changed": {"id": row.id, "email": row.email, "role": role, "before": row.role}}


async def _lock(desk: Desk, options: Namespace) -> Report:
    row = await accounts.lock(desk.context, desk.author, options.staff, options.reason)
    return {"locked": {"id": row.id, "email": row.email}}


async def _unlock(desk: Desk, options: Namespace) -> Report:
    row = await accounts.unlock(desk.context, desk.author, options.staff, options.reason)
    return {"unlocked": {"id": row.id, "email": row.email}}


async def _reset_factor(desk: Desk, options: Namespace) -> Report:
    changed = await accounts.reset_factor(
        desk.context, desk.factors(), desk.author, options.staff, options.reason
    )
    return {"changed": _member(changed), **_factor(changed)}


async def _check(desk: Desk, options: Namespace) -> Report:
    given = Credentials(options.password, options.code)
    member = await accounts.check(
        desk.context, desk.passwords, desk.factors(), desk.author, options.staff, given
    )
    return {"right": {"id": member.staff_id, "role": member.role}}


async def _log(desk: Desk, options: Namespace) -> Report:
    rows = await history.read(
        desk.context,
        desk.author,
        user=options.user,
        staff=options.staff,
        action=options.action,
        before=options.before or NEWEST,
        limit=options.limit,
    )
    return {"log": [_act(row) for row in rows]}


async def _who(desk: Desk, options: Namespace) -> Report:
    return {
        "found": [
            _found(each) for each in await search.who(desk.context, desk.author, options.text)
        ]
    }


async def _show(desk: Desk, options: Namespace) -> Report:
    page = await users.view(desk.context, desk.author, options.user)
    return _user_page(page, desk.settings)


async def _note(desk: Desk, options: Namespace) -> Report:
    user_id = await users.note(desk.context, desk.author, options.user, options.text)
    return {"noted": {"user": user_id}}


COMMANDS: dict[str, Command] = {
    "staff create": _create,
    "staff list": _list,
    "staff role": _role,
    "staff lock": _lock,
    "staff unlock": _unlock,
    "staff reset-factor": _reset_factor,
    "staff check": _check,
    "log": _log,
    "who": _who,
    "user show": _show,
    "user note": _note,
}


def _member(member: Created) -> Row:
    return {"id": member.id, "email": member.email, "role": member.role}


def _factor(member: Created) -> Report:
    """Return a new second factor, which no later command can show."""
    return {"authenticator": member.factor.uri, "recovery_codes": list(member.factor.codes)}


def _act(row: ShownLogRow) -> Row:
    author = row.staff_email or ""
    if row.unix_user is not None:
        author = f"{author} {row.unix_user}@machine".strip()
    return {
        "number": row.number,
        "at": _moment(row.at),
        "author": author,
        "action": row.action,
        "subject": f"{row.subject_kind} {row.subject_id or ''}".strip(),
        "changes": json.loads(row.changes),
        "text": row.text,
    }


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


def _user_page(page: UserPage, settings: Settings) -> Report:
    user, profile, limits = page.user, page.profile, settings.limits
    return {
        "user": {
            "id": user.id,
            "username": user.username,
            "email": user.email,
            "verified": _moment(user.email_verified_at),
            "created": _moment(user.created_at),
        },
        "balances": [
            {"currency": currency, "available": as_decimal(available), "held": as_decimal(held)}
            for currency, available, held in (
                ("usd", profile.usd_available, profile.usd_held),
                ("credit", profile.credit_available, profile.credit_held),
            )
        ],
        "limits": [
            {"of": of, "open": _count(number), "limit": limit or None}
            for of, number, limit in (
                ("sessions", page.open.sessions, limits.sessions_per_user),
                ("jobs", page.open.jobs, limits.jobs_per_user),
                ("devices", page.open.devices, limits.devices_per_user),
                ("keys", page.open.keys, KEYS_MAX),
            )
        ],
        "transactions": [
            {
                "at": _moment(row.created_at),
                "kind": row.kind,
                "amount": as_decimal(row.amount),
                "currency": row.currency,
                "reference": row.reference,
                "id": row.id,
            }
            for row in page.transactions
        ],
        "sessions": [
            {
                "id": row.id,
                "status": row.status,
                "used_bytes": row.bytes_used,
                "quota_bytes": row.quota_bytes,
                "created": _moment(row.created_at),
                "expires": _moment(row.expires_at),
            }
            for row in page.sessions
        ],
        "devices": [
            {
                "id": row.id,
                "name": row.name,
                "type": row.device_type,
                "last_seen": _moment(row.last_heartbeat_at),
                "revoked": _moment(row.revoked_at),
            }
            for row in page.devices
        ],
        "jobs": [
            {
                "id": row.id,
                "type": row.job_type,
                "status": row.status,
                "price": as_decimal(row.price_held),
                "currency": row.currency,
                "created": _moment(row.created_at),
                "title": row.title,
            }
            for row in page.jobs
        ],
        "keys": [
            {
                "id": row.id,
                "prefix": row.prefix,
                "name": row.name,
                "last_used": _moment(row.last_used_at),
                "network": row.last_used_network,
                "expires": _moment(row.expires_at),
                "revoked": _moment(row.revoked_at),
            }
            for row in page.keys
        ],
        "logins": [
            {
                "id": row.id,
                "at": _moment(row.created_at),
                "network": row.network,
                "program": row.user_agent,
            }
            for row in page.logins
        ],
        "notes": [
            {
                "number": row.number,
                "at": _moment(row.created_at),
                "author": row.staff_email or row.unix_user,
                "text": row.body,
            }
            for row in page.notes
        ],
        "log": [_act(row) for row in page.log],
    }


def _count(number: int) -> int | str:
    return f"{COUNTED_MAX}+" if number > COUNTED_MAX else number


def _moment(seconds: int | None) -> str | None:
    return None if seconds is None else moment(seconds)


def _in_words(report: Report) -> str:
    """Return a report as text: a list of rows becomes columns, below the name of the list."""
    if "found" in report:
        return "\n\n".join(_hits_in_words(each) for each in report["found"]) or "nothing is found"
    parts = []
    for name, value in report.items():
        if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
            parts.append(f"{name}:\n{_table(value)}" if value else f"{name}: none")
        elif isinstance(value, list):
            parts.append("\n".join([f"{name}:", *(f"  {each}" for each in value)]))
        elif isinstance(value, Mapping):
            parts.append(
                f"{name}: {', '.join(f'{key} {_cell(each)}' for key, each in value.items())}"
            )
        else:
            parts.append(f"{name}: {_cell(value)}")
    return "\n".join(parts)


def _hits_in_words(found: Row) -> str:
    text = f"{found['by']}:\n{_table(found['hits'])}"
    return text if found["more_than"] is None else f"{text}\n  more than {found['more_than']}"


def _table(rows: Sequence[Row]) -> str:
    heads = list(rows[0])
    lines = [heads, *([_cell(row[head]) for head in heads] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    return "\n".join(
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    """Return a value as one line, without the control characters of terminals."""
    if value is None or value in ("", {}):
        return "-"
    if isinstance(value, Mapping):
        text = ", ".join(
            f"{name}: {_cell(old)} to {_cell(new)}" for name, (old, new) in value.items()
        )
    else:
        text = str(value)
    return printable(text)
