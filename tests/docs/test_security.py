"""The model of threats names tests that exist; every dependency is pinned."""

import re
import tomllib
from functools import cache

from support.process import ROOT

TEXT = (ROOT / "SECURITY.md").read_text()
ROWS = [
    line
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith(("| threat |", "|---"))
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file; none when there is no such file."""
    file = ROOT / path
    if not file.exists():
        return frozenset()
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE))


def test_every_threat_has_its_defence_and_its_test() -> None:
    assert len(ROWS) > 50
    for row in ROWS:
        threat, defence, held_by = (each.strip() for each in row.strip("|").split(" | "))
        assert threat
        assert defence
        assert NAMED.search(held_by), row
        assert NAMED.sub("", held_by).strip(", ") == "", row


def test_every_test_that_is_named_exists() -> None:
    missing = [
        f"{path}::{name}" for path, name in NAMED.findall(TEXT) if name not in names_in(path)
    ]
    assert missing == []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(each for extra in extras for each in extra)]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {_normal(line.partition("==")[0]) for line in lines}
    assert {_normal(each.partition("[")[0]) for each in wanted} <= pinned


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
