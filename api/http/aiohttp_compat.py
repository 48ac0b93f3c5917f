"""The private parts of aiohttp's server that the API relies on, each behind a name of our own.

aiohttp offers no public way to refuse a head that does not end, to bound the requests that wait
behind one, or to know when a request is being served. Nothing else in this room reads a name of
aiohttp that begins with an underscore. `tests/api/http/test_aiohttp_compat.py` checks each of them,
and fails on any other release than this one until a developer has compared `web_protocol.py`,
`web_server.py`, and `web_response.py`, whose `StreamResponse` our `Response` is.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, _ErrInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader

COMPARED_VERSION = "3.14.5"


class PrivateServer(web.Server):
    """The state that a server keeps for its connections."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it serves on."""
        return self._loop

    @property
    def protocol_settings(self) -> dict[str, Any]:
        """The keyword arguments for each new connection."""
        return self._kwargs


class PrivateProtocol(RequestHandler):
    """State of a connection about the requests that it has parsed."""

    __slots__ = ()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it is served on."""
        return self._loop

    @property
    def serving(self) -> "asyncio.Task[None] | None":
        """The task that serves its requests, one after the other."""
        return self._task_handler

    @property
    def parsed(self) -> int:
        """The number of heads of requests that were parsed on it, refused ones included."""
        return self._request_count

    @property
    def queued(self) -> int:
        """The number of parsed requests that are not being served yet."""
        return len(self._messages)

    @property
    def newest_body(self) -> "StreamReader":
        """The body of the request that was queued last; there must be one."""
        return self._messages[-1][1]

    @property
    def reads_no_more(self) -> bool:
        """Whether arriving bytes are dropped, because the connection closes after an answer."""
        return self._close

    @property
    def is_raw(self) -> bool:
        """Whether arriving bytes are HTTP no longer, and go to the parser that was set for them."""
        return self._payload_parser is not None

    def bound_queue(self, most: int) -> None:
        """Stop to read while `most` requests are queued, until none is."""
        self._max_msg_queue_size = most
        self._msg_queue_resume_size = 0

    def refuse(self, error: Exception) -> None:
        """Queue a request that is answered by `handle_error`, and stop reading."""
        self._request_count += 1
        self._messages.append((_ErrInfo(status=400, exc=error, message=""), EMPTY_PAYLOAD))
        self._close = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def refuse_newest(
        self, count: int, problem_of: "Callable[[RawRequestMessage], Exception | None]"
    ) -> None:
        """Let `handle_error` answer those of the newest requests that have a problem.

        Also free the frames of the parser's own errors, which refer to the connection: as a cycle
        they would stay in memory, with the last bytes, until the next collection of garbage.

        Its answer must close the connection: bytes behind such a request belong to no request.

        Args:
            count: how many requests are looked at, from the end of the queue.
            problem_of: returns why the head of a request is refused; None where it is not.
        """
        for index in range(len(self._messages) - count, len(self._messages)):
            message, _ = self._messages[index]
            if isinstance(message, _ErrInfo):
                forget_frames(message.exc)
                continue
            problem = problem_of(message)
            if problem is not None:
                refused = _ErrInfo(status=400, exc=problem, message="")
                self._messages[index] = (refused, EMPTY_PAYLOAD)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop serving, and forget the queued requests.

        A task that has been woken for a request, and not run yet, would look for a handler that is
        gone.
        """
        serving = self._task_handler
        is_woken = self._waiter is not None and self._waiter.done()
        super().connection_lost(exc)
        if is_woken and serving is not None:
            serving.cancel()
        self._messages.clear()

    def request_begins(self) -> None:
        """Called before a request is answered; for subclasses."""

    def request_ended(self) -> None:
        """Called when a request was answered, or could not be; for subclasses."""

    async def _handle_request(self, *parts: Any) -> tuple[web.StreamResponse, bool]:  # noqa: ANN401
        self.request_begins()
        try:
            return await super()._handle_request(*parts)
        finally:
            self.request_ended()


def forget_frames(error: BaseException) -> None:
    """Free the frames that an error, and the errors that it came from, have passed through."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
