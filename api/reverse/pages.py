"""Own answers of the door: short pages, or JSON for programs that prefer it, in the same words."""

from enum import Enum
from html import escape

from api.http.accept import prefers_json
from api.http.errors import ErrorBody, ErrorDetail, Transport
from api.routing.responses import Response
from api.routing.routes import encode

HTML = "text/html; charset=utf-8"
JSON = "application/json"
NOT_READY_SECONDS = 5
FULL_SECONDS = 2
PAUSED_SECONDS = 600  # or until its replica is another one


class RefusedError(Exception):
    """A request does not reach a job."""

    def __init__(self, refusal: "Refusal") -> None:
        super().__init__(refusal.title)
        self.refusal = refusal


_PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"></head>
<body><h1>{title}</h1><p>{words}</p></body></html>
"""


class Refusal(Enum):
    """Refusal of a request before it reaches a job: status, title, message, and time of a retry."""

    MALFORMED = 400, "Bad request", "This is not a request that can be passed on.", 0
    TOO_LONG = 400, "Too long", "The address or a header of the request is too long.", 0
    NOWHERE = 404, "Not found", "No app has this address.", 0
    NO_KEY = (
        401,
        "The key is missing or wrong",
        (
            "Open the address with its key, as the service shows it to the buyer. A key that was "
            "replaced opens nothing any more, and neither does that of a job that is over."
        ),
        0,
    )
    ELSEWHERE = (
        403,
        "Another page asks",
        "Pages of other origins may not use this app by the cookie of its visitor.",
        0,
    )
    METHOD = 405, "Method not allowed", "This method is not passed on to apps.", 0
    NO_PORT = 404, "Not found", "The app has no such port.", 0
    TOO_OFTEN = 429, "Too many requests", "Slow down.", FULL_SECONDS
    NOT_READY = (
        503,
        "Not ready yet",
        "The app starts, or waits for a machine. Load the page again in a moment.",
        NOT_READY_SECONDS,
    )
    NOT_LISTENING = (
        503,
        "Not listening",
        "The job runs, and nothing in it listens on this port. Load the page again in a moment.",
        NOT_READY_SECONDS,
    )
    FULL = 503, "Too many connections", "The app has as many as it may have.", FULL_SECONDS
    BUSY = 503, "The machine is busy", "Its way to here has no room for more.", FULL_SECONDS
    PAUSED = (
        503,
        "The machine has done enough for today",
        (
            "The owner of the machine that runs the app lets so much through in a day, and that is"
            " reached. It goes on at the machine's midnight."
        ),
        PAUSED_SECONDS,
    )
    DRAINING = 503, "Restarting", "The service is about to restart.", FULL_SECONDS
    AWAY = (
        502,
        "The machine is away",
        (
            "The machine that runs the app cannot be reached now. If it stays away, another one "
            "takes over."
        ),
        0,
    )
    NO_ANSWER = 502, "No answer", "The job closed the connection, or gave no proper answer.", 0
    TIMEOUT = 504, "The machine is slow", "The machine that runs the app did not answer in time.", 0
    UNKNOWN_CODING = 501, "Unknown coding", Transport.UNKNOWN_CODING.meaning, 0
    FAILED = 500, "Failed", "The service failed.", 0

    def __init__(self, status: int, title: str, words: str, seconds: int) -> None:
        self.status = status
        self.title = title
        self.words = words
        self.seconds = seconds


_UNPARSED = {
    Transport.BAD_REQUEST: Refusal.MALFORMED,
    Transport.UNKNOWN_CODING: Refusal.UNKNOWN_CODING,
}


def answer(refusal: Refusal, accept: str) -> Response:
    """Return the answer to a request that does not reach a job, as its header Accept wants it."""
    is_json = prefers_json(accept)
    if is_json:
        detail = ErrorDetail(refusal.name.lower(), refusal.words)
        body = encode(ErrorBody(ok=False, error=detail))
    else:
        text = _PAGE.format(title=escape(refusal.title), words=escape(refusal.words))
        body = text.encode()
    headers = {
        "Content-Type": JSON if is_json else HTML,
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    if refusal.seconds:
        headers["Retry-After"] = str(refusal.seconds)
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    response = Response(refusal.status, body, headers)
    # The bytes behind it may be no request either.
    if refusal in (Refusal.MALFORMED, Refusal.TOO_LONG, Refusal.UNKNOWN_CODING):
        response.force_close()
    return response


def answer_unparsed(reason: Transport, is_too_long: bool) -> Response:
    """Return the answer to bytes that are not a request, so that its preferences are unknown."""
    refusal = Refusal.TOO_LONG if is_too_long else _UNPARSED.get(reason, Refusal.FAILED)
    return answer(refusal, "")


def redirect(location: str, cookie: str) -> Response:
    """Return the answer that leads to the same address without its key."""
    headers = {
        "Content-Type": HTML,
        "Cache-Control": "no-store",
        "Location": location,
        "Referrer-Policy": "no-referrer",
        "Set-Cookie": cookie,
    }
    return Response(303, b"", headers if cookie else _without(headers, "Set-Cookie"))


def _without(headers: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key != name}
