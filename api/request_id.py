"""A name for each request, in its answer and in every line that is logged of it."""

import re
import secrets
from contextvars import ContextVar

HEADER = "X-Request-Id"
MADE_BYTES = 12
PATTERN = "[A-Za-z0-9._~-]{1,64}"

current: ContextVar[str] = ContextVar("request_id", default="")

_SANE = re.compile(PATTERN)


def chosen(offered: str) -> str:
    """Return the name that a client offers if it is sane, a new one otherwise."""
    return offered if _SANE.fullmatch(offered) else secrets.token_urlsafe(MADE_BYTES)
