"""An identifier for each request, in its response and in every log line about it."""

import re
import secrets
from contextvars import ContextVar

HEADER = "X-Request-Id"
MADE_BYTES = 12
PATTERN = "[A-Za-z0-9._~-]{1,64}"

current: ContextVar[str] = ContextVar("request_id", default="")

_SANE = re.compile(PATTERN)


def chosen(proposal: str) -> str:
    """Return the identifier that a client proposes if it is well-formed, else a new one."""
    return proposal if _SANE.fullmatch(proposal) else secrets.token_urlsafe(MADE_BYTES)
