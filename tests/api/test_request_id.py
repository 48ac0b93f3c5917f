"""A line about a request says which, as text and as JSON, and no other line does."""

import json
import logging
from contextvars import copy_context

from api import request_id
from proxyd.ops.logs import JsonFormatter, TextFormatter


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
