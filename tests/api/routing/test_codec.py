"""JSON in and out: exact numbers, and errors that name the field."""

import re
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.base.brief import examples
from support.base.cases import cases
from support.base.cost import seconds_of

from api.routing.codec import (
    LISTS_MAX,
    OBJECTS_MAX,
    TEXTS_MAX,
    VALUES_MAX,
    Decoder,
    Money,
    Size,
    check_number,
    convert_query,
    money,
)
from market.base.errors import Code, MarketError


class Inner(msgspec.Struct):
    """Something nested."""

    name: str
    count: int = 0


class Colour(StrEnum):
    """Two values that are an enumeration, and no literals."""

    RED = "red"
    BLUE = "blue"


class Everything(msgspec.Struct):
    """A body with a field of every kind; all may be absent but one."""

    text: str
    price: Money | None = None
    size: Size | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    ratio: float = 0.0
    part: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    short: Annotated[str, msgspec.Meta(min_length=1, max_length=5)] = "x"
    exact: Annotated[str, msgspec.Meta(min_length=4, max_length=4)] = "abcd"
    flag: bool = False
    word: Literal["one", "two"] = "one"
    inner: Inner | None = None
    items: list[Inner] = []
    note: str | None = None
    colour: Colour = Colour.RED
    colours: list[Colour] = []
    until: datetime | None = None


