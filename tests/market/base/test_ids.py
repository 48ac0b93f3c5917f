"""Identifiers: UUIDs of version 7 that sort by when they were made, and their one spelling."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases
from support.base.clock import Clock

from market.base.ids import Identifiers, parsed

CANONICAL = "0189d2a5-7e3b-7c5a-9f00-0123456789ab"


def milliseconds_of(identifier: str) -> int:
    """Return the time in an identifier."""
    return uuid.UUID(identifier).int >> 80


def test_an_identifier_is_a_uuid_of_version_seven(clock: Clock) -> None:
    identifiers = Identifiers(clock.milliseconds)
    for _ in range(200):
        made = uuid.UUID(identifiers.new())
        assert made.version == 7
        assert made.variant == uuid.RFC_4122


def test_an_identifier_is_lower_case_and_its_own_spelling(clock: Clock) -> None:
    made = Identifiers(clock.milliseconds).new()
    assert made == made.lower()
    assert parsed(made) == made


def test_an_identifier_starts_with_the_time(clock: Clock) -> None:
    assert milliseconds_of(Identifiers(clock.milliseconds).new()) == clock.milliseconds()


def test_identifiers_of_one_moment_sort_in_the_order_they_were_made(clock: Clock) -> None:
    identifiers = Identifiers(clock.milliseconds)
    made = [identifiers.new() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_identifiers_of_later_moments_sort_after_earlier_ones(clock: Clock) -> None:
    identifiers = Identifiers(clock.milliseconds)
    made = []
    for _ in range(100):
        made.append(identifiers.new())
        clock.now += 1
    assert made == sorted(made)
    assert milliseconds_of(made[-1]) == clock.milliseconds() - 1000


def test_identifiers_go_on_sorting_while_the_clock_is_set_back(clock: Clock) -> None:
    identifiers = Identifiers(clock.milliseconds)
    before = [identifiers.new() for _ in range(100)]
    clock.now -= 3600
    after = [identifiers.new() for _ in range(100)]
    assert before + after == sorted(before + after)
    clock.now += 7200
    assert identifiers.new() > after[-1]


def test_two_processes_do_not_make_the_same(clock: Clock) -> None:
    one, other = Identifiers(clock.milliseconds), Identifiers(clock.milliseconds)
    made = {identifiers.new() for _ in range(1000) for identifiers in (one, other)}
    assert len(made) == 2000


def test_identifiers_keep_their_form_and_are_unique_across_many_draws(clock: Clock) -> None:
    """One draw of randomness serves some hundreds of them."""
    identifiers = Identifiers(clock.milliseconds)
    made = []
    for number in range(5_000):
        clock.now += number % 3
        made.append(identifiers.new())
    assert made == sorted(set(made))
    assert all(parsed(each) == each for each in made)
    assert {uuid.UUID(each).version for each in made} == {7}
    tails = [uuid.UUID(each).int & (1 << 62) - 1 for each in made]
    assert len(set(tails)) == len(tails)
    for bit in range(62):  # 0 and 1 are equally frequent, within ten standard deviations
        assert abs(sum(tail >> bit & 1 for tail in tails) - 2_500) < 360


def test_an_identifier_cannot_be_guessed_from_the_one_before(clock: Clock) -> None:
    identifiers = Identifiers(clock.milliseconds)
    tails = {uuid.UUID(identifiers.new()).int & (1 << 62) - 1 for _ in range(1000)}
    assert len(tails) == 1000


@cases("text", [CANONICAL, CANONICAL.upper(), CANONICAL.title()])
def test_a_uuid_in_any_case_has_one_spelling(text: str) -> None:
    assert parsed(text) == CANONICAL


@cases(
    "text",
    [
        "",
        "x",
        CANONICAL[:-1],
        CANONICAL + "0",
        CANONICAL + "\n",
        " " + CANONICAL,
        CANONICAL.replace("-", ""),
        "{" + CANONICAL + "}",
        "urn:uuid:" + CANONICAL,
        CANONICAL.replace("0189", "018-9"),
        CANONICAL.replace("0", "g"),
        CANONICAL.replace("0", "\u0660"),
        CANONICAL.replace("0189", "+189"),
        CANONICAL.replace("0189", "0_89"),
        "\x00" * 36,
        "%00" * 12,
    ],
)
def test_another_spelling_is_no_identifier(text: str) -> None:
    with pytest.raises(ValueError):
        parsed(text)


@given(st.text(max_size=40))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        spelling = parsed(text)
    except ValueError:
        return
    assert spelling == text.lower()
    assert str(uuid.UUID(spelling)) == spelling


@given(st.uuids())
def test_every_uuid_parses_to_itself(value: uuid.UUID) -> None:
    assert parsed(str(value)) == parsed(str(value).upper()) == str(value)
