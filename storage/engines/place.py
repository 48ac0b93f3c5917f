"""The parts of the URL of a database, and its address for messages, without the password."""

import re
from pathlib import Path
from typing import NamedTuple

SQLITE = "sqlite:///"
# One server or several, each with its port: nothing that could be a part of a password.
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.%-]+)(?::\d+)?"
_HOSTS = re.compile(rf"(?:{_HOST}(?:,{_HOST})*)?")
# RFC 3986, appendix B. `urllib` refuses a list of servers with an IPv6 address in brackets.
_URL = re.compile(r"postgres(?:ql)?://([^/?]*)([^?]*)(?:\?(.*))?")
_DROPPED = re.compile(r"[\t\r\n]")  # by `urllib`, and so by the driver


class UrlError(ValueError):
    """The URL of a database cannot be read; the predicate of a sentence says why."""


class Parts(NamedTuple):
    """The parts of the URL of a PostgreSQL database."""

    login: str  # user and password
    hosts: str  # one server or several, separated by commas, each with its port
    path: str  # `/` and the database
    query: str


def is_sqlite(url: str) -> bool:
    """Return whether a URL names an SQLite database, which one service on one machine has."""
    return url.startswith(SQLITE)


def is_postgres(url: str) -> bool:
    """Return whether a URL names a PostgreSQL database."""
    return url.startswith(("postgresql://", "postgres://"))


def parts_of(url: str) -> Parts:
    """Split the URL of a PostgreSQL database.

    Raises:
        UrlError: it is no such URL, or a part of the password could be taken for another part.
    """
    if "#" in url:
        raise UrlError("has a # that is not written %23")
    found = _URL.fullmatch(_DROPPED.sub("", url))
    if found is None:
        raise UrlError("is not a URL of a PostgreSQL database")
    authority, path, query = found.groups(default="")
    login, at, hosts = authority.rpartition("@")
    if "@" in login or "@" in path or ("@" in query and not at):
        raise UrlError("has an @ that is not written %40")
    return Parts(login, hosts, path, query)


def place(url: str) -> str:
    """Return a database's path, or its server and name; the URL's user and password are left out.

    Where a URL is ambiguous, so that a part of the password could be taken for the host or path,
    nothing of it is repeated.
    """
    if url.startswith(SQLITE):
        return str(Path(url.removeprefix(SQLITE)).resolve())
    try:
        parts = parts_of(url)
    except UrlError:
        return "the PostgreSQL database"
    if not _HOSTS.fullmatch(parts.hosts) or not parts.path.isprintable():
        return "the PostgreSQL database"
    return f"postgresql://{parts.hosts}{parts.path}"
