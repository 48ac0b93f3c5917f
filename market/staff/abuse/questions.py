"""The figures of a complaint as a person writes them, for a command and for the staff API."""

import re
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.networks import plain
from market.staff.abuse.exit_use import Question
from market.staff.abuse.tickets import Facts

PORT_MAX: Final = 65_535
WITHIN_SECONDS: Final = 60
WITHIN_MAX_SECONDS: Final = 3_600
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


class Figures(Struct, frozen=True):
    """The figures of a complaint as texts; "" and 0 are missing."""

    exit_address: str
    at: str
    to: str = ""
    source_port: int = 0
    within: int = WITHIN_SECONDS


class Names(Struct, frozen=True):
    """The names of the figures in errors, as the caller writes them."""

    exit_address: str = "exit_address"
    at: str = "at"
    to: str = "to"


def question(figures: Figures, now: int, names: Names) -> Question:
    """Return the question that figures ask.

    Raises:
        MarketError: `invalid_field`.
    """
    at = _moment(figures.at, names.at)
    if at > now:
        raise MarketError(Code.INVALID_FIELD, f"The time of {names.at} is in the future.")
    host, port = _destination(figures.to, names.to) if figures.to else ("", 0)
    return Question(
        exit_address=_address(figures.exit_address, names.exit_address),
        at=at,
        host=host,
        port=port,
        source_port=figures.source_port,
        within=figures.within,
    )


def facts(asked: Question) -> Facts:
    """Return the figures that a ticket keeps of a question."""
    return Facts(asked.exit_address, asked.at, asked.host, asked.port, asked.source_port)


def _address(text: str, name: str) -> str:
    try:
        return str(plain(ip_address(text)))
    except ValueError:
        raise MarketError(
            Code.INVALID_FIELD, f"{name} is an IP address, such as 203.0.113.9."
        ) from None


def _moment(text: str, name: str) -> int:
    """Return a time; one without a zone would be guessed, so it is refused."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        seconds = int(found.astimezone(UTC).timestamp())
    except (ValueError, OverflowError):
        raise MarketError(
            Code.INVALID_FIELD, f"{name} is a time with its zone, such as 2026-11-23T14:03:22Z."
        ) from None
    if seconds < 0:
        raise MarketError(Code.INVALID_FIELD, f"The time of {name} is before 1970.")
    return seconds


def _destination(text: str, name: str) -> tuple[str, int]:
    """Return the host and the port of a destination; the port is 0 if it is missing."""
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        host = str(plain(ip_address(host)))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise _bad_destination(name) from None
    if not port:
        return host, 0
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(PORT_MAX))):
        raise _bad_destination(name)
    if not 1 <= int(port) <= PORT_MAX:
        raise _bad_destination(name)
    return host, int(port)


def _bad_destination(name: str) -> MarketError:
    return MarketError(
        Code.INVALID_FIELD, f"{name} is HOST, HOST:PORT or [IPv6]:PORT, such as 198.51.100.7:22."
    )
