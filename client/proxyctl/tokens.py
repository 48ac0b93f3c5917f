"""The worker token of a device, as its owner gives it to the program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxyctl.words import OwnerError

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_VARIABLE: Final = "PROXYCTL_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN_MAX_CHARACTERS: Final = 500  # the limit of an exit's Hello


class TokenError(OwnerError):
    """There is no token; the message has the reason."""


def read_token(token_file: str | None, ask: Callable[[str], str]) -> str:
    """Return the worker token of this device: from a file, the environment, or a prompt.

    Never from the command line, where everybody on the machine could read it.

    Raises:
        TokenError: there is no token.
    """
    if token_file is not None:
        try:
            text = Path(token_file).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise TokenError(f"{token_file} cannot be read") from None
    else:
        text = os.environ.get(TOKEN_VARIABLE) or ask("Worker token of this device: ")
    token = text.strip()
    if not token or len(token) > _TOKEN_MAX_CHARACTERS or not token.isprintable():
        raise TokenError("that is no worker token; make one in your account, under devices")
    return token
