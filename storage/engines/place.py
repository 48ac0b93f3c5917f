"""Address of a database for messages, without the password in its URL."""

import re
from pathlib import Path
from urllib.parse import urlsplit

SQLITE = "sqlite:///"
# One server or several, each with its port: nothing that could be a part of a password.
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.%-]+)(?::\d+)?"
_HOSTS = re.compile(rf"(?:{_HOST}(?:,{_HOST})*)?")


def is_sqlite(url: str) -> bool:
    """Return whether a URL names an SQLite database, which one service on one machine has."""
    return url.startswith(SQLITE)


def is_postgres(url: str) -> bool:
    """Return whether a URL names a PostgreSQL database."""
    return url.startswith(("postgresql://", "postgres://"))


def place(url: str) -> str:
    """Return a database's path, or its server and name; the URL's user and password are left out.

    Where a URL is ambiguous, so that a part of the password could be taken for the host or path,
    nothing of it is repeated.
    """
    if url.startswith(SQLITE):
        return str(Path(url.removeprefix(SQLITE)).resolve())
    try:
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
    except ValueError:
        return "the PostgreSQL database"
    if "@" in parts.path or "@" in login or not _HOSTS.fullmatch(hosts):
        return "the PostgreSQL database"
    return f"postgresql://{hosts}{parts.path}"
