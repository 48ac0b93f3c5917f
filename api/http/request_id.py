"""An identifier for each request, in its response and in every log line about it."""

import re
import secrets
from contextvars import ContextVar

HEADER = "X-Request-Id"
MADE_BYTES = 12  # sixteen characters of base64, without a rest
MADE_CHARACTERS = 16
DRAWN = 64
PATTERN = "[A-Za-z0-9._~-]{1,64}"

current: ContextVar[str] = ContextVar("request_id", default="")

_STARTS = range(0, MADE_CHARACTERS * DRAWN, MADE_CHARACTERS)
_SANE = re.compile(PATTERN)


class RequestIds:
    """Chooses identifiers of requests.

    The randomness of many is drawn at once: each question to the kernel lets the threads of the
    database run in between, for longer than all else here takes.
    """

    def __init__(self) -> None:
        self._made: list[str] = []

    def chosen(self, proposal: str) -> str:
        """Return the identifier that a client proposes if it is well-formed, else a new one."""
        if proposal and _SANE.fullmatch(proposal):
            return proposal
        if not self._made:
            drawn = secrets.token_urlsafe(MADE_BYTES * DRAWN)
            self._made = [drawn[at : at + MADE_CHARACTERS] for at in _STARTS]
        return self._made.pop()
