"""Results of strangers, with any content, are compared as their buyer wants."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from market.jobs.comparison import (
    DEPTH_MAX,
    READ_MAX_CHARACTERS,
    Comparison,
    Result,
    agree,
    canonical,
    comparison_of,
    read,
)

EXACT, AS_JSON, CLOSE = (comparison_of(each) for each in ("bytes", "json", "numbers:1e-6"))

number_like = st.sampled_from(
    ["1", "-1", "+1", "0", "-0.0", "1.", ".5", "1e400", "-1e400", "1e-400", "9" * 400, "1e3", "0x1"]
)
texts = st.one_of(
    st.text(max_size=30),
    st.text(alphabet=string.digits + '.eE+- ,[]{}"nNaIif\ud800', max_size=30),
    st.lists(number_like, max_size=6).map(" ".join),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    ).map(json.dumps),
)
results = st.builds(
    Result, texts, st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
)
ways = st.sampled_from([EXACT, AS_JSON, CLOSE])


def same(one: str, other: str, how: Comparison) -> bool:
    return agree(read(Result(one), how), read(Result(other), how), how)


@given(one=results, other=results, how=ways)
def test_every_result_agrees_with_itself_and_both_ways_alike(
    one: Result, other: Result, how: Comparison
) -> None:
    first, second = read(one, how), read(other, how)
    assert agree(first, first, how)
    assert agree(first, read(Result(str(one.text), dict(one.outputs)), how), how)
    assert agree(first, second, how) == agree(second, first, how)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=12,
    )
)
def test_json_agrees_however_it_is_written(value: Any) -> None:
    assert same(json.dumps(value, sort_keys=True), json.dumps(value, indent=3), AS_JSON)
    assert not same(json.dumps(value), json.dumps([value]), AS_JSON)


@given(
    values=st.lists(st.floats(-1e300, 1e300), max_size=6),
    change=st.floats(-0.9e-6, 0.9e-6),
)
def test_numbers_agree_within_the_tolerance(values: list[float], change: float) -> None:
    assert same(repr(values), repr([each * (1 + change) for each in values]), CLOSE)


@given(
    copies=st.integers(1, 5),
    made=st.lists(st.sampled_from(["1", "1.0", "2", "1.0000001", "x"]), max_size=5),
    how=ways,
)
def test_a_majority_is_more_than_half_of_all_copies(
    copies: int, made: list[str], how: Comparison
) -> None:
    readings = [read(Result(text), how) for text in made[:copies]]
    chosen = canonical(readings, how, copies)
    votes = [sum(agree(one, other, how) for other in readings) for one in readings]
    if chosen is None:
        assert all(2 * each <= copies for each in votes)
    else:
        assert 2 * votes[chosen] > copies
        assert votes.index(max(votes)) == chosen


@cases(
    ("one", "other", "expected"),
    [
        ('{"a": 1, "b": [2]}', '{ "b":[2.0],"a":1e0 }', True),
        ("1", "true", False),
        ("0", "false", False),
        ("null", "0", False),
        ("{}", "[]", False),
        ("1", '"1"', False),
        ("0", "-0.0", True),
        ("1e400", "10e399", True),
        ("1e400", "1e401", False),
        ("12345678901234567890", "12345678901234567891", False),
        ("9" * 5_000, "9" * 5_000 + ".0", True),
        ('{"a": 1, "a": 2}', '{"a": 2}', False),
        ('{"a": 1, "a": 2}', '{"a": 1, "a":2}', False),
        ("NaN", "NaN ", False),
        ("1e99999999999999999999", "10e99999999999999999998", False),
        ('"\\u00e9"', '"é"', True),
        ('"\\ud800"', '"\\uD800"', True),
        ("[" * 90 + "]" * 90, " " + "[" * 90 + "]" * 90, True),
        ("[" * (DEPTH_MAX + 2) + "]" * (DEPTH_MAX + 2), " " + "[" * 102 + "]" * 102, False),
        ("[" * 10_000, "[" * 10_000 + " ", False),
        ("", " ", False),
    ],
)
def test_json_is_compared_by_its_meaning(one: str, other: str, expected: bool) -> None:
    assert same(one, other, AS_JSON) is expected


@cases(
    ("one", "other", "expected"),
    [
        ("loss 0.1234567, 3 epochs", "loss 0.12345671,  3 epochs\n", True),
        ("loss 0.123", "loss 0.124", False),
        ("loss 0.123", "gain 0.123", False),
        ("1 2", "1 2 3", False),
        ("a1", "a 1", False),
        ("0", "1e-13", True),
        ("0", "1e-9", False),
        ("1e-9", "2e-9", False),
        ("1e400", "1e400 ", True),
        ("1e400", "1e401", False),
        ("1e308", "-1e308", False),
        ("nan", "nan\n", True),
        ("nan", "inf", False),
        ("-0.0", "0", True),
        ("1000000", "1000001", True),
        ("1000000", "1000002", False),
        ("x", "y", False),
    ],
)
def test_numbers_are_compared_by_their_size(one: str, other: str, expected: bool) -> None:
    assert same(one, other, CLOSE) is expected


def test_outputs_must_be_the_same_however_texts_are_compared() -> None:
    for how in (EXACT, AS_JSON, CLOSE):
        readings = [
            read(Result("1", {"out": "a"}), how),
            read(Result("1", {"out": "b"}), how),
            read(Result("1", {"out": "a", "more": "b"}), how),
            read(Result("1"), how),
        ]
        assert [agree(readings[0], each, how) for each in readings] == [True, False, False, False]


def test_bytes_are_compared_as_they_are() -> None:
    assert same("1\n", "1\n", EXACT)
    assert not same("1\n", "1", EXACT)
    assert not same("1.0", "1", EXACT)


def test_a_text_that_is_too_long_is_compared_as_it_is() -> None:
    text = "1" + " " * READ_MAX_CHARACTERS
    for how in (AS_JSON, CLOSE):
        assert same(text, text, how)
        assert not same(text, text + " ", how)


@cases("text", ["bytes", "json", "numbers:1e-6", "numbers:0.1", "numbers:0.05"])
def test_ways_to_compare_have_names(text: str) -> None:
    assert comparison_of(text).kind == text.partition(":")[0]


@cases(
    "text",
    [
        "", "byte", "Bytes", "json ", "numbers", "numbers:", "numbers:0", "numbers:1",
        "numbers:0.2", "numbers:1e-13", "numbers:-1e-6", "numbers:nan", "numbers:1e99",
        "numbers:1e-6\n", "numbers:1_0e-6", "numbers:\u0661e-6",
    ],
)  # fmt: skip
def test_other_names_are_refused_with_the_allowed_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"numbers:1e-6"):
        comparison_of(text)


@pytest.mark.parametrize(
    "text",
    ['"' * 20_000, '"\\' * 10_000, "1 " * 10_000, "1" * 20_000, "[" * 20_000, "-." * 10_000,
     '{"a":' * 4_000, "1e" * 10_000, " " * 20_000],
)  # fmt: skip
@pytest.mark.timeout(20)  # it takes hundredths of a second, and a quadratic algorithm minutes
def test_hostile_results_are_read_in_bounded_time(text: str) -> None:
    for how in (AS_JSON, CLOSE):
        readings = [read(Result(text), how) for _ in range(5)]
        assert canonical(readings, how, 5) == 0
