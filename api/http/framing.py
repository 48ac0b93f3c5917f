"""Whether a request is framed in a way that everybody reads alike (RFC 9112, section 6)."""

from typing import TYPE_CHECKING

from aiohttp import hdrs
from aiohttp.http import HttpVersion10, HttpVersion11

from api.http.errors import Transport, TransportError

if TYPE_CHECKING:
    from aiohttp.http_parser import RawRequestMessage

CHUNKED = "chunked"
# A request of HTTP/0.9 is one line, and parsers differ in their reading of the lines behind it.
SPOKEN = (HttpVersion10, HttpVersion11)


def framing_problem(message: "RawRequestMessage") -> TransportError | None:
    """Return why the version or Transfer-Encoding of a request is refused; None where neither is.

    A parser that takes a coding before `chunked` for none at all reads another body than a program
    in front of it that knows the coding. The connection has to be closed behind the answer. Parsers
    refuse a coding behind `chunked`, and Content-Length beside it, by themselves.
    """
    if message.version not in SPOKEN:
        return TransportError(Transport.BAD_REQUEST)
    values = message.headers.getall(hdrs.TRANSFER_ENCODING, ())
    if not values:
        return None
    codings = [coding.strip(" \t").lower() for value in values for coding in value.split(",")]
    # Programs of HTTP/1.0 do not know the header; chunks in chunks are never right (section 7.1).
    if message.version <= HttpVersion10 or CHUNKED in codings[:-1]:
        return TransportError(Transport.BAD_REQUEST)
    return None if codings == [CHUNKED] else TransportError(Transport.UNKNOWN_CODING)
