import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from proxyctl.worker.agent.orders import NotUnderstoodError, orders_of, work_of

JOB = "01234567-89ab-cdef-0123-456789abcdef"
WORK = {"job_id": JOB, "attempt": 1, "timeout_s": 60}
WORDS = st.sampled_from(["", "job_id", "attempt", "action", "stop", "../x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("jobs", "actions", "lease_s", "seen"), JSON))
)
def test_any_answer_of_a_daemon_is_an_order(reply: dict[str, object]) -> None:
    order = orders_of(reply)
    assert order.lease_s >= 4
    for work in order.jobs:
        with pytest.raises(NotUnderstoodError):
            work_of(work)


@cases(
    "changes",
    [
        {"job_id": "../../etc"},
        {"job_id": f"{JOB}/.."},
        {"job_id": 3},
        {"attempt": 0},
        {"attempt": True},
        {"attempt": "1"},
        {"timeout_s": 0},
        {"timeout_s": 1e9},
        {"timeout_s": None},
    ],
)
def test_a_job_that_cannot_be_is_not_taken(changes: dict[str, object]) -> None:
    with pytest.raises(NotUnderstoodError):
        work_of({**WORK, **changes})


def test_a_job_is_taken_as_it_is() -> None:
    assert work_of({**WORK, "title": "x"}) == {**WORK, "title": "x"}


def test_stops_are_named_by_their_attempt() -> None:
    [stop] = orders_of(
        {"actions": [{"job_id": JOB, "attempt": 2, "action": "stop", "reason": "a\x1b[2Jb"}, 3]}
    ).stops
    assert stop.attempt_id == f"{JOB}-2"
    assert "\x1b" not in stop.reason
