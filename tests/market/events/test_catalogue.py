"""The catalogue: every event has a name, a text for its readers, and exact amounts."""

import json
import re

import msgspec
from support.base.cases import cases

from market.events import catalogue as events
from market.events.catalogue import CATALOGUE, TYPE_OF, EventData
from market.events.recording import encoded


def leaves(kind: type[EventData]) -> list[type[EventData]]:
    """Return the kinds of events without further ones."""
    below = kind.__subclasses__()
    return [leaf for each in below for leaf in leaves(each)] if below else [kind]


def test_the_catalogue_has_every_event_once() -> None:
    assert set(TYPE_OF) == set(leaves(EventData))
    assert len(TYPE_OF) == len(CATALOGUE)


@cases("name", CATALOGUE)
def test_an_event_has_a_name_of_two_words_and_says_when_it_happens(name: str) -> None:
    assert re.fullmatch(r"[a-z_]+\.[a-z_]+", name)
    assert CATALOGUE[name].__doc__


@cases("name", CATALOGUE)
def test_an_event_has_a_schema(name: str) -> None:
    schema = msgspec.json.schema(CATALOGUE[name])
    assert schema["$defs"][CATALOGUE[name].__name__]["properties"]


def test_amounts_are_exact_and_times_are_in_utc() -> None:
    deposited = events.WalletDeposited(events.amount(1_234_567), "usd", "x")
    assert json.loads(encoded(deposited))["amount"] == 1.234567
    assert events.timestamp(1_800_000_000) == "2027-01-15T08:00:00Z"
