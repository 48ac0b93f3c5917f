"""The example file: it loads, it holds every default, and nothing is missing from it."""

import re
import tomllib
from decimal import Decimal
from pathlib import Path

import msgspec
from support.base.cases import cases

import config
from config.load import load
from config.settings import Settings

EXAMPLE = Path(config.__file__).parent / "proxyd.example.toml"
TEXT = EXAMPLE.read_text(encoding="utf-8")
TABLES = tomllib.loads(TEXT, parse_float=Decimal)
SECTIONS = {section.name: section.type for section in msgspec.structs.fields(Settings)}
KEYS = [(name, key.name) for name in SECTIONS for key in msgspec.structs.fields(SECTIONS[name])]


def test_the_example_loads_to_exactly_the_defaults() -> None:
    assert load(EXAMPLE, {}) == Settings()


def test_every_section_is_in_the_example_and_no_other() -> None:
    assert list(TABLES) == list(SECTIONS)


@cases("section", SECTIONS)
def test_every_setting_of_a_section_is_in_the_example_and_no_other(section: str) -> None:
    known = [field.name for field in msgspec.structs.fields(SECTIONS[section])]
    assert sorted(TABLES[section]) == sorted(known)


@cases(("section", "key"), KEYS)
def test_a_setting_stands_in_the_example_with_its_default(section: str, key: str) -> None:
    default = getattr(getattr(Settings(), section), key)
    written = TABLES[section][key]
    assert written == (list(default) if isinstance(default, tuple) else default)


def test_the_variables_that_the_example_mentions_work() -> None:
    mentioned = dict(re.findall(r"(PROXYD_[A-Z]+__[A-Z]+)=([\w]+|'[^']+')", TEXT))
    assert len(mentioned) == 2
    for variable, text in mentioned.items():
        section, key = variable.removeprefix("PROXYD_").lower().split("__")
        settings = load(None, {variable: text.strip("'")})
        assert getattr(getattr(settings, section), key) != getattr(
            getattr(Settings(), section), key
        )


def test_the_levels_that_the_example_mentions_are_accepted() -> None:
    line = next(line for line in TEXT.splitlines() if line.startswith("level"))
    levels = re.findall(r"debug|info|warning|error", line.partition("#")[2])
    assert levels == ["debug", "info", "warning", "error"]
    for level in levels:
        assert load(None, {"PROXYD_LOG__LEVEL": level}).log.level == level
