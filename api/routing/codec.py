"""JSON in and out: typed requests, exact numbers, and errors that name the field."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec

from api.http import validation_messages
from market.base.errors import Code, MarketError
from market.money.money import BYTE_DIGITS, MICRO, MICRO_DIGITS, scaled

_Body = TypeVar("_Body", bound=msgspec.Struct)

NUL = rb"\u0000"
BACKSLASH = rb"\\"  # as JSON writes one
QUOTE = rb"\""
# Reading a smaller body takes milliseconds, for any content.
COUNTED_FROM_BYTES = 64 * 1024
# Of a larger body: far more than any path takes. Each object takes a microsecond or two.
OBJECTS_MAX = 5_000
TEXTS_MAX = 50_000
LISTS_MAX = 20_000
VALUES_MAX = 100_000
# The character that begins or separates each kind of part, and the largest number of it.
_PARTS = ((b"{", OBJECTS_MAX, "objects"), (b"[", LISTS_MAX, "lists"), (b",", VALUES_MAX, "values"))
NAME_SHOWN_CHARACTERS = 64  # of a field that no type knows
_WHOLE = re.compile(r"-?[0-9]+")


class Money(int):
    """An amount in micro-units; in JSON a number in the unit itself."""

    __slots__ = ()


class Directed(Money):
    """An amount as `Money`, beside a field `direction`, which is "add" or "take"."""

    __slots__ = ()


class Size(int):
    """A size in bytes; in JSON a number of GB (10^9 bytes)."""

    __slots__ = ()


class File(bytes):
    """The content of a file; a field of a multipart form, never of JSON."""

    __slots__ = ()


_DIGITS: dict[type[int], int] = {
    Money: MICRO_DIGITS,
    Directed: MICRO_DIGITS,
    Size: BYTE_DIGITS,
}
NEGATIVE = 'Expected a number that is not negative; to take money, send "direction": "take"'


class Decoder(Generic[_Body]):
    """Reads JSON bodies of one type."""

    def __init__(self, kind: type[_Body]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind, dec_hook=_number, float_hook=_decimal)

    def decode(self, body: bytes) -> _Body:
        """Return the body as its type.

        Raises:
            MarketError: `invalid_field`, naming the field where there is one to blame.
        """
        try:
            text = body.decode()  # also the ignored parts: a body that is no UTF-8 is no JSON
            if NUL in body and NUL in body.replace(BACKSLASH, b"  "):
                raise MarketError(Code.INVALID_FIELD, "A text contains the character U+0000.")
            decoded = self._decoder.decode(body)
            _NAMES.decode(text)  # readers differ about an object that has a field twice
        except msgspec.ValidationError as error:
            raise validation_messages.of_value(error, self._kind, from_text=False) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise validation_messages.of_syntax(error, body) from error
        return decoded


def _once(pairs: list[tuple[str, object]]) -> None:
    """Check the fields of one object."""
    names = set()
    for name, _ in pairs:
        if name in names:
            shown = name[:NAME_SHOWN_CHARACTERS]
            message = f"The field {shown} is there twice."
            raise MarketError(Code.INVALID_FIELD, message, field=shown)
        names.add(name)


# It converts no number.
_NAMES = json.JSONDecoder(object_pairs_hook=_once, parse_int=len, parse_float=len)


def check_number(body: bytes) -> None:
    """Check that reading the objects, lists and texts of a body takes some milliseconds at most.

    Brackets and commas in texts do not count.

    Raises:
        MarketError: `invalid_field`.
    """
    if len(body) <= COUNTED_FROM_BYTES:
        return
    if body.count(b'"') > 2 * TEXTS_MAX:
        message = f"The body has more than {TEXTS_MAX} texts, or quotation marks in them."
        raise MarketError(Code.INVALID_FIELD, message)
    many = [(mark, most, name) for mark, most, name in _PARTS if body.count(mark) > most]
    if not many:
        return
    outside = b"".join(body.replace(BACKSLASH, b"").replace(QUOTE, b"").split(b'"')[::2])
    for mark, most, name in many:
        if outside.count(mark) > most:
            raise MarketError(Code.INVALID_FIELD, f"The body has more than {most} {name}.")


def convert_query(query: Mapping[str, str | File], kind: type[_Body]) -> _Body:
    """Return query parameters, or the fields of a form, as their type.

    Raises as `Decoder.decode`.
    """
    for name, value in query.items():
        if isinstance(value, str) and "\0" in value:
            message = f"The parameter {name} contains the character U+0000."
            raise MarketError(Code.INVALID_FIELD, message, field=name)
    for field in _whole_numbers(kind):
        number = query.get(field)
        if isinstance(number, str) and not _WHOLE.fullmatch(number):
            mistyped = msgspec.ValidationError(f"Expected `int`, got `str` - at `$.{field}`")
            raise validation_messages.of_value(mistyped, kind, from_text=True)
    try:
        return msgspec.convert(query, kind, strict=False)
    except msgspec.ValidationError as error:
        raise validation_messages.of_value(error, kind, from_text=True) from error


@cache
def _whole_numbers(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields of whole numbers; in text, msgspec would also accept 1e2 for one."""
    return tuple(
        field.name
        for field in msgspec.structs.fields(kind)
        if int in (field.type, *get_args(field.type))
    )


def money(amount: int) -> float:
    """Return micro-units as the number that JSON shows."""
    return amount / MICRO


def _decimal(text: str) -> Decimal:
    """Return a number exactly; NaN when its exponent is too large for `Decimal`."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def _number(kind: type[Any], value: object) -> object:
    """Return an amount or a size; msgspec adds the field's name to the errors raised here."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise ValueError(f"Expected a number, got {validation_messages.json_name(value)}")  # noqa: TRY004
    if isinstance(value, Decimal) and value.is_nan():
        raise ValueError("Expected a number with an exponent of fewer digits")
    if kind is Directed and value < 0:
        raise ValueError(NEGATIVE)
    counted = scaled(value, _DIGITS[kind])
    if counted == 0 and value != 0:
        least = Decimal((0, (1,), -_DIGITS[kind]))
        raise ValueError(f"Expected {'' if kind is Size else '0, or '}at least {least:f}")
    return kind(counted)
