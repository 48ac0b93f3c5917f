"""Commands about members of the staff: create, list, change, lock and check them."""

from argparse import Namespace

from market.staff.base.roles import Role
from market.staff.members import accounts
from market.staff.members.accounts import Created, Credentials
from proxyd.cli.staff.base.desk import Command, Desk, Report, Row, when


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
                "created": when(row.created_at),
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


async def _declare(desk: Desk, options: Namespace) -> Report:
    user_id = await accounts.declare(
        desk.context, desk.author, options.staff, options.user, options.reason
    )
    return {"declared": {"staff": options.staff, "user": user_id}}


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


def _member(member: Created) -> Row:
    return {"id": member.id, "email": member.email, "role": member.role}


def _factor(member: Created) -> Report:
    """Return a new second factor, which no later command can show."""
    return {"authenticator": member.factor.uri, "recovery_codes": list(member.factor.codes)}


COMMANDS: dict[str, Command] = {
    "staff create": _create,
    "staff list": _list,
    "staff role": _role,
    "staff lock": _lock,
    "staff unlock": _unlock,
    "staff declare": _declare,
    "staff reset-factor": _reset_factor,
    "staff check": _check,
}
