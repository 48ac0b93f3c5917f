"""Writes settings as TOML that `config.load` reads again."""

from collections.abc import Iterator, Mapping
from decimal import Decimal

import msgspec
from msgspec import structs

from config.secrets import MARK, SECRETS
from config.settings import Settings


def as_toml(settings: Settings) -> str:
    """Return the settings that differ from their defaults; secrets are in the text."""
    usual = Settings()
    lines: list[str] = []
    for section in structs.fields(Settings):
        values, defaults = getattr(settings, section.name), getattr(usual, section.name)
        changed = [
            f"{each.name} = {_value(f'{section.name}.{each.name}', getattr(values, each.name))}"
            for each in structs.fields(section.type)
            if getattr(values, each.name) != getattr(defaults, each.name)
        ]
        if changed:
            lines += [f"[{section.name}]", *changed, ""]
    return "\n".join(lines)


def _value(name: str, value: object) -> str:
    """Return a setting's value; the `@` at the beginning of a secret is doubled."""
    if name in SECRETS and isinstance(value, str) and value.startswith(MARK):
        value = MARK + value
    return _written(value)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but TOML also wants one for DEL.
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }"
    assert isinstance(value, tuple)  # noqa: S101 - no setting has another type
    return "[" + ", ".join(map(_written, value)) + "]"


def _pairs(table: Mapping[str, object]) -> Iterator[str]:
    for key, value in table.items():
        yield f"{_written(key)} = {_written(value)}"
