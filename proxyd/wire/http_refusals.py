"""Answers of the proxy to an HTTP client that it refuses: one table, and their format.

The error types are those of RFC 9209, section 2.3. The sentences are for the person in front of the
browser that shows them; they stand in the `Proxy-Status` too, so they hold nothing that RFC 8941
would have escaped.
"""

from dataclasses import dataclass
from http import HTTPStatus

from proxyd.wire.events import Failure, Refusal

METHODS = "CONNECT, DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"

_CHALLENGE = 'Proxy-Authenticate: Basic realm="proxyd", charset="UTF-8"'
_LATER = "Retry-After: 5"


@dataclass(frozen=True, slots=True)
class Answer:
    """A refusal: its status, its error type, its words, and headers of its own."""

    status: HTTPStatus
    error: str
    words: str
    headers: tuple[str, ...] = ()

    def with_words(self, words: str) -> "Answer":
        """Return the answer with another sentence, which needs no escapes (see above)."""
        return Answer(self.status, self.error, words, self.headers)

    def encode(self, *, has_body: bool, keeps_alive: bool = False) -> bytes:
        """Return the complete answer; one to HEAD has no body (RFC 9110, section 9.3.2)."""
        body = self.words + "\n"
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            f'Proxy-Status: proxyd; error={self.error}; details="{self.words}"',
            *self.headers,
            f"Connection: {'keep-alive' if keeps_alive else 'close'}",
            "",
            body if has_body else "",
        )
        return "\r\n".join(lines).encode("ascii")


class RequestError(Exception):
    """A request that is refused for its content; `answer` is the answer to the client."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.words)
        self.answer = answer


def _bad(words: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST, *headers: str) -> Answer:
    return Answer(status, "http_request_error", words, headers)


MALFORMED = _bad("This is not a well-formed HTTP request.")
BAD_TARGET = _bad("The target of the request is not a host and a port that a proxy can reach.")
BAD_HOST = _bad("The Host header is missing, repeated or malformed.")
BAD_LENGTH = _bad("The length of the request body is contradictory or malformed.")
NOT_A_PAGE = _bad(
    "This is a proxy, not a web site. Enter its address in the proxy settings of a program, "
    "with the user name and the password of a session."
)
NOT_HTTP = _bad("Only http addresses are forwarded. For all others, https too, use CONNECT.")
NOT_OFFERED = _bad(
    "The proxy does not forward this method.",
    HTTPStatus.METHOD_NOT_ALLOWED,
    f"Allow: {METHODS}",
)
LENGTH_REQUIRED = _bad(
    "The proxy forwards a request body only if its Content-Length is given beforehand.",
    HTTPStatus.LENGTH_REQUIRED,
)
LINE_TOO_LONG = _bad("The address of the request is too long.", HTTPStatus.REQUEST_URI_TOO_LONG)
HEAD_TOO_LARGE = _bad(
    "The headers of the request are too large.", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
)
ANOTHER_VERSION = _bad(
    "The proxy speaks HTTP/1.1 and HTTP/1.0.", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
)
CREDENTIALS_MISSING = _bad(
    "This proxy needs the user name and the password of a session.",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
    _CHALLENGE,
)
CREDENTIALS_WRONG = _bad(
    "The user name or the password of the session is wrong.",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
    _CHALLENGE,
)
ADDRESS_UNKNOWN = Answer(
    HTTPStatus.FORBIDDEN,
    "http_request_denied",
    "No session lets this address in without a password.",
)
NAME_NOT_FOUND = Answer(
    HTTPStatus.BAD_GATEWAY,
    "dns_error",
    "There is no such name, or its host is unreachable.",
)

ANSWER_OF_REFUSAL = {
    Refusal.WRONG: CREDENTIALS_WRONG,
    Refusal.EXHAUSTED: Answer(
        HTTPStatus.FORBIDDEN, "http_request_denied", "The quota of the session is used up."
    ),
    Refusal.OVER: Answer(
        HTTPStatus.FORBIDDEN,
        "http_request_denied",
        "The session has ended, has expired, or is halted.",
    ),
    Refusal.TOO_MANY_CONNECTIONS: Answer(
        HTTPStatus.TOO_MANY_REQUESTS,
        "connection_limit_reached",
        "Too many connections of the session are open.",
        (_LATER,),
    ),
    Refusal.LIMITED: Answer(
        HTTPStatus.TOO_MANY_REQUESTS,
        "connection_limit_reached",
        "This account is new, and too many of its connections are open.",
        (_LATER,),
    ),
    Refusal.UNAVAILABLE: Answer(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "proxy_internal_error",
        "The session cannot be looked up right now; try again.",
        (_LATER,),
    ),
    Refusal.PARAMETERS: _bad("The parameters behind the user name cannot be understood."),
}

ANSWER_OF_FAILURE = {
    Failure.GENERAL: Answer(
        HTTPStatus.BAD_GATEWAY,
        "proxy_internal_error",
        "The proxy could not connect to the target.",
    ),
    Failure.NOT_ALLOWED: Answer(
        HTTPStatus.FORBIDDEN, "destination_ip_prohibited", "This target is not allowed."
    ),
    Failure.LIMITED: Answer(
        HTTPStatus.FORBIDDEN,
        "http_request_denied",
        "This account is new, and may not reach this port. Your sessions show which ports it may.",
    ),
    Failure.NETWORK_UNREACHABLE: Answer(
        HTTPStatus.BAD_GATEWAY,
        "destination_ip_unroutable",
        "The network of the target is unreachable.",
    ),
    Failure.HOST_UNREACHABLE: Answer(
        HTTPStatus.BAD_GATEWAY, "destination_ip_unroutable", "The target is unreachable."
    ),
    Failure.REFUSED: Answer(
        HTTPStatus.BAD_GATEWAY, "connection_refused", "The target refused the connection."
    ),
    Failure.TIMED_OUT: Answer(
        HTTPStatus.GATEWAY_TIMEOUT,
        "connection_timeout",
        "The target did not answer in time.",
    ),
    Failure.COMMAND_NOT_SUPPORTED: Answer(
        HTTPStatus.NOT_IMPLEMENTED, "http_request_denied", "The proxy does not offer this."
    ),
    Failure.NO_EXIT: Answer(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "destination_unavailable",
        "No exit of the kind that is wanted takes the connection now, at the price of the session.",
        (_LATER,),
    ),
    Failure.EXIT_LOST: Answer(
        HTTPStatus.BAD_GATEWAY,
        "connection_terminated",
        "The exit of this label is gone, and the session wants no other in its place.",
    ),
}
