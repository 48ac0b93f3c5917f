"""Comparison of results of the same work, and choice of the result with the most agreement. Pure.

Strangers write the results. The comparison takes bounded time for any text, and a result always
agrees with a result with the same text and the same outputs.
"""

import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from itertools import combinations
from typing import Final, NoReturn

from msgspec import Struct

BYTES: Final = "bytes"
JSON: Final = "json"
NUMBERS: Final = "numbers"
# With less, different roundings of one sum disagree; with more, a guess may agree.
TOLERANCE_MIN = 1e-12
TOLERANCE_MAX = 0.1
# Longer ones are compared as they are. As long as a device's report of its result may be.
READ_MAX_CHARACTERS = 20_000
# JSON that is nested deeper is compared as it is: it is walked by recursion.
DEPTH_MAX = 100

_TOLERANCE = re.compile(r"numbers:([0-9]{1,3}(?:\.[0-9]{1,12})?(?:e-?[0-9]{1,2})?)")
_NUMBER = re.compile(r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")
_SPACE = re.compile(r"\s+")


class Comparison(Struct, frozen=True):
    """Rule for the comparison of results.

    `kind` is `bytes`, `json` or `numbers`. With `numbers`, numbers may differ by `tolerance`.
    """

    kind: str = BYTES
    tolerance: float = 0.0


class Result(Struct, frozen=True):
    """Result of a job: its text, and the SHA-256 of each of its outputs by name."""

    text: str
    outputs: Mapping[str, str] = {}


class Reading(Struct, frozen=True):
    """A result, read for a comparison.

    Attributes:
        value: the JSON value; None where the result is not, or cannot be, compared as JSON.
        words: the text between numbers, if numbers are compared.
        numbers: the numbers as written, one fewer than words.
        values: the values of these numbers.
    """

    result: Result
    value: Hashable = None
    words: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    values: tuple[float, ...] = ()


def comparison_of(text: str) -> Comparison:
    """Return the comparison that `bytes`, `json` or `numbers:1e-6` names.

    Raises:
        ValueError: the text names none; the message has the valid forms.
    """
    if text in (BYTES, JSON):
        return Comparison(text)
    tolerance = _TOLERANCE.fullmatch(text)
    if tolerance is not None and TOLERANCE_MIN <= float(tolerance[1]) <= TOLERANCE_MAX:
        return Comparison(NUMBERS, float(tolerance[1]))
    message = (
        f"It must be bytes, json, or numbers: and a tolerance from {TOLERANCE_MIN:g} to "
        f"{TOLERANCE_MAX:g}, such as numbers:1e-6."
    )
    raise ValueError(message)


def read(result: Result, how: Comparison) -> Reading:
    """Parse a result once, for any number of comparisons."""
    if len(result.text) > READ_MAX_CHARACTERS or how.kind == BYTES:
        return Reading(result)
    if how.kind == JSON:
        return Reading(result, value=_json_value(result.text))
    parts = _NUMBER.split(result.text.strip())
    words = tuple(_SPACE.sub(" ", part) for part in parts[::2])
    numbers = tuple(parts[1::2])
    return Reading(result, words=words, numbers=numbers, values=tuple(map(float, numbers)))


def agree(one: Reading, other: Reading, how: Comparison) -> bool:
    """Return whether two results are the same; both must be parsed for this comparison.

    Their outputs must be the same in any case. Numbers agree if they differ by no more than the
    tolerance times the larger of them, or, near zero, than the square of the tolerance.
    """
    if one.result.outputs != other.result.outputs:
        return False
    if one.result.text == other.result.text:
        return True
    if how.kind == JSON:
        return one.value is not None and one.value == other.value
    if how.kind == NUMBERS:
        return bool(one.words) and one.words == other.words and _are_close(one, other, how)
    return False


def canonical(readings: Sequence[Reading], how: Comparison, copies: int) -> int | None:
    """Return the index of the result that more than half of all copies agree with, or None.

    With a tolerance several results can have such a majority. The result with the most agreement
    wins, and of equal ones the first.

    Args:
        readings: the results that have arrived, parsed for this comparison.
        how: the rule of the comparison.
        copies: the number of copies that the buyer ordered.
    """
    supporters = [1] * len(readings)  # each agrees with itself
    for one, other in combinations(range(len(readings)), 2):
        if agree(readings[one], readings[other], how):
            supporters[one] += 1
            supporters[other] += 1
    most = max(supporters, default=0)
    return supporters.index(most) if most > copies // 2 else None


def _are_close(one: Reading, other: Reading, how: Comparison) -> bool:
    """Return whether numbers differ at most by the tolerance; overlarge ones always differ."""
    tolerance, least = how.tolerance, how.tolerance * how.tolerance
    for at, (first, second) in enumerate(zip(one.values, other.values, strict=True)):
        if math.isinf(first) or math.isinf(second):
            if one.numbers[at] != other.numbers[at]:
                return False
        elif abs(first - second) > max(tolerance * max(abs(first), abs(second)), least):
            return False
    return True


def _json_value(text: str) -> Hashable:
    """Return the JSON value so that equal values are equal, or None for text that is no valid JSON.

    Two members of the same name are ambiguous, and NaN and Infinity are not JSON (RFC 8259).
    """
    try:
        value = json.loads(
            text,
            parse_int=Decimal,
            parse_float=Decimal,
            parse_constant=_refuse,
            object_pairs_hook=_members,
        )
        return _comparable(value, DEPTH_MAX)
    except (ValueError, ArithmeticError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("two members have the same name")
    return members


def _comparable(value: object, depth: int) -> Hashable:
    """Return a value of JSON with its kind beside it: true is not 1, and {} is not []."""
    if depth < 0:
        raise ValueError("it is nested too deep")
    if isinstance(value, dict):
        items = sorted(value.items())
        return ("object", tuple((name, _comparable(each, depth - 1)) for name, each in items))
    if isinstance(value, list):
        return ("array", tuple(_comparable(each, depth - 1) for each in value))
    return (type(value).__name__, value)
