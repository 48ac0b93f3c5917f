"""Numbered steps from an empty database to the present schema: forward only, each applied once.

Step 40 joins the steps 12 to 40 of unreleased programs and makes the same schema. So a database of
0.1.0 (11) takes it, and one that has taken all of the separate steps (40) has it already.

An earlier program can run on a newer database if each step that it does not know permits it: by a
line `-- readable from N`, where N is the first schema version whose program can run with the step.
Such a step only adds tables, or columns with a default, that an earlier program need not write.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from storage.engines.errors import CannotOpenError

VERSION_TABLE = """
CREATE TABLE IF NOT EXISTS schema_versions (
    version BIGINT PRIMARY KEY,
    name TEXT NOT NULL
)
"""
SELECT_VERSION = "SELECT COALESCE(MAX(version), 0) FROM schema_versions"
INSERT_VERSION = "INSERT INTO schema_versions (version, name) VALUES (:version, :name)"
# The first version that has the column; programs before it refuse every newer database.
READABLE_SINCE = 54
_READABLE = re.compile(r"^-- readable from (\d+)$", re.MULTILINE)

_logger = logging.getLogger("storage")

_FOLDER = Path(__file__).parent.parent / "migrations"
_FILE_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>\w+)(?:\.(?P<engine>sqlite|postgres))?\.sql")


@dataclass(frozen=True)
class Migration:
    """One step: the script that both engines share, then the one of a single engine.

    `sources` are scripts, or their files. A file is read when its step is applied, so that a start
    on a database that is up to date reads none; or by `read`, before.
    """

    version: int
    name: str
    sources: tuple[str | Path, ...]

    @cached_property
    def scripts(self) -> tuple[str, ...]:
        """The scripts of this step, in the order in which they are run."""
        return tuple(
            source.read_text(encoding="utf-8") if isinstance(source, Path) else source
            for source in self.sources
        )

    @property
    def set_readable(self) -> str:
        """The statement that notes which programs can run with this step; "" for a step without."""
        found = _READABLE.search("\n".join(self.scripts))
        if found is None or self.version <= READABLE_SINCE:
            return ""
        return (
            f"UPDATE schema_versions SET readable_from = {int(found[1])} "
            f"WHERE version = {self.version}"
        )


@cache
def migrations(engine: str) -> tuple[Migration, ...]:
    """Return every step for `engine` ("sqlite" or "postgres"), in order.

    The folder is read once: a file that is put there later belongs to another program than the
    running one.
    """
    steps: dict[int, tuple[str, list[Path]]] = {}
    # Of one step's files the shortest name first: the shared script before an engine's own.
    for file in sorted(_FOLDER.iterdir(), key=lambda entry: (entry.name[:4], len(entry.name))):
        match = _FILE_NAME.fullmatch(file.name)
        if match is None or match["engine"] not in (None, engine):
            continue
        name, files = steps.setdefault(int(match["version"]), (match["name"], []))
        if name != match["name"]:
            raise ValueError(f"two migrations have one number: {name} and {match['name']}")
        files.append(file)
    return tuple(
        Migration(version, name, tuple(files)) for version, (name, files) in sorted(steps.items())
    )


def read(engine: str) -> None:
    """Read every step for `engine` from its files, for processes that are forked from this one."""
    for step in migrations(engine):
        assert step.scripts  # noqa: S101 - each has a file


def newest(engine: str) -> int:
    """Return the schema version of this program."""
    return migrations(engine)[-1].version


def select_readable(engine: str) -> str:
    """Return the query for the first version whose program can run with all steps unknown here."""
    return (
        "SELECT MAX(COALESCE(readable_from, version)) FROM schema_versions "
        f"WHERE version > {newest(engine)}"
    )


def select_backup(engine: str) -> str:
    """Return the query for the newest backup that this program can read."""
    return (
        f"SELECT place FROM schema_backups WHERE version <= {newest(engine)} "
        "ORDER BY version DESC LIMIT 1"
    )


def require_readable(engine: str, version: int, readable_from: int, backup: str | None) -> None:
    """Check that this program can run on a database that a newer one has migrated.

    Args:
        engine: "sqlite" or "postgres".
        version: the schema version of the database.
        readable_from: the first version whose program can run on it.
        backup: the newest backup that this program can read, if the database names one.

    Raises:
        CannotOpenError: it cannot.
    """
    known = newest(engine)
    if readable_from <= known:
        _logger.warning(
            "the database has schema version %d, which a newer program made; this one knows %d and "
            "can run on it",
            version,
            known,
        )
        return
    named = f": {backup}" if backup else ""
    raise CannotOpenError(
        f"the database has schema version {version}, this program knows only {known}; "
        f"run the newer program that made it, or restore the backup from before the upgrade{named}"
    )


def pending(engine: str, version: int) -> Iterator[Migration]:
    """Yield the steps that a database at `version` still needs; none for a newer one.

    Raises:
        CannotOpenError: its version is one of those between releases whose steps were joined into
            one.
    """
    steps = migrations(engine)
    if version > steps[-1].version:
        return iter(())
    joined = next(step.version for step in steps if step.version >= version)
    if version and version not in {step.version for step in steps}:
        raise CannotOpenError(
            f"the database has schema version {version}, which no release has; first run the "
            f"unreleased program that takes it to {joined} in separate steps"
        )
    return (step for step in steps if step.version > version)
