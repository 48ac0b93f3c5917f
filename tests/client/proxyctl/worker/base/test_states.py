from hypothesis import given
from hypothesis import strategies as st

from proxyctl.worker.base.states import NEXT, TOLD, State, may_follow


def test_every_state_is_in_the_tables() -> None:
    assert set(NEXT) == set(State)
    assert set(TOLD) == set(State) - {State.DONE}


@given(st.data())
def test_every_life_ends_and_no_state_comes_twice(data: st.DataObject) -> None:
    state, lived = State.TAKEN, [State.TAKEN]
    while NEXT[state]:
        state = data.draw(st.sampled_from(sorted(NEXT[state])))
        assert state not in lived
        assert may_follow(lived[-1], state)
        lived.append(state)
    assert state is State.DONE


def test_a_running_attempt_is_never_reported_before_it_has_ended() -> None:
    for state in (State.RUNNING, State.STOPPING):
        assert not NEXT[state] & {State.UPLOADING, State.REPORTING, State.DONE}
