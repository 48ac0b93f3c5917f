"""Reads settings from a TOML file and the environment, and reports all errors together."""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, get_origin

import msgspec

from config.check import contradictions
from config.expected import mistake
from config.secrets import resolved
from config.settings import Settings

ENVIRONMENT_PREFIX = "PROXYD_"
SECTION_SEPARATOR = "__"

Check = Callable[[Settings], Iterator[str]]

_ENTRY = re.compile(r"at `\$\[(\d+)\]`")  # how msgspec's messages name an entry of a list
_SETTING = re.compile(r"(?<![\w.])[a-z_]+\.[a-z_]+(?![\w.])")  # `section.key` within a message


class SettingsError(Exception):
    """The settings are wrong; `problems` has a line for each mistake."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load(
    path: Path | None, environment: Mapping[str, str], checks: Sequence[Check] = ()
) -> Settings:
    """Read the settings: defaults, overridden by the TOML file, overridden by the environment.

    Args:
        path: a TOML file, or None for the defaults.
        environment: variables; `PROXYD_<SECTION>__<KEY>` sets `<key>` in `[<section>]`.
        checks: further checks, as of the files that settings name. Each yields a line for each
            mistake, which begins with the setting.

    Raises:
        SettingsError: with a line for each unknown name, wrong type, value out of range and
            contradiction.
    """
    problems: list[str] = []
    sections = {section.name: section.type for section in msgspec.structs.fields(Settings)}
    values = _read_file(path, problems) if path is not None else {}
    section_values: dict[str, Any] = {}
    problems.extend(
        f"{name}: {_misplaced(name, values[name], sections)}"
        for name in values
        if name not in sections
    )
    overrides = _overrides(environment, sections, problems)
    for name, section in sections.items():
        table = values.get(name, {})
        if not isinstance(table, dict):
            problems.append(f"{name}: expected a section, written as [{name}]")
            continue
        section_values[name] = _section(
            name, section, table, overrides.get(name, {}), problems, environment
        )
    settings = Settings(**section_values)
    # A setting that was reported has its default value by now: a contradiction that names it too
    # would only confuse.
    reported = {_dotted(problem.partition(":")[0]) for problem in problems}
    problems.extend(
        problem
        for check in (contradictions, *checks)
        for problem in check(settings)
        if reported.isdisjoint(_SETTING.findall(problem))
    )
    if problems:
        raise SettingsError(problems)
    return settings


def _dotted(label: str) -> str:
    """Return a setting's name as `section.key`, from that or from its environment variable."""
    return label.removeprefix(ENVIRONMENT_PREFIX).replace(SECTION_SEPARATOR, ".").lower()


def _read_file(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text, parse_float=_decimal)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8 text")
    except ValueError as error:  # a mistake of grammar, or a number of thousands of digits
        problems.append(f"{path}: is not TOML: {error}")
    return {}


def _decimal(text: str) -> Decimal:
    """Return a TOML number exactly; NaN, which checks refuse, for one beyond any exponent."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def _overrides(
    environment: Mapping[str, str], sections: Mapping[str, Any], problems: list[str]
) -> dict[str, dict[str, str]]:
    """Return the settings of the environment by section and key; report unknown sections."""
    overrides: dict[str, dict[str, str]] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if SECTION_SEPARATOR not in variable:
            # PROXYD_API_PORT with one underscore; other programs' variables are none of ours.
            section, _, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
            if section in sections and key:
                problems.append(f"{variable}: did you mean {_variable(section, key)}?")
            continue
        name = variable[len(ENVIRONMENT_PREFIX) - 1 :].lower().removeprefix("_")
        section, _, key = name.partition(SECTION_SEPARATOR)
        if section not in sections:
            problems.append(f"{variable}: no section [{section}]{_hint(section, sections)}")
        else:
            overrides.setdefault(section, {})[key] = value
    return overrides


def _section(
    name: str,
    section: Any,  # noqa: ANN401 - msgspec describes a field's type as Any
    table: dict[str, Any],
    overrides: dict[str, str],
    problems: list[str],
    environment: Mapping[str, str],
) -> object:
    """Return a section's settings from the file's table and the environment's overrides.

    A setting with a mistake is reported in `problems` and keeps its default.
    """
    fields = {field.name: field.type for field in msgspec.structs.fields(section)}
    # The name of each setting in messages, its value, and the conversion of the value.
    sources = (
        ({key: f"{name}.{key}" for key in table}, table, _from_toml),
        ({key: _variable(name, key) for key in overrides}, overrides, _from_text),
    )
    converted: dict[str, Any] = {}
    for labels, values, convert in sources:
        for key, label in labels.items():
            if key not in fields:
                problems.append(f"{label}: no such setting{_hint(key, fields)}")
            elif values is not table or key not in overrides:
                try:
                    value: Any = resolved(f"{name}.{key}", values[key], environment)
                except ValueError as error:
                    problems.append(f"{label}: {error}")
                    continue
                try:
                    converted[key] = convert(value, fields[key])
                except (msgspec.MsgspecError, ValueError, ArithmeticError) as error:
                    words = mistake(
                        f"{name}.{key}", fields[key], value, is_text=values is overrides
                    )
                    if place := _ENTRY.search(str(error)):
                        words += f"; entry {int(place[1]) + 1} is wrong"
                    problems.append(f"{label}: {words}")
    return section(**converted)


def _from_toml(value: object, kind: Any) -> object:  # noqa: ANN401 - as above
    if isinstance(value, Decimal) and kind is not Decimal:
        value = float(value)
    if kind is Decimal and isinstance(value, str):
        raise ValueError("text in quotes is no number")
    return msgspec.convert(value, kind)


def _from_text(text: str, kind: Any) -> object:  # noqa: ANN401 - as above
    if get_origin(kind) in (tuple, dict):
        if text[:1] not in ("[", "{"):
            raise msgspec.DecodeError("neither a list nor a table")
        return msgspec.json.decode(text, type=kind)
    return msgspec.convert(text, kind, strict=False)


def _misplaced(name: str, value: object, sections: Mapping[str, Any]) -> str:
    """Return the error of a name at the top of the file that is not a section."""
    owners = [
        f"[{section}]"
        for section, kind in sections.items()
        if name in {field.name for field in msgspec.structs.fields(kind)}
    ]
    if owners and not isinstance(value, dict):
        return f"belongs in a section; put it below {' or '.join(owners)}"
    return f"no such section{_hint(name, sections)}"


def _variable(section: str, key: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{section}{SECTION_SEPARATOR}{key}".upper()


def _hint(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
