"""From failures to HTTP: this module chooses every status, and has the refusals of HTTP itself.

The codes and messages of the market's refusals are in `market.base.errors`.
"""

from enum import Enum
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from market.base.errors import Kind, MarketError


class Transport(Enum):
    """Refusals of the transport itself, each with its status and its message."""

    BAD_REQUEST = "bad_request", 400, "This is not a well-formed HTTP request."
    NO_SUCH_PATH = "no_such_path", 404, "There is nothing at this path; /docs lists the paths."
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "This path does not take this method."
    REQUEST_TIMEOUT = "request_timeout", 408, "The request did not arrive in time."
    BODY_TOO_LARGE = "body_too_large", 413, "The request body is too large."
    UNSUPPORTED_MEDIA_TYPE = (
        "unsupported_media_type",
        415,
        "The body must have the Content-Type and Content-Encoding that this path takes.",
    )
    RANGE_NOT_SATISFIABLE = "range_not_satisfiable", 416, "The file ends before this range begins."
    MISDIRECTED = (
        "misdirected",
        421,
        "This is the API, not the proxy: the purchase of a session names the proxy's address.",
    )
    TOO_MANY_REQUESTS = "too_many_requests", 429, "Too many requests; slow down."
    INTERNAL_ERROR = "internal_error", 500, "The server failed; nothing of the request was done."
    UNKNOWN_CODING = (
        "unknown_coding",
        501,
        "The only accepted value of Transfer-Encoding is chunked, once and without others.",
    )
    STORE_UNAVAILABLE = (
        "store_unavailable",
        500,
        (
            "The database does not answer; try again, "
            "with an Idempotency-Key if it must not be done twice."
        ),
    )
    OUTCOME_UNKNOWN = (
        "outcome_unknown",
        500,
        (
            "The database did not confirm the request: it was done, or it was not. "
            "Repeat it with the same Idempotency-Key, or look before you repeat it."
        ),
    )
    NOT_READY = "not_ready", 503, "A part that clients need does not work right now."
    FILES_FULL = "files_full", 503, "There is no room for files right now; nothing was kept."
    FILES_UNAVAILABLE = "files_unavailable", 503, "The store of files does not answer; try again."
    DRAINING = "draining", 503, "The server is about to restart; try again in a moment."

    def __init__(self, word: str, status: int, meaning: str) -> None:
        self.word = word
        self.status = status
        self.meaning = meaning


STATUS_OF_KIND = {
    Kind.INVALID: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.NOT_FOUND: 404,
    Kind.OVERLOADED: 429,
}

RETRY_AFTER_SECONDS = "1"
# The specification has 500 alone for a failure of the server; these pass in a moment all the same.
WORTH_REPEATING = (Transport.STORE_UNAVAILABLE, Transport.OUTCOME_UNKNOWN)


class ErrorDetail(Struct, omit_defaults=True):
    """An error: a stable code, one sentence, and the field at fault if there is one."""

    code: str
    message: str
    field: str | UnsetType = UNSET


class ErrorBody(Struct):
    """The body of every response that is not a success."""

    ok: Literal[False]
    error: ErrorDetail


class Failure(Struct, frozen=True):
    """A refusal: status, body and headers."""

    status: int
    body: ErrorBody
    headers: dict[str, str]


class TransportError(Exception):
    """The transport refuses a request before the marketplace sees it.

    Args:
        message: one sentence for the client's developer; by default the reason's own meaning.
    """

    def __init__(
        self,
        reason: Transport,
        headers: dict[str, str] | None = None,
        message: str | None = None,
    ) -> None:
        super().__init__(message or reason.meaning)
        self.reason = reason
        self.headers = headers or {}
        self.message = message or reason.meaning


def of_transport(
    reason: Transport, headers: dict[str, str] | None = None, message: str | None = None
) -> Failure:
    """Return the response for a refusal of the transport."""
    sent = dict(headers or {})
    if reason.status in (429, 503) or reason in WORTH_REPEATING:
        sent["Retry-After"] = RETRY_AFTER_SECONDS
    detail = ErrorDetail(reason.word, message or reason.meaning)
    return Failure(reason.status, ErrorBody(ok=False, error=detail), sent)


def of_market(error: MarketError) -> Failure:
    """Return the response for a refusal of the marketplace."""
    detail = ErrorDetail(error.code.word, error.message, error.field or UNSET)
    headers = {}
    if error.code.kind is Kind.OVERLOADED:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if error.code.kind is Kind.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    return Failure(STATUS_OF_KIND[error.code.kind], ErrorBody(ok=False, error=detail), headers)
