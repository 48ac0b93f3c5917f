"""Where a database is, in words that hold no secret."""

from pathlib import Path
from urllib.parse import urlsplit

SQLITE = "sqlite:///"


def place(url: str) -> str:
    """Return where the database of a URL is, and nothing that could be a secret."""
    if url.startswith(SQLITE):
        return str(Path(url.removeprefix(SQLITE)).resolve())
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the PostgreSQL database"
    if "@" in parts.path or "@" in (parts.hostname or ""):
        return "the PostgreSQL database"
    return f"postgresql://{parts.hostname or ''}{port}{parts.path}"
