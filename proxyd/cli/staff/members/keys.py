"""Commands about keys of the staff, and about the attempts to log in."""

from argparse import Namespace

from market.staff.base.callers import StaffScope
from market.staff.members import attempts, keys
from market.staff.members.keys import NewStaffKey
from proxyd.cli.staff.base.desk import Command, Desk, Report, when


async def _create(desk: Desk, options: Namespace) -> Report:
    new = NewStaffKey(
        name=options.name,
        scopes=[StaffScope(each) for each in options.scope],
        allow_ips=options.allow_ip,
        days=options.days,
    )
    issued = await keys.create(desk.context, desk.author, options.staff, new, options.reason)
    row = issued.row
    return {
        "created": {"id": row.id, "member": issued.email, "expires": when(row.expires_at)},
        "key": issued.text,
    }


async def _list(desk: Desk, _options: Namespace) -> Report:
    now = desk.context.now()
    return {
        "keys": [
            {
                "id": owned.key.id,
                "member": owned.email,
                "name": owned.key.name,
                "prefix": owned.key.prefix,
                "scopes": owned.key.scopes,
                "addresses": owned.key.allow_ips,
                "state": keys.state_of(owned.key, now),
                "expires": when(owned.key.expires_at),
                "last_used": when(owned.key.last_used_at),
            }
            for owned in await keys.listed(desk.context, desk.author)
        ]
    }


async def _revoke(desk: Desk, options: Namespace) -> Report:
    owned = await keys.revoke(desk.context, desk.author, options.key.lower(), options.reason)
    return {"revoked": {"id": owned.key.id, "member": owned.email, "name": owned.key.name}}


async def _attempts(desk: Desk, options: Namespace) -> Report:
    rows = await attempts.listed(desk.context, desk.author, limit=options.limit)
    return {
        "attempts": [
            {
                "at": when(row.created_at),
                "member": row.staff_email,
                "network": row.network,
                "via": row.via,
                "unix_user": row.unix_user,
                "outcome": "wrong" if row.right_at is None else "right",
            }
            for row in rows
        ]
    }


COMMANDS: dict[str, Command] = {
    "staff key create": _create,
    "staff key list": _list,
    "staff key revoke": _revoke,
    "staff attempts": _attempts,
}
