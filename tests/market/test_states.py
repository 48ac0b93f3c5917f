"""The life cycle of a session: the whole table, way by way."""

import itertools

import pytest

from market.states import SESSION_TRANSITIONS, SessionStatus, require_transition

WAYS = {
    (SessionStatus.ACTIVE, SessionStatus.ENDED),
    (SessionStatus.ACTIVE, SessionStatus.EXHAUSTED),
    (SessionStatus.ACTIVE, SessionStatus.EXPIRED),
}
EVERY = list(itertools.product(SessionStatus, SessionStatus))


def test_the_states_are_the_words_that_are_stored_and_shown() -> None:
    assert [str(status) for status in SessionStatus] == ["active", "ended", "exhausted", "expired"]


def test_the_table_knows_every_state() -> None:
    assert set(SESSION_TRANSITIONS) == set(SessionStatus)


@pytest.mark.parametrize(("before", "after"), EVERY)
def test_a_session_goes_only_where_the_table_says(
    before: SessionStatus, after: SessionStatus
) -> None:
    if (before, after) in WAYS:
        require_transition(before, after)
    else:
        with pytest.raises(ValueError, match=f"never goes from {before} to {after}"):
            require_transition(before, after)


def test_only_an_active_session_goes_anywhere() -> None:
    assert [status for status, ways in SESSION_TRANSITIONS.items() if ways] == ["active"]


def test_every_state_but_the_first_is_reached() -> None:
    reached = set().union(*SESSION_TRANSITIONS.values())
    assert reached == set(SessionStatus) - {SessionStatus.ACTIVE}
