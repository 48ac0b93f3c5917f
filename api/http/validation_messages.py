"""Turns msgspec's messages about Python types into messages about the JSON of a request.

msgspec has no structured errors, so its messages are parsed. They are no promise of its authors:
`tests/api/http/test_validation_messages.py` provokes one message for each pattern below, and fails
on any other release than this one until they have been compared.
"""

import re
from functools import cache

import msgspec
from msgspec import inspect

from market.base.errors import Code, MarketError

COMPARED_VERSION = "0.22.0"
SHOWN_MAX_CHARACTERS = 40  # of a wrong value: enough to recognise it, and short enough for a log

# It takes a millisecond, and a wrong request must not cost more than a right one.
type_info = cache(inspect.type_info)

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

_EXPECTED: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.StructType: "a JSON object",
    inspect.DataclassType: "a JSON object",
    inspect.DictType: "a JSON object",
    inspect.DateTimeType: "a time such as 2030-01-31T12:00:00Z",
}


_ITEMS: dict[type[inspect.Type], str] = {
    inspect.StrType: "strings",
    inspect.StructType: "objects",
    inspect.DataclassType: "objects",
}


def of_value(
    error: msgspec.ValidationError, kind: type[msgspec.Struct], *, from_text: bool
) -> MarketError:
    """Return the refusal of a value that does not fit its field.

    Args:
        error: msgspec's.
        kind: the type of the whole request.
        from_text: whether all values of the request are text, as in a query.
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
    expected = own["words"] if own else _expected(_type_at(kind, path))
    message = f"{path or 'The body'} must be {expected}{got}."
    return MarketError(Code.INVALID_FIELD, message, field=path or None)


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
    """Return the name of a decoded value's JSON type, with an article."""
    names = {str: "str", bool: "bool", list: "array", dict: "object"}
    return _NAMES[names.get(type(value), "null")]


def _got(text: str, *, from_text: bool) -> str:
    choice = _CHOICE.fullmatch(text)
    if choice:
        value = choice["got"]
        if len(value) > SHOWN_MAX_CHARACTERS:
            value = f"{value[:SHOWN_MAX_CHARACTERS]}…{value[-1]}"
        return f"; got {value}"
    length = _LENGTH.fullmatch(text)
    if length:
        shorter = "an empty" if length["bound"] == "1" else "a shorter"
        return f", got {'a longer' if length['end'] == '<' else shorter} one"
    got = _GOT.fullmatch(text)
    if got is None or from_text:
        return ""
    return f", got {_NAMES.get(got['got'], got['got'])}"


def _type_at(kind: type[msgspec.Struct], path: str) -> inspect.Type:
    """Return the declared type at a path such as `items[1].name`."""
    declared = plain(type_info(kind))
    for step in _STEP.findall(path):
        if isinstance(declared, (inspect.ListType, inspect.VarTupleType)):
            declared = declared.item_type
        elif isinstance(declared, inspect.DictType):
            declared = declared.value_type
        elif isinstance(declared, (inspect.StructType, inspect.DataclassType)):
            declared = next(field.type for field in declared.fields if field.encode_name == step)
        declared = plain(declared)
    return declared


def plain(declared: inspect.Type) -> inspect.Type:
    """Return a type without its metadata, and without null."""
    while True:
        if isinstance(declared, inspect.Metadata):
            declared = declared.type
        elif isinstance(declared, inspect.UnionType):
            declared = next(
                each for each in declared.types if not isinstance(each, inspect.NoneType)
            )
        else:
            return declared


def _expected(declared: inspect.Type) -> str:
    if isinstance(declared, (inspect.LiteralType, inspect.EnumType)):
        return _one_of(declared)
    if isinstance(declared, inspect.IntType):
        return f"a whole number{_range(declared)}"
    if isinstance(declared, inspect.FloatType):
        return f"a number{_range(declared)}"
    if isinstance(declared, inspect.StrType):
        return f"a string{_length(declared)}"
    if isinstance(declared, (inspect.ListType, inspect.VarTupleType)):
        return f"a list{_size(declared)}"
    return _EXPECTED.get(type(declared), "a number")


def _one_of(declared: inspect.LiteralType | inspect.EnumType) -> str:
    """Return the permitted values; an empty one stands for an absent value, and has no name."""
    if isinstance(declared, inspect.EnumType):
        names = sorted(str(each.value) for each in declared.cls)
    else:
        names = sorted(str(value) for value in declared.values if value != "")
    return f"one of {', '.join(names)}" if len(names) > 1 else names[0]


def _range(declared: inspect.IntType | inspect.FloatType) -> str:
    if declared.ge is not None and declared.le is not None:
        return f" from {declared.ge} to {declared.le}"
    if declared.gt is not None and declared.le is not None:
        return f" above {declared.gt} and at most {declared.le}"
    if declared.ge is not None:
        return f" of at least {declared.ge}"
    return ""


def _size(declared: inspect.ListType | inspect.VarTupleType) -> str:
    if declared.max_length is None:
        return ""
    items = _ITEMS.get(type(plain(declared.item_type)), "items")
    return f" of {declared.min_length or 0} to {declared.max_length} {items}"


def _length(declared: inspect.StrType) -> str:
    least, most = declared.min_length or 0, declared.max_length
    if most is None:
        return ""
    return f" of {least} to {most} characters" if least < most else f" of {most} characters"
