"""Says what is wrong with a request in terms of its JSON, where msgspec speaks of Python types.

msgspec has no structured errors, so its messages are parsed. They are no promise of its authors:
`tests/api/test_validation_messages.py` provokes one message for each pattern below, and fails on
any other release than this one until they have been compared.
"""

import re
from typing import Any

import msgspec
from msgspec import inspect

from market.errors import Code, MarketError

COMPARED_VERSION = "0.22.0"
SHOWN_MAX_CHARACTERS = 40  # of a wrong value: enough to recognise it, too short to flood a log

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_GOT = re.compile(r"Expected `[^`]+`, got `(?P<got>\w+)`")
_LENGTH = re.compile(r"Expected `array` of length (?P<end>[<>])= (?P<bound>\d+)")
_CHOICE = re.compile(r"Invalid enum value (?P<got>.+)", re.DOTALL)
_OWN = re.compile(r"Expected (?P<words>[^`]+)")
_STEP = re.compile(r"\[[^\]]*\]|[^.\[]+")
_MALFORMED = re.compile(r"JSON is malformed: (?P<words>.+) \(byte (?P<byte>\d+)\)")

_NAMES = {
    "str": "a string",
    "int": "a number",
    "float": "a number with a decimal point",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

_WANTED: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.StructType: "a JSON object",
}


_ITEMS: dict[type[inspect.Type], str] = {
    inspect.StrType: "strings",
    inspect.StructType: "objects",
}


def of_value(error: msgspec.ValidationError, kind: type[Any], *, from_text: bool) -> MarketError:
    """Return the refusal of a value that is not what its field wants.

    Args:
        error: what msgspec says.
        kind: the type of the whole request.
        from_text: whether the request was text alone, as a query is.
    """
    text = str(error)
    located = _PATH.search(text)
    path = located["path"] if located else ""
    text = _PATH.sub("", text)
    missing = _MISSING.fullmatch(text)
    if missing:
        field = f"{path}.{missing['field']}" if path else missing["field"]
        return MarketError(Code.INVALID_FIELD, f"The field {field} is missing.", field=field)
    own, got = _OWN.fullmatch(text), _got(text, from_text=from_text)
    wanted = own["words"] if own else _wanted(_type_at(kind, path))
    words = f"{path or 'The body'} must be {wanted}{got}."
    return MarketError(Code.INVALID_FIELD, words, field=path or None)


def of_syntax(error: Exception, body: bytes) -> MarketError:
    """Return the refusal of a body that is no JSON."""
    if not body.strip():
        return MarketError(Code.INVALID_FIELD, "The body is empty; send a JSON object.")
    malformed = _MALFORMED.fullmatch(str(error))
    if isinstance(error, UnicodeDecodeError):
        words = f"no UTF-8 at byte {error.start}"
    elif isinstance(error, RecursionError):
        words = "it is nested too deeply"
    elif malformed:
        words = f"{malformed['words']} at byte {malformed['byte']}"
    else:
        words = "it ends too early"
    return MarketError(Code.INVALID_FIELD, f"The body is not JSON: {words}.")


def json_name(value: object) -> str:
    """Return what a decoded value was in JSON."""
    names = {str: "str", bool: "bool", list: "array", dict: "object"}
    return _NAMES[names.get(type(value), "null")]


def _got(text: str, *, from_text: bool) -> str:
    choice = _CHOICE.fullmatch(text)
    if choice:
        shown = choice["got"]
        if len(shown) > SHOWN_MAX_CHARACTERS:
            shown = f"{shown[:SHOWN_MAX_CHARACTERS]}…{shown[-1]}"
        return f"; got {shown}"
    length = _LENGTH.fullmatch(text)
    if length:
        shorter = "an empty" if length["bound"] == "1" else "a shorter"
        return f", got {'a longer' if length['end'] == '<' else shorter} one"
    got = _GOT.fullmatch(text)
    if got is None or from_text:
        return ""
    return f", got {_NAMES.get(got['got'], got['got'])}"


def _type_at(kind: type[Any], path: str) -> inspect.Type:
    """Return what is declared at a path such as `items[1].name`."""
    found = plain(inspect.type_info(kind))
    for step in _STEP.findall(path):
        if isinstance(found, inspect.ListType):
            found = found.item_type
        elif isinstance(found, inspect.StructType):
            found = next(field.type for field in found.fields if field.encode_name == step)
        found = plain(found)
    return found


def plain(found: inspect.Type) -> inspect.Type:
    """Return a type without what is said about it, and without that it may be null."""
    while True:
        if isinstance(found, inspect.Metadata):
            found = found.type
        elif isinstance(found, inspect.UnionType):
            found = next(each for each in found.types if not isinstance(each, inspect.NoneType))
        else:
            return found


def _wanted(found: inspect.Type) -> str:
    if isinstance(found, inspect.LiteralType):
        values = sorted(str(value) for value in found.values)
        return f"one of {', '.join(values)}" if len(values) > 1 else values[0]
    if isinstance(found, inspect.IntType):
        return f"a whole number{_range(found)}"
    if isinstance(found, inspect.FloatType):
        return f"a number{_range(found)}"
    if isinstance(found, inspect.StrType):
        return f"a string{_length(found)}"
    if isinstance(found, inspect.ListType):
        return f"a list{_size(found)}"
    return _WANTED.get(type(found), "a number")


def _range(found: inspect.IntType | inspect.FloatType) -> str:
    if found.ge is not None and found.le is not None:
        return f" from {found.ge} to {found.le}"
    if found.gt is not None and found.le is not None:
        return f" above {found.gt} and at most {found.le}"
    return ""


def _size(found: inspect.ListType) -> str:
    if found.max_length is None:
        return ""
    items = _ITEMS.get(type(plain(found.item_type)), "items")
    return f" of {found.min_length or 0} to {found.max_length} {items}"


def _length(found: inspect.StrType) -> str:
    least, most = found.min_length or 0, found.max_length
    if most is None:
        return ""
    return f" of {least} to {most} characters" if least < most else f" of {most} characters"
