"""The parsed messages of msgspec are unchanged; `test_codec` has the resulting errors."""

import re
from typing import Annotated, Any, Literal

import msgspec
import pytest
from support.base.cases import cases
from support.base.releases import assert_compared

from api.http import validation_messages
from api.http.validation_messages import COMPARED_VERSION

SHIM = "api/http/validation_messages.py"


class Inner(msgspec.Struct):
    """Something nested."""

    count: int


class Body(msgspec.Struct):
    """A body that each kind of message can be provoked with."""

    text: str
    word: Literal["one", "two"] = "one"
    inner: Inner | None = None
    items: list[Inner] = []
    few: Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)] | None = None
    own: complex = 0j


def own(kind: type[Any], value: object) -> object:
    """Refuse a value in words of our own, as `api.routing.codec` does for amounts."""
    raise ValueError("Expected a number, got nothing")


def message(body: bytes) -> str:
    """Return msgspec's message about a body."""
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body, type=Body, dec_hook=own)
    return str(caught.value)


def test_the_installed_release_is_the_one_that_was_compared() -> None:
    assert_compared("msgspec", COMPARED_VERSION, SHIM)


MESSAGES = [
    ("_PATH", b'{"text": 1}', {"path": "text"}),
    ("_PATH", b'{"text": "x", "items": [{"count": "x"}]}', {"path": "items[0].count"}),
    ("_MISSING", b"{}", {"field": "text"}),
    ("_MISSING", b'{"text": "x", "inner": {}}', {"field": "count"}),
    ("_GOT", b'{"text": 1}', {"got": "int"}),
    ("_GOT", b"[]", {"got": "array"}),
    ("_GOT", b'{"text": "x", "inner": "x"}', {"got": "str"}),
    ("_GOT", b'{"text": null}', {"got": "null"}),
    ("_LENGTH", b'{"text": "x", "few": []}', {"end": ">", "bound": "1"}),
    ("_LENGTH", b'{"text": "x", "few": [1, 2, 3]}', {"end": "<", "bound": "2"}),
    ("_CHOICE", b'{"text": "x", "word": "three"}', {"got": "'three'"}),
    ("_CHOICE", b'{"text": "x", "word": "\\n"}', {"got": r"'\n'"}),
    ("_OWN", b'{"text": "x", "own": 1}', {"words": "a number, got nothing"}),
    ("_MALFORMED", b'{"text": x}', {"words": "invalid character", "byte": "9"}),
]


@cases(("pattern", "body", "parts"), MESSAGES)
def test_a_message_reads_as_its_pattern_expects(
    pattern: str, body: bytes, parts: dict[str, str]
) -> None:
    compiled: re.Pattern[str] = getattr(validation_messages, pattern)
    said = message(body)
    if pattern == "_PATH":
        found = compiled.search(said)
    else:
        found = compiled.fullmatch(validation_messages._PATH.sub("", said))
    assert found is not None, f"msgspec says {said!r}; {SHIM}:{pattern} does not know that"
    assert found.groupdict() == parts


def test_every_pattern_for_a_message_has_been_tried() -> None:
    patterns = {
        name
        for name, value in vars(validation_messages).items()
        if isinstance(value, re.Pattern) and name != "_STEP"  # a path's, which `_PATH` has found
    }
    assert {pattern for pattern, _, _ in MESSAGES} == patterns


def test_a_body_that_ends_too_early_is_not_called_malformed() -> None:
    assert not validation_messages._MALFORMED.fullmatch(message(b'{"text": '))
