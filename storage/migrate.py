"""Numbered steps from an empty database to the present schema: forward only, each applied once."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from storage.errors import CannotOpenError

VERSION_TABLE = """
CREATE TABLE IF NOT EXISTS schema_versions (
    version BIGINT PRIMARY KEY,
    name TEXT NOT NULL
)
"""
SELECT_VERSION = "SELECT COALESCE(MAX(version), 0) FROM schema_versions"
INSERT_VERSION = "INSERT INTO schema_versions (version, name) VALUES (:version, :name)"

_FILE_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>\w+)(?:\.(?P<engine>sqlite|postgres))?\.sql")


@dataclass(frozen=True)
class Migration:
    """One step: what both engines share, then what one of them says in its own words."""

    version: int
    name: str
    scripts: tuple[str, ...]


def migrations(engine: str) -> list[Migration]:
    """Return every step for `engine` ("sqlite" or "postgres"), in order."""
    found: dict[int, tuple[str, list[str]]] = {}
    folder = resources.files("storage") / "migrations"
    for file in sorted(folder.iterdir(), key=lambda entry: (entry.name[:4], len(entry.name))):
        match = _FILE_NAME.fullmatch(file.name)
        if match is None or match["engine"] not in (None, engine):
            continue
        name, scripts = found.setdefault(int(match["version"]), (match["name"], []))
        if name != match["name"]:
            raise ValueError(f"two migrations have one number: {name} and {match['name']}")
        scripts.append(file.read_text(encoding="utf-8"))
    return [
        Migration(version, name, tuple(scripts))
        for version, (name, scripts) in sorted(found.items())
    ]


def pending(engine: str, version: int) -> Iterator[Migration]:
    """Yield the steps that a database at `version` still needs.

    Raises:
        CannotOpenError: the database is newer than this program.
    """
    steps = migrations(engine)
    newest = steps[-1].version
    if version > newest:
        raise CannotOpenError(
            f"the database has schema version {version}, this program knows only {newest}; "
            "run the newer program that made it"
        )
    return (step for step in steps if step.version > version)
