"""What a client prefers (RFC 7240): that fields nobody knows are refused instead of ignored."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct, inspect

from api.validation_messages import plain
from market.errors import Code, MarketError

HEADER = "Prefer"
APPLIED_HEADER = "Preference-Applied"
SHOWN_MAX_CHARACTERS = 40
# A preference may always be ignored (RFC 7240, section 2), and nobody has so many.
PREFER_MAX_CHARACTERS = 1024

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - a token of HTTP
_QUOTED = r'"(?:[^"\\]|\\.)*"'
# A quotation that is never closed reaches to the end: to try again behind each of its quotation
# marks would take the square of its length.
_ELEMENT = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.?)*"?)+', re.DOTALL)
_PREFERENCE = re.compile(
    rf"(?P<name>{_TOKEN})(?:\s*=\s*(?P<value>{_TOKEN}|{_QUOTED}))?\s*(?:;.*)?", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)")


class Handling(Enum):
    """What becomes of fields and parameters that a path does not know."""

    UNSAID = ""
    LENIENT = "lenient"
    STRICT = "strict"


def handling(lines: Sequence[str]) -> Handling:
    """Return which handling a client prefers; other preferences and what is none are ignored.

    Of a preference that is there more than once the first counts (RFC 7240, section 2).

    Args:
        lines: every Prefer line of the request, in order.
    """
    said = ",".join(lines)
    if len(said) > PREFER_MAX_CHARACTERS:
        return Handling.UNSAID
    for element in _ELEMENT.findall(said):
        found = _PREFERENCE.fullmatch(element.strip())
        if found is None or found["name"].lower() != "handling":
            continue
        value = found["value"] or ""
        if value.startswith('"'):
            value = _ESCAPED.sub(r"\1", value[1:-1])
        known = {each.value: each for each in Handling}
        return known.get(value.lower(), Handling.UNSAID)
    return Handling.UNSAID


def check_names(names: Iterable[str], kind: type[Struct]) -> None:
    """Refuse names that a query, or a form, does not know.

    Raises:
        MarketError: `unknown_field`.
    """
    known = [each.encode_name for each in msgspec.structs.fields(kind)]
    for name in names:
        if name not in known:
            raise _unknown(name, "", known)


def check_body(body: bytes, kind: type[Struct]) -> None:
    """Refuse a JSON body with a field that its type does not know, at any depth, or has twice.

    What is no JSON is left to whoever reads it.

    Raises:
        MarketError: `unknown_field`; `invalid_field`, of a field that is there twice.
    """
    try:
        found = json.loads(body, object_pairs_hook=_fields)
    except (ValueError, RecursionError):
        return
    _check(found, inspect.type_info(kind), "")


def _fields(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object, each of which is there once (RFC 8259, section 4)."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = Counter(name for name, _ in pairs)
        name = _shown(next(name for name, count in names.items() if count > 1))
        raise MarketError(Code.INVALID_FIELD, f"The field {name} is there twice.", field=name)
    return fields


def _check(found: Any, kind: inspect.Type, path: str) -> None:  # noqa: ANN401 - JSON of any kind
    kind = plain(kind)
    if isinstance(kind, inspect.StructType) and isinstance(found, dict):
        fields = {each.encode_name: each.type for each in kind.fields}
        for name, value in found.items():
            if name not in fields:
                raise _unknown(name, path, list(fields))
            _check(value, fields[name], f"{path}{name}.")
    elif isinstance(kind, inspect.ListType) and isinstance(found, list):
        for number, item in enumerate(found):
            _check(item, kind.item_type, f"{path.removesuffix('.')}[{number}].")


def _unknown(name: str, path: str, known: Sequence[str]) -> MarketError:
    """Return the refusal of a name, with the known one that is most like it."""
    shown = _shown(name)
    words = f"There is no field {path}{shown} here"
    like = get_close_matches(name[: 2 * SHOWN_MAX_CHARACTERS], known, n=1)
    words += f"; is it {path}{like[0]} that was meant?" if like else "."
    return MarketError(Code.UNKNOWN_FIELD, words, field=f"{path}{shown}")


def _shown(name: str) -> str:
    """Return a name as it is repeated in an answer."""
    shown = name if len(name) <= SHOWN_MAX_CHARACTERS else name[:SHOWN_MAX_CHARACTERS] + "…"
    return shown.encode(errors="replace").decode()  # a query, and JSON, can be no Unicode
