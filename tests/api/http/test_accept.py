"""The form of an answer, a page, JSON or text, by the Accept header of a client."""

from support.base.cases import cases

from api.http.accept import prefers_json, prefers_text


@cases(
    ("accept", "is_json"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", True),
        ("application/json, */*;q=0.5", True),
        ("application/json, text/plain, */*", True),
        ("application/json;q=0.5, */*", False),
        ("application/json, text/html", False),
        ("text/html, application/json;q=0.9", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
    ],
)
def test_a_page_is_sent_unless_json_is_preferred(accept: str, is_json: bool) -> None:
    assert prefers_json(accept) is is_json


@cases(
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
