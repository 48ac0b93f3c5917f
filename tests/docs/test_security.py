"""The model of threats names tests and settings that exist; every dependency is pinned."""

import re
import tomllib
from functools import cache

from support.daemons.process import ROOT

from config.settings import Settings

TEXT = (ROOT / "SECURITY.md").read_text()
THREATS, _, COSTS = TEXT.partition("## The worst case")
SETTING = re.compile(r"`([a-z]+)\.([a-z_0-9]+)`")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file; none when there is no such file."""
    file = ROOT / path
    if not file.exists():
        return frozenset()
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE))


def rows_of(text: str) -> list[str]:
    """Return the rows of the tables in a text, without their heads."""
    heads = ("| threat |", "| what |", "|---")
    lines = text.splitlines()
    return [line for line in lines if line.startswith("|") and not line.startswith(heads)]


def test_every_threat_has_its_defence_and_its_test() -> None:
    rows = rows_of(THREATS)
    assert len(rows) > 50
    for row in rows:
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


def test_every_setting_that_bounds_a_cost_exists() -> None:
    named = [match.groups() for row in rows_of(COSTS) for match in SETTING.finditer(row)]
    assert len(named) > 20
    settings = Settings()
    for section, name in named:
        assert hasattr(getattr(settings, section), name), f"{section}.{name}"


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
