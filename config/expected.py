"""Allowed values of a setting, in words: `a whole number from 1 to 64, got 65`."""

from decimal import Decimal
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta

from config.secrets import SECRETS

SHOWN_MAX_CHARACTERS = 80  # enough to recognise a value; a file may have any
_SINGULAR = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Decimal: "a number",
    str: "text",
}
_PLURAL = {int: "whole numbers", float: "numbers", Decimal: "numbers", str: "texts"}


def mistake(name: str, kind: Any, value: object, *, is_text: bool) -> str:  # noqa: ANN401
    """Return the error of a value that is not of a setting's type.

    Args:
        name: the setting, as `section.key`.
        kind: its type, as msgspec describes it.
        value: the wrong value.
        is_text: whether the value comes from the environment, where lists are written as JSON.
    """
    words = f"expected {_expected(kind)}"
    if is_text and (example := _example(kind)):
        words += f", written as JSON: {example}"
    return words if name in SECRETS else f"{words}, got {_shown(value)}"


def _expected(kind: Any) -> str:  # noqa: ANN401 - msgspec describes a field's type as Any
    bare, arguments = _bare(kind), get_args(_bare(kind))
    if get_origin(bare) is Literal:
        return f"one of {', '.join(arguments)}"
    if get_origin(bare) is tuple:
        return f"a list of {_PLURAL[_bare(arguments[0])]}{_range(arguments[0])}"
    if get_origin(bare) is dict:
        return f"a table of {_PLURAL[_bare(arguments[1])]}{_range(arguments[1])}"
    return f"{_SINGULAR[bare]}{_range(kind)}"


def _bare(kind: Any) -> Any:  # noqa: ANN401 - as above
    """Return a type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _range(kind: Any) -> str:  # noqa: ANN401 - as above
    """Return the bounds of a number."""
    for meta in get_args(kind)[1:] if get_origin(kind) is Annotated else ():
        if isinstance(meta, Meta):
            return _between(meta)
    return ""


def _between(meta: Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f" from {_plain(meta.ge)} to {_plain(meta.le)}"
    bounds = (
        ("above", meta.gt),
        ("of at least", meta.ge),
        ("below", meta.lt),
        ("up to", meta.le),
    )
    words = [f"{word} {_plain(bound)}" for word, bound in bounds if bound is not None]
    return f" {' and '.join(words)}"


def _plain(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else str(bound)


def _example(kind: Any) -> str:  # noqa: ANN401 - as above
    """Return how a list or a table is written in the environment; nothing for another type."""
    kind = _bare(kind)
    if get_origin(kind) not in (tuple, dict):
        return ""
    is_text = _bare(get_args(kind)[0 if get_origin(kind) is tuple else 1]) is str
    one, two = ('"one"', '"two"') if is_text else ("1", "2")
    return f"[{one}, {two}]" if get_origin(kind) is tuple else f'{{"one": {one}}}'


def _shown(value: object) -> str:
    """Return a value nearly as it was written."""
    try:
        text = _written(value)
    except ValueError:  # TOML takes it in hexadecimal; see `sys.set_int_max_str_digits`
        return "a number of thousands of digits"
    if len(text) > SHOWN_MAX_CHARACTERS:
        text = f"{text[:SHOWN_MAX_CHARACTERS]}…"
    return text


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return str(value if value.is_finite() else float(value))  # `inf`, as TOML writes it
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_written(each)}' for key, each in value.items())}}}"
    return repr(value) if isinstance(value, str) else str(value)
