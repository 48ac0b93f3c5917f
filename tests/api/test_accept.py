"""Which form of an answer a client prefers."""

import pytest

from api.accept import prefers_text


@pytest.mark.parametrize(
    ("accept", "is_text"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", True),
        ("TEXT/Plain; charset=utf-8", True),
        ("text/*", True),
        ("application/json", False),
        ("text/plain, application/json", False),
        ("text/plain, */*;q=0.5", True),
        ("text/plain;q=0.4, application/json;q=0.5", False),
        ("text/plain;q=0, */*", False),
        ("text/plain;q=junk", False),
        ("text/html, application/xhtml+xml, */*;q=0.8", False),
        (",;q=,;", False),
    ],
)
def test_json_is_sent_unless_text_is_preferred(accept: str, is_text: bool) -> None:
    assert prefers_text(accept) is is_text
