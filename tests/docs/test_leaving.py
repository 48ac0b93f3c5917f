"""The parameters on the page about exits are the parameters of the parser."""

import re

import pytest
from support.base.cases import cases
from support.daemons.process import ROOT

from market.exits import wants
from market.exits.wants import WantsError, parse

PAGE = (ROOT / "docs" / "how-to" / "leaving.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \|(.*?)\|(.*)\|(.*?)\|$", PAGE, re.MULTILINE)


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_table_has_every_key_and_every_other_word_for_it() -> None:
    assert {key for key, *_ in ROWS} == set(wants._READERS)
    others = {other: key for key, others, *_ in ROWS for other in quoted(others)}
    assert others | {"sessid_oneip": "session"} == wants._SYNONYMS
    assert parse("sessid_oneip-abc") == parse("session-abc-strict")


@cases(("key", "examples"), [(key, quoted(last)) for key, *_, last in ROWS])
def test_every_example_is_understood(key: str, examples: list[str]) -> None:
    assert examples
    for example in examples:
        assert key in {wants._SYNONYMS.get(word, word) for word in example.split("-")}
        parse(example)


def test_the_mistake_that_is_shown_is_what_is_said() -> None:
    [shown] = re.findall(r'details="(.*)"', PAGE)
    with pytest.raises(WantsError) as refused:
        parse("ctry-de")
    assert refused.value.message == shown


@cases("contradiction", ["rotate-session-a", "rotate-strict", "direct-country-de"])
def test_what_is_said_to_contradict_itself_does(contradiction: str) -> None:
    with pytest.raises(WantsError):
        parse(contradiction)


@cases(
    ("own", "sold", "result"),
    [
        ("country-de", "country-us-state-ohio-city-dayton-asn-7922", "country-de"),
        ("state-texas", "country-us-state-ohio-city-dayton", "country-us-state-texas"),
        ("session-a", "rotate", "session-a"),
        ("rotate", "session-a-strict", "rotate"),
        ("strict", "rotate", "strict"),
    ],
)
def test_what_comes_before_a_sale_is_as_the_page_says(own: str, sold: str, result: str) -> None:
    assert parse(own).over(parse(sold)) == parse(result)
