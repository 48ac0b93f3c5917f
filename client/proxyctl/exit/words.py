"""Words that came over the network, made fit for a terminal."""

from __future__ import annotations


def plain_text(text: str) -> str:
    """Return a text without what a terminal would take for a command; its lines stay."""
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def plain_line(text: str) -> str:
    """Return a text as one line, without what a terminal would take for a command."""
    return " ".join(plain_text(text).split())
