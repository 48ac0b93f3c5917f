"""The server's side of an HTTP proxy: CONNECT, and requests for http addresses (RFC 9110, 9112).

A connection carries one request that is served; before it there may be some without credentials,
because browsers send theirs only after a challenge. CONNECT becomes a tunnel. Any other request is
rewritten for its target, with a header that has the target close the connection after its answer;
the answer comes back untouched. The bytes behind such a request may be for another host, and
credentials are in them: they must not reach this one, hence `Handover.upload_limit`.

The rules of this file are those of `socks5`. Only one head is kept, whose size is limited, and the
bytes that came in one segment with its end.
"""

import re
from enum import Enum, auto
from typing import Final, final

from proxyd.wire.events import (
    Address,
    Authenticate,
    Connect,
    Event,
    Failure,
    Handover,
    Identify,
    Refusal,
    ServerProtocol,
    Violation,
)
from proxyd.wire.http_refusals import (
    ADDRESS_UNKNOWN,
    ANSWER_OF_FAILURE,
    ANSWER_OF_REFUSAL,
    CREDENTIALS_MISSING,
    HEAD_TOO_LARGE,
    LINE_TOO_LONG,
    MALFORMED,
    NAME_NOT_FOUND,
    Answer,
    RequestError,
)
from proxyd.wire.http_request import Request, read_request

LINE_MAX_BYTES: Final = 8 * 1024  # RFC 9112, section 3 recommends to take 8000 at least
# The usual limit of servers; no client needs more of a proxy than of its target.
HEAD_MAX_BYTES: Final = 16 * 1024
# On one connection: a client that has no credentials must not stay for ever.
CHALLENGES_MAX: Final = 3
# On one connection, ahead of all its requests. RFC 9112, section 2.2 asks for one at least, which
# some old clients send behind a body. They are in no head, so no other limit ever counts them.
EMPTY_LINES_MAX: Final = 8

_TUNNEL: Final = b"HTTP/1.1 200 Connection established\r\n"
_LINE_END: Final = b"\r\n"
_END: Final = b"\r\n\r\n"
# A line ends with both bytes: a target that takes one alone for an end reads another request.
_END_OR_FAULT: Final = re.compile(rb"\r\n\r\n|(?<!\r)\n|\r(?!\n|\Z)|\x00")


class HttpState(Enum):
    """Decision or input that the server waits for."""

    REQUEST = auto()
    CREDENTIALS_DECISION = auto()
    ADMITTED = auto()
    REQUEST_DECISION = auto()
    ESTABLISHED = auto()
    CLOSED = auto()


