"""Files and answers that take long end with the login, key or worker token that they are for.

Everything else asks for it with each request. A stream, a file or a large answer has one request
and takes minutes or hours, so the login is looked at again meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from logging import getLogger

from aiohttp import web
from msgspec import Struct

_logger = getLogger("api")


class GoesOn(Struct, frozen=True):
    """The login, key or worker token of a request, and how often it is checked.

    Attributes:
        check: says whether it is valid still.
        check_seconds: between two checks (`login_check_seconds` of `api.http.limits`).
    """

    check: Callable[[], Awaitable[bool]]
    check_seconds: float


@asynccontextmanager
async def while_read(request: web.BaseRequest, goes_on: GoesOn | None) -> AsyncIterator[None]:
    """Cut the connection of a request once its login is over.

    Within the block a file of it arrives, or it is answered. The connection is cut so that no part
    of an answer looks whole. Reading and writing raise `ConnectionError` then.

    Args:
        request: the request.
        goes_on: its login, key or token; None for a request that needs none.
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
    await asyncio.sleep(goes_on.check_seconds)
    return await goes_on.check()
