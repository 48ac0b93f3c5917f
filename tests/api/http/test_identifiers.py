"""A malformed identifier is nothing in a path, and wrong in a body."""

import pytest
from support.base.cases import cases

from api.http.identifiers import in_body, in_path
from market.base.errors import Code, MarketError

IDENTIFIER = "0190f3a0-1c2d-7e3f-8a4b-5c6d7e8f9a0b"


@cases("text", [IDENTIFIER, IDENTIFIER.upper()])
def test_an_identifier_has_one_spelling(text: str) -> None:
    assert in_path(text, Code.JOB_NOT_FOUND) == IDENTIFIER
    assert in_body(text, "job_id") == IDENTIFIER


@cases(
    "text", ["", "1", IDENTIFIER.replace("-", ""), f"{{{IDENTIFIER}}}", f"urn:uuid:{IDENTIFIER}"]
)
def test_anything_else_is_not_there_or_no_field_of_its_kind(text: str) -> None:
    with pytest.raises(MarketError) as missing:
        in_path(text, Code.JOB_NOT_FOUND)
    assert missing.value.code is Code.JOB_NOT_FOUND
    with pytest.raises(MarketError) as wrong:
        in_body(text, "job_id")
    assert (wrong.value.code, wrong.value.field) == (Code.INVALID_FIELD, "job_id")
