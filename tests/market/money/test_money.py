"""Amounts: exact to the millionth, rounded half to even, refused when they are no amounts."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.base.brief import examples
from support.base.cases import cases

from market.money.money import (
    BYTE_DIGITS,
    GB,
    MICRO,
    Currency,
    as_decimal,
    cost,
    earned,
    micro,
    scaled,
)

BIGINT_MAX = 2**63 - 1

sizes = st.integers(0, 10_000 * GB)
prices = st.integers(0, 1_000_000 * MICRO)
amounts = st.decimals(0, 999_999_999_999, allow_nan=False, allow_infinity=False)


def half_even(exact: Fraction) -> int:
    """Round by the definition."""
    whole, rest = divmod(exact.numerator, exact.denominator)
    twice = 2 * rest
    if twice > exact.denominator or (twice == exact.denominator and whole % 2):
        return whole + 1
    return whole


def test_the_currencies_are_two() -> None:
    assert [str(currency) for currency in Currency] == ["usd", "credit"]


@cases(
    ("number", "amount"),
    [
        (0, 0),
        (1, 1_000_000),
        (Decimal("1.0"), 1_000_000),
        (Decimal("0.1"), 100_000),
        (Decimal("0.000001"), 1),
        (Decimal("1E+3"), 1_000_000_000),
        (Decimal("1e-6"), 1),
        (Decimal("-0"), 0),
        (Decimal("-0.0"), 0),
        (Decimal("0E+1000000"), 0),
        (Decimal("0E-1000000"), 0),
        (Decimal("0.30000000000000004"), 300_000),
        (Decimal("0.1") + Decimal("0.2"), 300_000),
        (Decimal(repr(0.1 + 0.2)), 300_000),
        (Decimal("999999999999.999999"), 999_999_999_999_999_999),
        (999_999_999_999, 999_999_999_999_000_000),
    ],
)
def test_a_number_becomes_millionths(number: int | Decimal, amount: int) -> None:
    assert micro(number) == amount
    assert type(micro(number)) is int


@cases(
    ("text", "amount"),
    [
        ("0.0000005", 0),
        ("0.00000050000000001", 1),
        ("0.0000015", 2),
        ("0.0000025", 2),
        ("0.0000025000000000000000001", 3),
        ("0.0000024999999999999999999", 2),
        ("0.0000035", 4),
        ("0.0000004999999999999999999", 0),
        ("0.00000049", 0),
        ("0.0000009", 1),
        ("0.9999995", 1_000_000),
        ("0.9999994", 999_999),
        ("0.0000001", 0),
        ("1e-7", 0),
        ("9e-7", 1),
        ("5e-8", 0),
        ("1e-999999999999999999", 0),
    ],
)
def test_the_seventh_decimal_is_rounded_half_to_even(text: str, amount: int) -> None:
    assert micro(Decimal(text)) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0.0000005" + "0" * 30 + "1", 1),
        ("123456789012.0000005" + "0" * 12 + "1", 123_456_789_012_000_001),
        ("0.0000015" + "0" * 1000 + "1", 2),
        ("0.0000014" + "9" * 1000, 1),
        ("0.0000024" + "9" * 40, 2),
        ("0.0000034" + "9" * 40, 3),
    ],
    ids=["above", "above and large", "far above", "far below", "below even", "below odd"],
)
def test_digits_far_behind_the_half_still_count(text: str, amount: int) -> None:
    assert micro(Decimal(text)) == amount == half_even(Fraction(text) * MICRO)


@cases(
    "number",
    [
        Decimal("NaN"),
        Decimal("-NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("-Infinity"),
        Decimal("-0.000001"),
        Decimal("-1e-30"),
        -1,
        Decimal("-1e400"),
    ],
)
def test_a_text_that_is_no_amount_is_refused(number: int | Decimal) -> None:
    with pytest.raises(ValueError, match="not negative"):
        micro(number)


@pytest.mark.parametrize(
    "number",
    [
        10**12,
        Decimal("1e12"),
        Decimal("1e400"),
        Decimal("1e999999"),
        Decimal("1e999999999999999999"),
        10**5000,
        Decimal("9" * 5000),
    ],
    ids=lambda number: f"1e{Decimal(number).adjusted()}",
)
def test_an_amount_beyond_any_sum_is_refused(number: int | Decimal) -> None:
    with pytest.raises(ValueError, match="smaller"):
        micro(number)


def test_the_largest_amount_fits_a_column() -> None:
    assert micro(Decimal("999999999999.9999999")) <= BIGINT_MAX
    assert scaled(Decimal("999999999.9999999999"), BYTE_DIGITS) <= BIGINT_MAX


@cases(
    ("number", "size"),
    [
        (1, GB),
        (Decimal("0.000000001"), 1),
        (Decimal("1.5"), 1_500_000_000),
        (Decimal("0.0000000005"), 0),
        (Decimal("0.0000000015"), 2),
        (10_000, 10_000 * GB),
    ],
)
def test_a_size_is_exact_to_the_byte(number: int | Decimal, size: int) -> None:
    assert scaled(number, BYTE_DIGITS) == size


@settings(max_examples=examples(500), deadline=None)
@given(amounts)
@example(Decimal("0.0000005000000000000000000000000000001"))
def test_scaling_has_the_result_of_fractions(number: Decimal) -> None:
    assert micro(number) == half_even(Fraction(number) * MICRO)


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(0, 10**18 - 1))
def test_every_amount_comes_back_from_its_decimal(amount: int) -> None:
    assert micro(Decimal(amount).scaleb(-6)) == amount


@settings(max_examples=examples(500), deadline=None)
@given(st.floats(0, 1e9))
def test_the_shortest_decimal_of_a_float_is_off_by_half_a_millionth_at_most(number: float) -> None:
    text = repr(number)
    assert abs(Fraction(micro(Decimal(text))) - Fraction(text) * MICRO) <= Fraction(1, 2)


@settings(max_examples=examples(500), deadline=None)
@given(sizes, prices)
def test_cost_is_exact_and_rounded_up(size: int, price: int) -> None:
    exact = Fraction(size * price, GB)
    assert 0 <= cost(size, price) - exact < 1
    assert type(cost(size, price)) is int


@settings(max_examples=examples(500), deadline=None)
@given(sizes, prices)
def test_earnings_are_exact_and_rounded_down(size: int, price: int) -> None:
    exact = Fraction(size * price, GB)
    assert 0 <= exact - earned(size, price) < 1
    assert type(earned(size, price)) is int


@settings(max_examples=examples(500), deadline=None)
@given(sizes, sizes, prices)
def test_the_held_amount_covers_any_use(quota: int, used: int, price: int) -> None:
    used = min(used, quota)
    assert earned(used, price) <= earned(quota, price) <= cost(quota, price)
    assert cost(quota, price) - earned(quota, price) <= 1


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(sizes, max_size=10), prices)
def test_parts_never_earn_more_than_the_whole(parts: list[int], price: int) -> None:
    assert sum(earned(part, price) for part in parts) <= earned(sum(parts), price)


def test_one_byte_of_a_cheap_session_still_costs() -> None:
    assert cost(1, 1) == 1
    assert earned(1, 1) == 0
    assert cost(0, MICRO) == earned(0, MICRO) == 0
    assert cost(GB, MICRO) == earned(GB, MICRO) == MICRO


@cases(
    ("amount", "text"),
    [
        (0, "0.00"),
        (1, "0.000001"),
        (10, "0.00001"),
        (100_000, "0.10"),
        (1_000_000, "1.00"),
        (1_234_567, "1.234567"),
        (-1, "-0.000001"),
        (-1_500_000, "-1.50"),
        (10**18, "1000000000000.00"),
    ],
)
def test_an_amount_is_shown_with_two_decimals_and_none_lost(amount: int, text: str) -> None:
    assert as_decimal(amount) == text


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(-(10**18), 10**18))
def test_the_shown_number_is_the_amount(amount: int) -> None:
    assert Fraction(as_decimal(amount)) * MICRO == amount