class Page(msgspec.Struct):
    """Query parameters."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    status: Literal["active", "all"] = "active"
    cursor: str = ""
    state: Literal["", "open", "paid"] = ""


EVERYTHING = Decoder(Everything)


def body(**fields: str) -> bytes:
    """Return a body with these fields, each written as JSON; `text` is there by itself."""
    fields.setdefault("text", '"x"')
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()


def refusal_of(data: bytes) -> MarketError | None:
    """Return the refusal of a body, or None."""
    try:
        EVERYTHING.decode(data)
    except MarketError as error:
        return error
    return None


def refused(data: bytes) -> MarketError:
    """Return the refusal of a body."""
    with pytest.raises(MarketError) as caught:
        EVERYTHING.decode(data)
    assert caught.value.code is Code.INVALID_FIELD
    return caught.value


# --- valid bodies -----------------------------------------------------------------------------


def test_a_body_is_read_as_its_type() -> None:
    read = EVERYTHING.decode(
        b'{"text": "t", "price": 1.5, "size": 2, "count": 3, "ratio": 0.5, "short": "abc",'
        b' "flag": true, "word": "two", "inner": {"name": "n"}, "items": [{"name": "i"}],'
        b' "note": "n"}'
    )
    assert read == Everything(
        text="t",
        price=Money(1_500_000),
        size=Size(2_000_000_000),
        count=3,
        ratio=0.5,
        short="abc",
        flag=True,
        word="two",
        inner=Inner("n"),
        items=[Inner("i")],
        note="n",
    )
    assert type(read.price) is Money
    assert type(read.size) is Size
    assert type(read.ratio) is float


def test_unknown_fields_are_ignored() -> None:
    assert EVERYTHING.decode(body(nosuch="[1, {}]", Price="null")) == Everything("x")


@cases("name", ["price", "size", "inner", "note"])
def test_null_in_an_optional_field_means_absent(name: str) -> None:
    assert EVERYTHING.decode(body(**{name: "null"})) == Everything("x")


@cases("data", [b' {"text":"x"} ', b'\n{"text":"x"}\r\n', b'\t{ "text" : "x" }'])
def test_space_around_a_body_does_not_matter(data: bytes) -> None:
    assert EVERYTHING.decode(data) == Everything("x")


@cases(
    ("written", "amount"),
    [
        ("0", 0),
        ("-0", 0),
        ("-0.0", 0),
        ("1", 1_000_000),
        ("1.0", 1_000_000),
        ("1e0", 1_000_000),
        ("0.1", 100_000),
        ("1e-6", 1),
        ("1E+2", 100_000_000),
        ("0.30000000000000004", 300_000),
        ("0.0000015", 2),
        ("0.00000251", 3),
        ("9007199254740993e-6", 9_007_199_254_740_993),
        ("9007199254.740993", 9_007_199_254_740_993),
        ("999999999999.999999", 999_999_999_999_999_999),
        ("1." + "0" * 5000, 1_000_000),
    ],
)
def test_money_is_exact(written: str, amount: int) -> None:
    assert EVERYTHING.decode(body(price=written)).price == amount


@cases(
    ("written", "size"),
    [
        ("1", 10**9),
        ("0.000000001", 1),
        ("0.1", 100_000_000),
        ("10000", 10_000 * 10**9),
        ("0.123456789", 123_456_789),
        ("123456.123456789", 123_456_123_456_789),
    ],
)
def test_a_size_is_exact_to_the_byte(written: str, size: int) -> None:
    assert EVERYTHING.decode(body(size=written)).size == size


@settings(deadline=None)
@given(st.integers(0, 10**18 - 1))
def test_every_amount_of_money_can_be_written(amount: int) -> None:
    written = f"{Decimal(amount).scaleb(-6):f}"
    assert EVERYTHING.decode(body(price=written)).price == amount


@settings(deadline=None)
@given(st.integers(0, 10**15))
def test_an_amount_that_is_shown_comes_back(amount: int) -> None:
    written = msgspec.json.encode(money(amount)).decode()
    assert EVERYTHING.decode(body(price=written)).price == amount


@cases(
    ("amount", "written"),
    [(0, b"0.0"), (1, b"1e-6"), (300_000, b"0.3"), (1_000_000, b"1.0"), (-1_500_000, b"-1.5")],
)
def test_money_is_shown_as_a_short_number(amount: int, written: bytes) -> None:
    assert Fraction(msgspec.json.encode(money(amount)).decode()) == Fraction(written.decode())
    assert isinstance(money(amount), float)


# --- invalid bodies -----------------------------------------------------------------------------


@cases(
    ("name", "written", "words"),
    [
        ("text", "1", "a string, got a number"),
        ("text", "null", "a string, got null"),
        ("text", "[]", "a string, got a list"),
        ("price", '"1"', "a number, got a string"),
        ("price", "true", "a number, got a boolean"),
        ("price", "[]", "a number, got a list"),
        ("price", "{}", "a number, got an object"),
        ("price", "-1", "a number that is not negative"),
        ("price", "-0.000001", "a number that is not negative"),
        ("price", "-1e-400", "a number that is not negative"),
        ("price", "1e-7", "0, or at least 0.000001"),
        ("price", "0.0000005", "0, or at least 0.000001"),
        ("price", "1e-400", "0, or at least 0.000001"),
        ("price", "1e12", "a smaller number"),
        ("price", "1e400", "a smaller number"),
        ("price", "1e999999999", "a smaller number"),
        ("price", "1e99999999999999999999", "a number with an exponent of fewer digits"),
        ("price", "1e-99999999999999999999", "a number with an exponent of fewer digits"),
        ("price", "9" * 40, "a smaller number"),
        ("price", "9" * 5000, "a number"),
        ("price", "-" + "9" * 40, "a number that is not negative"),
        ("size", "1e9", "a smaller number"),
        ("size", "1e-10", "at least 0.000000001"),
        ("size", '"1 GB"', "a number, got a string"),
        ("count", "0", "a whole number from 1 to 10"),
        ("count", "11", "a whole number from 1 to 10"),
        ("count", "1.0", "a whole number from 1 to 10, got a number with a decimal point"),
        ("count", "1e0", "a whole number from 1 to 10, got a number with a decimal point"),
        ("count", '"1"', "a whole number from 1 to 10, got a string"),
        ("count", "true", "a whole number from 1 to 10, got a boolean"),
        ("count", "null", "a whole number from 1 to 10, got null"),
        ("count", "9" * 40, "a whole number from 1 to 10"),
        ("count", "9" * 5000, "a whole number from 1 to 10"),
        ("ratio", "1e400", "a number"),
        ("ratio", '"1"', "a number, got a string"),
        ("part", "0", "a number above 0 and at most 100"),
        ("part", "101", "a number above 0 and at most 100"),
        ("short", '""', "a string of 1 to 5 characters"),
        ("short", '"abcdef"', "a string of 1 to 5 characters"),
        ("short", "1", "a string of 1 to 5 characters, got a number"),
        ("exact", '"abc"', "a string of 4 characters"),
        ("flag", "1", "true or false, got a number"),
        ("word", '"three"', "one of one, two; got 'three'"),
        ("word", '"it\'s"', 'one of one, two; got "it\'s"'),
        ("word", '"' + "x" * 50 + '"', "one of one, two; got '" + "x" * 39 + "…'"),
        ("word", "3", "one of one, two, got a number"),
        ("note", "1", "a string, got a number"),
        ("colour", '"green"', "one of blue, red; got 'green'"),
        ("colour", "1", "one of blue, red, got a number"),
        ("until", '"2h"', "a time such as 2030-01-31T12:00:00Z"),
        ("until", "1", "a time such as 2030-01-31T12:00:00Z, got a number"),
        ("inner", "[]", "a JSON object, got a list"),
        ("items", "{}", "a list, got an object"),
    ],
)
def test_a_wrong_field_is_named_and_described(name: str, written: str, words: str) -> None:
    error = refused(body(**{name: written}))
    assert error.field == name
    assert error.message == f"{name} must be {words}."


@cases(
    ("name", "written", "field"),
    [
        ("inner", '{"name": 1}', "inner.name"),
        ("inner", '{"name": "n", "count": 1.5}', "inner.count"),
        ("items", '[{"name": "n"}, {"name": 1}]', "items[1].name"),
        ("items", "[1]", "items[0]"),
    ],
)
def test_a_nested_field_is_named_with_its_way(name: str, written: str, field: str) -> None:
    error = refused(body(**{name: written}))
    assert error.field == field
    assert error.message.startswith(f"{field} must be ")


@cases(
    ("data", "field"),
    [
        (b"{}", "text"),
        (b'{"inner": {"name": "n"}}', "text"),
        (b'{"text": "x", "inner": {}}', "inner.name"),
        (b'{"text": "x", "items": [{"name": "n"}, {}]}', "items[1].name"),
    ],
)
def test_a_missing_field_is_named(data: bytes, field: str) -> None:
    error = refused(data)
    assert error.field == field
    assert error.message == f"The field {field} is missing."


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"text": "a", "text": "a"}', "text"),
        (b'{"text": "a", "inner": {"name": "a", "count": 1, "count": 2}}', "count"),
        (b'{"text": "a", "unknown": [{"b": 1}, {"b": 1, "b": 1}]}', "b"),
        (b'{"text": "a", "te\\u0078t": "b"}', "text"),
        (b'{"text": "a", "%b": 1, "%b": 1}' % (b"x" * 70, b"x" * 70), "x" * 64),
    ],
)
def test_a_field_that_is_there_twice_is_refused(data: bytes, field: str) -> None:
    error = refused(data)
    assert error.field == field
    assert error.message == f"The field {field} is there twice."


def test_equal_names_in_different_objects_are_read() -> None:
    data = b'{"text": "text", "inner": {"name": "inner"}, "x": [{"text": 1}, {"text": 2}]}'
    assert EVERYTHING.decode(data).text == "text"
    long = b'{"text": "%b", "n": %b}' % (b"a" * 1_000_000, b"9" * 5_000)
    assert seconds_of(lambda: EVERYTHING.decode(long)) < 0.1


@cases(
    ("data", "kind"),
    [(b"[]", "a list"), (b"null", "null"), (b'"x"', "a string"), (b"1", "a number")],
)
def test_a_body_that_is_no_object_is_refused(data: bytes, kind: str) -> None:
    error = refused(data)
    assert error.field is None
    assert error.message == f"The body must be a JSON object, got {kind}."


@cases("data", [b"", b" ", b"\r\n\t "])
def test_an_empty_body_is_refused(data: bytes) -> None:
    error = refused(data)
    assert (error.field, error.message) == (
        None,
        "The body is empty; send a JSON object.",
    )


@cases(
    "data",
    [
        b"{",
        b'{"text": "x"',
        b'{"text": "x",}',
        b"{'text': 'x'}",
        b'{"text": "x"} {}',
        b'{"text": "x"}]',
        b"text=x",
        b'{"text": NaN}',
        b'{"text": "x", "price": NaN}',
        b'{"text": "x", "price": Infinity}',
        b'{"text": "x", "price": -Infinity}',
        b'{"text": "x", "price": 01}',
        b'{"text": "x", "price": .5}',
        b'{"text": "x", "price": +1}',
        b'{"text": "x", "price": 0x10}',
        b'{"text": "line\nbreak"}',
        b'{"text": "\x00"}',
        b'{"text": "\xff"}',
        b'{"text": "\xed\xa0\x80"}',
        b'{"text": "\\ud800"}',
        b'{"text": "\\x41"}',
        b"\xef\xbb\xbf{}",
        '{"text": "x"}'.encode("utf-16"),
        b"\x00",
        b'{"nosuch": ' + b"[" * 100_000,
        b'{"price": ' + b"[" * 100_000,
        b'{"nosuch": ' * 100_000,
    ],
)
def test_bytes_that_are_not_json_are_refused(data: bytes) -> None:
    error = refused(data)
    assert error.field is None
    assert re.fullmatch(r"The body is not JSON: [^`(]+( at byte \d+)?\.", error.message)


@cases(
    ("data", "words"),
    [
        (b'{"text": nope}', "invalid character at byte 13"),
        (b'{"text": "x"} {}', "trailing characters at byte 15"),
        (b'{"text": "x"', "it ends too early"),
        (b'{"text": "\xff"}', "no UTF-8 at byte 10"),
        (b'{"nosuch": ' * 100_000, "it is nested too deeply"),
    ],
)
def test_bytes_that_are_not_json_are_refused_with_their_place(data: bytes, words: str) -> None:
    assert refused(data).message == f"The body is not JSON: {words}."


@cases(
    "data",
    [
        body(text='"a\\u0000b"'),
        body(note='"\\u0000"'),
        body(text='"\\\\\\u0000"'),
        body(text='"\\\\u0000 \\u0000"'),
    ],
)
def test_the_character_that_no_database_keeps_is_refused(data: bytes) -> None:
    assert "U+0000" in refused(data).message


@cases(
    ("written", "text"),
    [
        ('"\\\\u0000"', "\\u0000"),
        ('"C:\\\\u0000"', "C:\\u0000"),
        ('"\\\\\\\\u0000"', "\\\\u0000"),
        ('"\\\\\\nu0000"', "\\\nu0000"),
    ],
)
def test_a_backslash_before_u0000_is_only_a_backslash(written: str, text: str) -> None:
    assert EVERYTHING.decode(body(text=written)).text == text


def test_a_long_text_with_such_a_backslash_is_looked_through_at_once() -> None:
    data = body(text='"\\\\u0000' + "a" * 1_000_000 + '"')
    assert seconds_of(lambda: EVERYTHING.decode(data)) < 0.02


@cases(
    ("written", "text"),
    [
        ('"größe"', "größe"),
        ('"\\ud83d\\udc34"', "🐴"),
        ('"\\u00e9\\n"', "é\n"),
        ('"\\u0001"', "\x01"),
        ('"a`b"', "a`b"),
    ],
)
def test_any_other_text_is_read_as_it_is(written: str, text: str) -> None:
    assert EVERYTHING.decode(body(text=written)).text == text


@cases("value", ["z - at `$.text`", "`", "$.inner", " - at `$.text"])
def test_a_value_cannot_put_the_blame_on_another_field(value: str) -> None:
    error = refused(body(word=msgspec.json.encode(value).decode()))
    assert error.field == "word"


@settings(deadline=None, max_examples=examples(300))
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode())))
def test_no_bytes_do_anything_but_decode_or_be_refused(data: bytes) -> None:
    refusal = refusal_of(data)
    assert refusal is None or refusal.code is Code.INVALID_FIELD


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
some_fields = st.dictionaries(
    st.sampled_from([field.name for field in msgspec.structs.fields(Everything)]), json_values
)


@settings(deadline=None, max_examples=examples(300))
@given(some_fields)
def test_no_values_do_anything_but_decode_or_be_refused(fields: dict[str, object]) -> None:
    known = {field.name for field in msgspec.structs.fields(Everything)}
    refusal = refusal_of(msgspec.json.encode(fields))
    if refusal is not None:
        assert refusal.code is Code.INVALID_FIELD
        assert refusal.field is None or re.split(r"[.\[]", refusal.field)[0] in known


# --- query parameters --------------------------------------------------------------------------


def test_query_parameters_are_read_from_text() -> None:
    assert convert_query({}, Page) == Page()
    found = convert_query({"limit": "10", "status": "all", "cursor": "c", "other": "x"}, Page)
    assert found == Page(10, "all", "c")


@cases(
    ("name", "text", "words"),
    [
        *(
            ("limit", text, "a whole number from 1 to 1000")
            for text in (
                *("0", "1001", "-1", "ten", "", "1.5", "1e2", "1.0", " 1", "+1", "1_0"),
                *("\u0661", "9" * 40),
            )
        ),
        ("status", "none", "one of active, all; got 'none'"),
        ("status", "", "one of active, all; got ''"),
        ("state", "none", "one of open, paid; got 'none'"),
    ],
)
def test_a_wrong_query_parameter_is_named(name: str, text: str, words: str) -> None:
    with pytest.raises(MarketError) as caught:
        convert_query({name: text}, Page)
    assert caught.value.code is Code.INVALID_FIELD
    assert caught.value.field == name
    assert caught.value.message == f"{name} must be {words}."


def test_a_body_has_a_bounded_number_of_parts() -> None:
    def problem(data: bytes) -> str:
        try:
            check_number(data)
        except MarketError as error:
            return error.message or ""
        return ""

    objects = b"[" + b", ".join([b'{"name": ""}'] * (OBJECTS_MAX + 1)) + b"]"
    assert problem(objects) == "The body has more than 5000 objects."
    texts = b"[" + b",".join([b'""'] * (TEXTS_MAX + 1)) + b"]"
    assert problem(texts) == "The body has more than 50000 texts, or quotation marks in them."
    lists = b"[" + b",  ".join([b"[]"] * LISTS_MAX) + b"]"
    assert problem(lists) == "The body has more than 20000 lists."
    values = b"1," * VALUES_MAX
    assert not problem(b"[" + values + b"1]")
    assert problem(b"[" + values + b"1,1]") == "The body has more than 100000 values."
    # Nothing in a text is a part.
    assert not problem(b'{"script": "' + b"[," * 200_000 + b'"}')
    assert not problem(b'{"script": "' + b"{" * 100_000 + b'"}')
    assert not problem(rb'{"script": "\\\"' + b"{" * 100_000 + rb'\\"}')
    assert problem(b"{" * 100_000)
    assert not problem(b'{"script": "' + b"a" * 1_000_000 + b'"}')


@cases("written", [b"[" * 400 + b"]" * 400 + b",", b"[],", b"1,", b'"",', b'{"a":0},'])
def test_the_largest_body_is_read_at_once(written: bytes) -> None:
    size = 1_048_576
    data = b'{"text": "text", "x": [' + written * (size // len(written)) + b"0]}"

    def read() -> None:
        with suppress(MarketError):
            check_number(data)
            EVERYTHING.decode(data)

    assert seconds_of(read) < 0.03


@cases("written", [b'{"name":""},', b'"",', b"{},", b'{"a":"\\"},', b'"{{{{",', b'""{",'])
def test_the_parts_of_the_largest_body_are_counted_at_once(written: bytes) -> None:
    data = (written * 1_048_576)[:1_048_576]

    def count() -> None:
        with suppress(MarketError):
            check_number(data)

    assert seconds_of(count) < 0.03
