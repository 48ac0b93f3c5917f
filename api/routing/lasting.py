"""Files and answers that take long end with the login, key or worker token that they are for.

Everything else asks for it with each request. A stream, a file or a large answer has one request
and takes minutes or hours, so the login is looked at again meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from logging import getLogger

from aiohttp import web

# How often the login or key of a request is checked, by one look-up of a primary key: the request
# ends within 15 s of its key, also where the store takes seconds to answer.
CHECK_SECONDS = 10.0

# Says whether the login, key or worker token of a request is valid still.
GoesOn = Callable[[], Awaitable[bool]]

_logger = getLogger("api")


@asynccontextmanager
async def while_read(request: web.BaseRequest, goes_on: GoesOn | None) -> AsyncIterator[None]:
    """Cut the connection of a request once its login is over.

    Within the block a file of it arrives, or it is answered. The connection is cut so that no part
    of an answer looks whole. Reading and writing raise `ConnectionError` then.

    Args:
        request: the request.
        goes_on: called every `CHECK_SECONDS`; None for a request that needs no login.
    """
    if goes_on is None:
        yield
        return
    watching = asyncio.create_task(_watch(request, goes_on))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _watch(request: web.BaseRequest, goes_on: GoesOn) -> None:
    while await _later(goes_on):
        pass
    _logger.info("%s: the request is cut: its login, key or token is over", request.path)
    if request.transport is not None:
        request.transport.abort()


async def _later(goes_on: GoesOn) -> bool:
    await asyncio.sleep(CHECK_SECONDS)
    return await goes_on()
