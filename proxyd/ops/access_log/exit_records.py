"""The connections through an exit at a time, out of the access records of all machines."""

import asyncio

from config.settings import Settings
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.abuse import looks
from market.staff.abuse.exit_use import Found, Question
from proxyd.ops.access_log import access_answers
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
