"""The connections through an exit at a time, out of the access records of all machines."""

import asyncio

from config.settings import Settings
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.abuse import looks
from market.staff.abuse.exit_use import Found, Question
from market.staff.abuse.rules import RuleSetting
from proxyd.ops import access_answers
from proxyd.ops.access_place import access_folder
from storage.bandwidth import nodes
from storage.engines.place import is_sqlite


async def find(settings: Settings, context: Context, question: Question) -> Found:
    """Return the connections in the records of all machines, and the reasons for gaps.

    Raises:
        MarketError: `invalid_field`, when the records cannot be read.
    """
    try:
        found = await asyncio.to_thread(access_answers.find, settings, question, context.now())
    except OSError as error:
        raise MarketError(Code.INVALID_FIELD, f"The access log: {error.strerror}.") from None
    if is_sqlite(settings.storage.url):
        return found
    names = [each.id for each in await context.store.read(nodes.seen)]
    if len(names) < 2:
        return found
    return await looks.ask(context, question, names, found)


def rules_of(settings: Settings) -> list[RuleSetting]:
    """Return the rules against scans and spam; without records none of them is on."""
    abuse, is_on = settings.abuse, access_folder(settings) is not None
    rules = (
        (
            "scan",
            abuse.scan_mode,
            abuse.scan_targets,
            f"targets on one port, more than {abuse.scan_failed_percent} % failed",
            abuse.scan_failed_percent,
            abuse.scan_halt_seconds,
        ),
        (
            "mail",
            abuse.mail_mode,
            abuse.mail_refusals,
            "refused dials to mail ports",
            -1,
            abuse.mail_halt_seconds,
        ),
        (
            "login",
            abuse.login_mode,
            abuse.login_connections,
            "connections to one host's login port",
            -1,
            abuse.login_halt_seconds,
        ),
    )
    return [
        RuleSetting(
            name,
            mode if is_on and most else "off",
            most,
            of,
            percent,
            seconds if mode == "act" else None,
        )
        for name, mode, most, of, percent, seconds in rules
    ]
