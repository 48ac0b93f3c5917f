"""Numbered steps from an empty database to the present schema: forward only, each applied once.

Step 40 joins the steps 12 to 40 of unreleased programs and makes the same schema. So a database of
0.1.0 (11) takes it, and one that has taken all of the separate steps (40) has it already.
"""

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


def pending(engine: str, version: int) -> Iterator[Migration]:
    """Yield the steps that a database at `version` still needs.

    Raises:
        CannotOpenError: the database is newer than this program, or its version is one of those
            between releases whose steps were joined into one.
    """
    steps = migrations(engine)
    newest = steps[-1].version
    if version > newest:
        raise CannotOpenError(
            f"the database has schema version {version}, this program knows only {newest}; "
            "run the newer program that made it, or restore the backup from before the upgrade"
        )
    joined = next(step.version for step in steps if step.version >= version)
    if version and version not in {step.version for step in steps}:
        raise CannotOpenError(
            f"the database has schema version {version}, which no release has; first run the "
            f"unreleased program that takes it to {joined} in separate steps"
        )
    return (step for step in steps if step.version > version)
