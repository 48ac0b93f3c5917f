"""The header Prefer (RFC 7240): a client may want unknown fields refused instead of ignored."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct, inspect

from api.http.validation_messages import plain, type_info
from market.base.errors import Code, MarketError

HEADER = "Prefer"
APPLIED_HEADER = "Preference-Applied"
SHOWN_MAX_CHARACTERS = 40
# A server may ignore any preference (RFC 7240, section 2); no honest header is that long.
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
    """Handling of fields and parameters that a path does not have."""

    UNSPECIFIED = ""
    LENIENT = "lenient"
    STRICT = "strict"


def handling(lines: Sequence[str], max_characters: int = PREFER_MAX_CHARACTERS) -> Handling:
    """Return the handling that a client prefers; anything else in the header is ignored.

    Of a preference that is there more than once, the first counts (RFC 7240, section 2).

    Args:
        lines: every Prefer line of the request, in order.
        max_characters: a longer header is ignored whole.
    """
    if not lines:
        return Handling.UNSPECIFIED
    text = ",".join(lines)
    if len(text) > max_characters:
        return Handling.UNSPECIFIED
    for element in _ELEMENT.findall(text):
        match = _PREFERENCE.fullmatch(element.strip())
        if match is None or match["name"].lower() != "handling":
            continue
        value = match["value"] or ""
        if value.startswith('"'):
            value = _ESCAPED.sub(r"\1", value[1:-1])
        known = {each.value: each for each in Handling}
        return known.get(value.lower(), Handling.UNSPECIFIED)
    return Handling.UNSPECIFIED


def check_names(names: Iterable[str], kind: type[Struct]) -> None:
    """Refuse names that a query, or a form, does not have.

    Raises:
        MarketError: `unknown_field`.
    """
    known = [each.encode_name for each in msgspec.structs.fields(kind)]
    for name in names:
        if name not in known:
            raise _unknown(name, "", known)


def check_body(body: bytes, kind: type[Struct], fixed: Mapping[str, str]) -> None:
    """Refuse a JSON body with an unknown field, at any depth.

    A body that is no JSON, or has a field twice, passes: the decoder refuses it.

    Args:
        body: the JSON.
        kind: the type that it should have.
        fixed: see `Route.fixed`.

    Raises:
        MarketError: `unknown_field`; `payload_invalid`, of one that is fixed.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        for name in value:
            if name in fixed:
                raise MarketError(Code.PAYLOAD_INVALID, fixed[name], field=name)
    _check(value, type_info(kind), "")


def _check(value: Any, kind: inspect.Type, path: str) -> None:  # noqa: ANN401 - JSON of any kind
    kind = plain(kind)
    if isinstance(kind, (inspect.StructType, inspect.DataclassType)) and isinstance(value, dict):
        fields = {each.encode_name: each.type for each in kind.fields}
        for name, member in value.items():
            if name not in fields:
                raise _unknown(name, path, list(fields), _inside(name, fields))
            _check(member, fields[name], f"{path}{name}.")
    elif isinstance(kind, (inspect.ListType, inspect.VarTupleType)) and isinstance(value, list):
        for number, item in enumerate(value):
            _check(item, kind.item_type, f"{path.removesuffix('.')}[{number}].")


def _inside(name: str, fields: Mapping[str, inspect.Type]) -> list[str]:
    """Return the right place of a name that is one level too high, as `strategy.auto_revert`."""
    return [
        f"{field}.{name}"
        for field, kind in fields.items()
        for inner in (plain(kind),)
        if isinstance(inner, (inspect.StructType, inspect.DataclassType))
        and name in {each.encode_name for each in inner.fields}
    ]


def _unknown(name: str, path: str, known: Sequence[str], inside: Sequence[str] = ()) -> MarketError:
    """Return the refusal of a name, with where it belongs, or the field that is most like it."""
    quoted = _quoted(name)
    message = f"There is no field {path}{quoted} here"
    similar = inside or get_close_matches(name[: 2 * SHOWN_MAX_CHARACTERS], known, n=1)
    message += f"; did you mean {path}{similar[0]}?" if similar else "."
    return MarketError(Code.UNKNOWN_FIELD, message, field=f"{path}{quoted}")


def _quoted(name: str) -> str:
    """Return a name as an answer quotes it: bounded, and always Unicode."""
    quoted = name if len(name) <= SHOWN_MAX_CHARACTERS else name[:SHOWN_MAX_CHARACTERS] + "…"
    return quoted.encode(errors="replace").decode()  # a query or JSON may hold lone surrogates
