"""Each request has an identifier, and each line about it says which; no other line does."""

import json
import logging
import re
from contextvars import copy_context

from support.base.cases import cases

from api.http import request_id
from proxyd.ops.base.logs import JsonFormatter, TextFormatter


def lines() -> tuple[str, str]:
    record = logging.LogRecord("api", logging.INFO, "", 1, "happened", (), None)
    return TextFormatter().format(record), JsonFormatter().format(record)


def within(name: str) -> tuple[str, str]:
    request_id.current.set(name)
    return lines()


def test_a_line_of_a_request_names_it() -> None:
    text, line = copy_context().run(within, "abc")
    assert text.endswith("INFO api: happened [request abc]")
    assert json.loads(line)["request"] == "abc"


def test_another_line_does_not() -> None:
    text, line = lines()
    assert text.endswith("INFO api: happened")
    assert "request" not in json.loads(line)


def test_identifiers_that_are_made_are_unique_and_well_formed() -> None:
    """Across many draws of randomness; each draw serves some dozens of identifiers."""
    ids = request_id.RequestIds()
    made = [ids.chosen("") for _ in range(5_000)]
    assert len(set(made)) == len(made)
    assert {bool(re.fullmatch("[A-Za-z0-9_-]{16}", each)) for each in made} == {True}
    assert made != sorted(made)


def test_two_that_make_them_do_not_make_the_same() -> None:
    one, other = request_id.RequestIds(), request_id.RequestIds()
    assert len({ids.chosen("") for _ in range(200) for ids in (one, other)}) == 400


@cases("proposal", ["a", "A-b.c_d~9", "x" * 64])
def test_a_well_formed_proposal_is_taken(proposal: str) -> None:
    assert request_id.RequestIds().chosen(proposal) == proposal


@cases("proposal", ["", "x" * 65, "a b", "a\n", "\u00e9", "a/b", "\x00", "\udcff"])
def test_another_proposal_is_replaced(proposal: str) -> None:
    chosen = request_id.RequestIds().chosen(proposal)
    assert re.fullmatch("[A-Za-z0-9_-]{16}", chosen)
