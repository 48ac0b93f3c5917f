"""Commands of the rescue: a login of an operator that is made at the machine."""

from argparse import Namespace

from market.accounts.outbox import Outbox
from market.staff.members import rescue
from market.staff.members.logins import StaffLogins
from market.staff.members.rescue import Post
from proxyd.cli.staff.base.desk import Command, Desk, Report, when
from proxyd.cli.staff.base.letters import sealing_of
from proxyd.ops.base.signing_key import signing_key


async def _rescue(desk: Desk, options: Namespace) -> Report:
    key = signing_key(desk.settings)
    # The daemon sends the e-mails.
    emails = Outbox(desk.context, sealing_of(desk), "mail")
    login = await rescue.rescue(
        desk.context,
        StaffLogins(desk.context, desk.passwords, desk.factors(), key),
        Post(emails, desk.settings.site.name),
        desk.author,
        options.staff,
        options.reason,
    )
    return {
        "rescued": {
            "id": login.staff_id,
            "email": login.email,
            "expires": when(login.expires_at),
        },
        "token": login.token,
    }


async def _rescues(desk: Desk, _options: Namespace) -> Report:
    return {
        "rescues": [
            {
                "id": row.id,
                "email": row.email,
                "at": when(row.at),
                "acknowledged": when(row.acknowledged_at),
                "by": row.acknowledged_by,
            }
            for row in await rescue.listed(desk.context, desk.author)
        ]
    }


COMMANDS: dict[str, Command] = {"staff rescue": _rescue, "staff rescues": _rescues}
