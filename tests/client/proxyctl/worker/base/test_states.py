from hypothesis import given
from hypothesis import strategies as st

from proxyctl.worker.base.states import NEXT, TOLD, AttemptState, may_follow


def test_every_state_is_in_the_tables() -> None:
    assert set(NEXT) == set(AttemptState)
    assert set(TOLD) == set(AttemptState) - {AttemptState.DONE}


@given(st.data())
def test_every_life_ends_and_no_state_comes_twice(data: st.DataObject) -> None:
    state, lived = AttemptState.TAKEN, [AttemptState.TAKEN]
    while NEXT[state]:
        state = data.draw(st.sampled_from(sorted(NEXT[state])))
        assert state not in lived
        assert may_follow(lived[-1], state)
        lived.append(state)
    assert state is AttemptState.DONE


def test_a_running_attempt_is_never_reported_before_it_has_ended() -> None:
    for state in (AttemptState.RUNNING, AttemptState.STOPPING):
        assert not NEXT[state] & {AttemptState.UPLOADING, AttemptState.REPORTING, AttemptState.DONE}
