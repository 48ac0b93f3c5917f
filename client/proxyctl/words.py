"""Words for the owner of a device: errors, and texts that came over the network."""

from __future__ import annotations

from typing import Final

_SHORT_CHARACTERS: Final = 200  # of a stranger's name in a sentence


class OwnerError(Exception):
    """A command cannot be done; the message tells the owner of the device why."""


def plain_text(text: str) -> str:
    """Return a text without the control characters of terminals; its lines stay."""
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def plain_line(text: str) -> str:
    """Return a text as one line, without the control characters of terminals."""
    return " ".join(plain_text(text).split())


def short_line(text: str) -> str:
    """Return a text as `plain_line` does, cut to a length that fits into a sentence."""
    line = plain_line(text.encode("utf-8", "replace").decode())
    return line if len(line) <= _SHORT_CHARACTERS else f"{line[:_SHORT_CHARACTERS]}…"
