"""Reads settings from TOML and the environment, and reports every mistake at once."""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from config.check import contradictions
from config.secrets import resolved
from config.settings import Settings

ENVIRONMENT_PREFIX = "PROXYD_"
SECTION_SEPARATOR = "__"

Check = Callable[[Settings], Iterator[str]]

_TYPE = re.compile(r"`([^`]*)`")
_NAMES = {  # msgspec's, and what a person calls them
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_SETTING = re.compile(r"(?<![\w.])[a-z_]+\.[a-z_]+(?![\w.])")


class SettingsError(Exception):
    """The settings cannot be used; `problems` names every mistake, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load(
    path: Path | None, environment: Mapping[str, str], checks: Sequence[Check] = ()
) -> Settings:
    """Read the settings: the defaults, then the TOML file, then the environment, the last wins.

    Args:
        path: a TOML file, or None for the defaults.
        environment: variables; `PROXYD_<SECTION>__<KEY>` sets `<key>` in `[<section>]`.
        checks: what else may be wrong, as in the files that settings name; each yields one line
            for a mistake, which begins with the setting.

    Raises:
        SettingsError: naming each unknown name, wrong type, value out of range and contradiction.
    """
    problems: list[str] = []
    sections = {section.name: section.type for section in msgspec.structs.fields(Settings)}
    values = _read_file(path, problems) if path is not None else {}
    built: dict[str, Any] = {}
    problems.extend(
        f"{name}: {_misplaced(name, values[name], sections)}"
        for name in values
        if name not in sections
    )
    overrides = _overrides(environment, sections, problems)
    for name, section in sections.items():
        given = values.get(name, {})
        if not isinstance(given, dict):
            problems.append(f"{name}: expected a section, written as [{name}]")
            continue
        built[name] = _section(name, section, given, overrides.get(name, {}), problems, environment)
    settings = Settings(**built)
    blamed = {_dotted(problem.partition(":")[0]) for problem in problems}
    problems.extend(
        problem
        for check in (contradictions, *checks)
        for problem in check(settings)
        if blamed.isdisjoint(_SETTING.findall(problem))
    )
    if problems:
        raise SettingsError(problems)
    return settings


def _dotted(label: str) -> str:
    """Return a setting's name in the file, whichever of its names a mistake was reported under."""
    return label.removeprefix(ENVIRONMENT_PREFIX).replace(SECTION_SEPARATOR, ".").lower()


def _read_file(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text, parse_float=_decimal)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: is not TOML: {error}")
    return {}


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def _overrides(
    environment: Mapping[str, str], sections: Mapping[str, Any], problems: list[str]
) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if SECTION_SEPARATOR not in variable:
            section, _, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
            if section in sections and key:
                problems.append(f"{variable}: did you mean {_variable(section, key)}?")
            continue
        name = variable[len(ENVIRONMENT_PREFIX) - 1 :].lower().removeprefix("_")
        section, _, key = name.partition(SECTION_SEPARATOR)
        if section not in sections:
            problems.append(f"{variable}: no section [{section}]{_hint(section, sections)}")
        else:
            found.setdefault(section, {})[key] = value
    return found


def _section(
    name: str,
    section: Any,  # noqa: ANN401 - msgspec describes a field's type as Any
    given: dict[str, Any],
    overrides: dict[str, str],
    problems: list[str],
    environment: Mapping[str, str],
) -> object:
    fields = {field.name: field.type for field in msgspec.structs.fields(section)}
    sources = (
        ({key: f"{name}.{key}" for key in given}, given, _from_toml),
        ({key: _variable(name, key) for key in overrides}, overrides, _from_text),
    )
    converted: dict[str, Any] = {}
    for labels, values, convert in sources:
        for key, label in labels.items():
            if key not in fields:
                problems.append(f"{label}: no such setting{_hint(key, fields)}")
            elif values is not given or key not in overrides:
                try:
                    secret: Any = resolved(f"{name}.{key}", values[key], environment)
                    converted[key] = convert(secret, fields[key])
                except (msgspec.MsgspecError, ValueError, ArithmeticError) as error:
                    problems.append(f"{label}: {_words(error, fields[key])}")
    return section(**converted)


def _from_toml(value: object, kind: Any) -> object:  # noqa: ANN401 - as above
    if isinstance(value, Decimal) and kind is not Decimal:
        value = float(value)
    if kind is Decimal and isinstance(value, str):
        raise ValueError("Expected a number, got text in quotes")
    return msgspec.convert(value, kind)


def _from_text(text: str, kind: Any) -> object:  # noqa: ANN401 - as above
    if get_origin(_bare(kind)) in (tuple, dict):
        if text[:1] not in ("[", "{"):
            raise msgspec.DecodeError("neither a list nor a table")
        return msgspec.json.decode(text, type=kind)
    return msgspec.convert(text, kind, strict=False)


def _misplaced(name: str, value: object, sections: Mapping[str, Any]) -> str:
    """Say what is wrong with a name that stands where sections do."""
    owners = [
        f"[{section}]"
        for section, kind in sections.items()
        if name in {field.name for field in msgspec.structs.fields(kind)}
    ]
    if owners and not isinstance(value, dict):
        return f"belongs into a section; put it below {' or '.join(owners)}"
    return f"no such section{_hint(name, sections)}"


def _variable(section: str, key: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{section}{SECTION_SEPARATOR}{key}".upper()


def _words(error: Exception, kind: Any) -> str:  # noqa: ANN401 - as above
    kind = _bare(kind)
    if get_origin(kind) is Literal:
        return f"expected one of {', '.join(get_args(kind))}"
    if get_origin(kind) in (tuple, dict) and _is_no_json(error):
        example = '["one", "two"]' if get_origin(kind) is tuple else '{"one": 1}'
        what = "a list" if get_origin(kind) is tuple else "a table"
        return f"expected {what}, written as JSON: {example}"
    told = _TYPE.sub(lambda found: _NAMES.get(found[1], found[1]), str(error))
    return told.replace("Expected", "expected").removesuffix(" - at $")


def _bare(kind: Any) -> Any:  # noqa: ANN401 - as above
    """Return a type without what it is annotated with."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_no_json(error: Exception) -> bool:
    """Say whether a text was not JSON at all, as when somebody leaves the brackets away."""
    return isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError)


def _hint(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
