"""Common to all lists: how times are written."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from api.routing.listing import timestamp

# The years that four digits write, whole seconds.
SECONDS = st.integers(min_value=-62_135_596_800, max_value=253_402_300_799)


@given(SECONDS)
def test_a_time_is_written_as_rfc_3339_says(seconds: int) -> None:
    written = timestamp(seconds)
    assert written == f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}Z"
