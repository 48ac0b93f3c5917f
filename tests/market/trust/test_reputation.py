"""Reputation as arithmetic: it never leaves its bounds, and later events weigh more."""

from hypothesis import given
from hypothesis import strategies as st

from market.attempts.attempts import FailureKind
from market.trust.reputation import NEW, NEW_RELIABILITY, WHOLE, Reputation, is_good, of_device

events = st.lists(st.tuples(st.sampled_from(["attempt", "check"]), st.booleans()), max_size=200)


def after(events: list[tuple[str, bool]], start: Reputation = NEW) -> Reputation:
    reputation = start
    for what, good in events:
        if what == "attempt":
            reputation = reputation.after_attempt(is_good=good)
        else:
            reputation = reputation.after_check(is_right=good)
    return reputation


@given(events)
def test_shares_stay_shares_and_everything_is_counted(happened: list[tuple[str, bool]]) -> None:
    reputation = after(happened)
    assert 0 <= reputation.score <= min(reputation.reliability, reputation.correctness) <= WHOLE
    assert reputation.attempts == sum(what == "attempt" for what, _ in happened)
    checks = [good for what, good in happened if what == "check"]
    assert reputation.checks == len(checks)
    wrong_at = [at for at, good in enumerate(checks) if not good]
    assert reputation.streak == len(checks) - (wrong_at[-1] + 1 if wrong_at else 0)


@given(events, events)
def test_a_good_result_never_counts_less_than_a_bad_one(
    before: list[tuple[str, bool]], later: list[tuple[str, bool]]
) -> None:
    for what in ("attempt", "check"):
        good, bad = (after([*before, (what, each), *later]) for each in (True, False))
        assert good.reliability >= bad.reliability
        assert good.correctness >= bad.correctness


@given(events)
def test_attempts_and_checks_are_counted_apart(happened: list[tuple[str, bool]]) -> None:
    attempts = [each for each in happened if each[0] == "attempt"]
    checks = [each for each in happened if each[0] == "check"]
    assert after(happened) == after([*attempts, *checks])


def test_the_latest_events_weigh_most() -> None:
    good, bad = [("attempt", True)] * 10, [("attempt", False)] * 10
    assert after(bad + good).reliability > after(good + bad).reliability


def test_ten_good_ones_are_more_than_new_and_one_wrong_result_costs_half() -> None:
    proven = after([("attempt", True)] * 10)
    assert 730_000 < proven.score < 750_000
    assert after([("attempt", True)] * 40).score > 950_000
    assert proven.after_check(is_right=False).score == WHOLE // 2
    assert after([("attempt", False)] * 100).reliability < 2_000


def test_new_is_not_bad_but_a_new_token_forgets_nothing() -> None:
    assert of_device(None, None) == NEW
    assert NEW.score == NEW_RELIABILITY
    bad = after([("attempt", False)] * 10)
    assert of_device(None, bad).reliability == bad.reliability
    good = after([("attempt", True)] * 40)
    assert of_device(None, good) == NEW  # others' good work is not this one's
    liar = after([("check", False)])
    assert of_device(good, liar).score == liar.correctness
    assert of_device(bad, good).reliability == bad.reliability


def test_only_results_of_the_device_count() -> None:
    assert is_good("completed", None, has_begun=True) is True
    for kind in (FailureKind.JOB, FailureKind.TIMEOUT, FailureKind.OOM):
        assert is_good("failed", kind, has_begun=True) is None
    for kind in (FailureKind.IMAGE, FailureKind.INPUT):
        assert is_good("failed", kind, has_begun=False) is None
    assert is_good("cancelled", None, has_begun=True) is None
    assert is_good("lost", None, has_begun=False) is False  # it vanished, or never began
    assert is_good("lost", FailureKind.HOST, has_begun=True) is False
    assert is_good("lost", FailureKind.REFUSED, has_begun=True) is False
    assert is_good("lost", FailureKind.REFUSED, has_begun=False) is None  # a rule of its owner's