@final
class Http(ServerProtocol):
    """Request of one client.

    Args:
        password_required: whether clients show credentials. If not, their address must do, and
            credentials are not looked at.
    """

    __slots__ = (
        "_buffer",
        "_challenges",
        "_empty_lines",
        "_has_body",
        "_output",
        "_password_required",
        "_request",
        "_scanned",
        "state",
    )

    def __init__(self, *, password_required: bool = True) -> None:
        self.state = HttpState.REQUEST
        self._password_required = password_required
        self._buffer = bytearray()
        self._output = b""
        self._scanned = 0
        self._challenges = 0
        self._empty_lines = 0
        self._has_body = True
        self._request: Request | None = None

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self.state is not HttpState.CLOSED:
            self._buffer += data

    def next_event(self) -> Event | None:
        """Return the next event of the client, or None until more bytes or a decision arrive."""
        if self.state is HttpState.REQUEST:
            try:
                return self._read()
            except RequestError as error:
                self._refuse(error.answer)
                return Violation(error.answer.words)
        if self.state is HttpState.ADMITTED:
            request = self._served(HttpState.ADMITTED)
            self.state = HttpState.REQUEST_DECISION
            return Connect(request.host, request.port)
        return None

    def data_to_send(self) -> bytes:
        """Return the bytes to send to the client, once."""
        data, self._output = self._output, b""
        return data

    def accept_credentials(self) -> None:
        """Accept the credentials of the client's request."""
        self._served(HttpState.CREDENTIALS_DECISION)
        self.state = HttpState.ADMITTED

    def refuse_credentials(self, refusal: Refusal, words: str = "") -> None:
        """Send the client the reason of the refusal; close it after the pending bytes."""
        self._served(HttpState.CREDENTIALS_DECISION)
        if refusal is Refusal.WRONG and not self._password_required:
            self._refuse(ADDRESS_UNKNOWN)
        else:
            answer = ANSWER_OF_REFUSAL[refusal]
            self._refuse(answer.with_words(words) if words else answer)

    def succeed(
        self,
        host: Address,  # noqa: ARG002 - HTTP does not tell it
        port: int,  # noqa: ARG002
        headers: tuple[str, ...] = (),
    ) -> None:
        """Notify the client of its open tunnel; the target itself answers a plain request."""
        request = self._served(HttpState.REQUEST_DECISION)
        if request.is_tunnel:
            self._output += _TUNNEL
            for line in headers:
                self._output += line.encode("ascii") + _LINE_END
            self._output += _LINE_END
        self.state = HttpState.ESTABLISHED

    def fail(self, failure: Failure) -> None:
        """Send the client the reason of the failure; close it after the pending bytes."""
        request = self._served(HttpState.REQUEST_DECISION)
        if failure is Failure.HOST_UNREACHABLE and isinstance(request.host, str):
            self._refuse(NAME_NOT_FOUND)
        else:
            self._refuse(ANSWER_OF_FAILURE[failure])

    def hand_over(self) -> Handover:
        """Return the rewritten head with the arrived part of the body, and the size of the rest.

        A tunnel has no head, and all that the client sends is its body.
        """
        request = self._served(HttpState.ESTABLISHED)
        limit = request.upload_limit
        body = bytes(self._buffer[:limit])
        self._buffer.clear()
        self._request = None
        return Handover(request.head + body, None if limit is None else limit - len(body))

    def _read(self) -> Event | None:
        while (head := self._next_head()) is not None:
            request = read_request(head)
            event = self._identified(request)
            if event is not None:
                self._request = request
                self.state = HttpState.CREDENTIALS_DECISION
                return event
            if not self._challenge(request):
                return Violation("no credentials")
        return None

    def _identified(self, request: Request) -> Event | None:
        """Return the client's claim of identity; None if it is missing."""
        if not self._password_required:
            return Identify()
        credentials = request.credentials()
        return None if credentials is None else Authenticate(*credentials)

    def _next_head(self) -> bytes | None:
        """Return the next head that is complete, without the empty line at its end.

        The result does not depend on how the bytes were cut into segments.

        Raises:
            RequestError: it is too large, its lines do not end as they must, or too many empty ones
                are ahead of it.
        """
        buffer = self._buffer
        if buffer.startswith(_LINE_END):
            self._skip_empty_lines()
        self._has_body = not buffer.startswith(b"HEAD ")
        end = _END_OR_FAULT.search(buffer, self._scanned)
        reach = len(buffer) if end is None else end.end()
        beyond = LINE_MAX_BYTES + len(_LINE_END)
        if reach >= beyond and buffer.find(_LINE_END, 0, beyond) < 0:
            raise RequestError(LINE_TOO_LONG)
        if reach > HEAD_MAX_BYTES:
            raise RequestError(HEAD_TOO_LARGE)
        if end is None:
            self._scanned = max(reach - len(_END) + 1, 0)
            return None
        if end[0] != _END:
            raise RequestError(MALFORMED)
        head = bytes(buffer[: end.start()])
        del buffer[:reach]
        self._scanned = 0
        return head

    def _skip_empty_lines(self) -> None:
        """Drop the empty lines ahead of a request.

        Raises:
            RequestError: the connection has had too many.
        """
        buffer = self._buffer
        while buffer.startswith(_LINE_END):
            self._empty_lines += 1
            if self._empty_lines > EMPTY_LINES_MAX:
                self._has_body = True  # also behind an earlier request of HEAD
                raise RequestError(MALFORMED)
            del buffer[: len(_LINE_END)]

    def _challenge(self, request: Request) -> bool:
        """Ask for credentials; False when the client may not try again on this connection."""
        self._challenges += 1
        keeps_alive = request.keeps_alive and self._challenges < CHALLENGES_MAX
        self._output += CREDENTIALS_MISSING.encode(has_body=self._has_body, keeps_alive=keeps_alive)
        if not keeps_alive:
            self._close()
        return keeps_alive

    def _refuse(self, answer: Answer) -> None:
        self._output += answer.encode(has_body=self._has_body)
        self._close()

    def _close(self) -> None:
        self.state = HttpState.CLOSED
        self._request = None
        self._buffer.clear()

    def _served(self, state: HttpState) -> Request:
        """Return the request that is served; it must have come as far as this state."""
        if self.state is not state or self._request is None:
            raise RuntimeError(f"called in state {self.state.name}, not {state.name}")
        return self._request
