"""The largest body of a type is room for everything its fields can hold, and no more than that."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from support.base.cases import cases

from api.http.sizes import KIB, LEAST_BYTES, largest

CHARACTERS = 100_000
ITEMS = 5_000

Text = Annotated[str, Meta(max_length=CHARACTERS)]
Items = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=ITEMS)]


class Small(Struct):
    name: str
    kind: Literal["a", "b"]
    size: int


class Large(Struct):
    text: Text
    more: Text | None = None


class Listed(Struct):
    items: Items


class Fixed(Struct):
    items: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=ITEMS)]


class Nested(Struct):
    inner: Large


class Endless(Struct):
    items: list[str]


class Anything(Struct):
    text: Text
    about: dict[str, Any]


def test_a_small_answer_has_room_for_the_name_of_the_field_that_is_too_long() -> None:
    assert largest(Small) == LEAST_BYTES


@cases(
    "body",
    [
        Large("\N{GRINNING FACE}" * CHARACTERS, "x" * CHARACTERS),
        Listed(["\N{GRINNING FACE}" * 64] * ITEMS),
        Fixed(("\N{GRINNING FACE}" * 64,) * ITEMS),
        Nested(Large("x" * CHARACTERS, "y" * CHARACTERS)),
    ],
)
def test_any_value_of_the_fields_fits(body: Struct) -> None:
    most = largest(type(body))
    assert most is not None
    assert len(msgspec.json.encode(body)) <= most
    assert most % KIB == 0


def test_text_may_be_escaped_to_the_last_character() -> None:
    body = '{"text": "' + "\\u0041" * CHARACTERS + '", "more": null}'
    assert len(msgspec.json.decode(body, type=Large).text) == CHARACTERS
    assert len(body) <= (largest(Large) or 0) < 3 * len(body)


@cases("kind", [Endless, Anything])
def test_a_type_without_an_end_has_no_largest_body(kind: type[Struct]) -> None:
    assert largest(kind) is None
