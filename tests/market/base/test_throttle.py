"""A throttle counts by key over a sliding window, and forgets."""

import asyncio
import contextlib

import pytest
from support.base.clock import Clock

from market.base.errors import Code, MarketError
from market.base.throttle import Throttle


def is_throttled(made: Throttle, key: str) -> int:
    """Return the seconds that a key has to wait, 0 for none."""
    try:
        made.check(key)
    except MarketError as error:
        return error.retry_after_seconds if error.code is Code.TOO_MANY_ATTEMPTS else -1
    return 0


def test_the_limit_is_reached_and_the_window_slides(clock: Clock) -> None:
    made = Throttle(3, 60, clock.seconds)
    for _ in range(3):
        assert not is_throttled(made, "a")
        made.count("a")
        clock.now += 10
    assert is_throttled(made, "a") == 30
    assert not is_throttled(made, "b")
    clock.now += 29
    assert is_throttled(made, "a") == 1
    clock.now += 1
    assert not is_throttled(made, "a")
    made.count("a")
    assert is_throttled(made, "a") == 10


def test_counts_in_the_future_of_a_clock_set_back_are_forgotten(clock: Clock) -> None:
    made = Throttle(2, 60, clock.seconds)
    made.count("a")
    made.count("a")
    clock.now -= 3_600
    assert not is_throttled(made, "a")
    made.count("a")
    made.count("a")
    assert is_throttled(made, "a") == 60


def test_a_forgotten_count_starts_anew(clock: Clock) -> None:
    made = Throttle(1, 60, clock.seconds)
    made.count("a")
    assert is_throttled(made, "a")
    made.forget("a")
    assert not is_throttled(made, "a")


def test_a_taken_place_is_counted_and_can_be_taken_back(clock: Clock) -> None:
    made = Throttle(2, 60, clock.seconds)
    made.take_back("a")
    made.take("a")
    made.take("a")
    with pytest.raises(MarketError):
        made.take("a")
    made.take_back("a")
    made.take("a")
    assert is_throttled(made, "a")


@pytest.mark.parametrize("error", [None, ValueError(), MarketError(Code.TOO_BUSY)])
def test_an_attempt_that_does_not_fail_is_not_counted(
    clock: Clock, error: Exception | None
) -> None:
    made = Throttle(1, 60, clock.seconds)
    for _ in range(3):
        with contextlib.suppress(ValueError, MarketError):
            with made.attempt("a", (Code.WRONG_PASSWORD,)):
                assert is_throttled(made, "a")
                if error is not None:
                    raise error
    assert not is_throttled(made, "a")


@pytest.mark.parametrize("error", [MarketError(Code.WRONG_PASSWORD), asyncio.CancelledError()])
def test_an_attempt_that_fails_or_is_given_up_is_counted(
    clock: Clock, error: BaseException
) -> None:
    made = Throttle(1, 60, clock.seconds)
    with contextlib.suppress(MarketError, asyncio.CancelledError):
        with made.attempt("a", (Code.WRONG_PASSWORD,)):
            raise error
    assert is_throttled(made, "a")


def test_no_limit_is_no_limit(clock: Clock) -> None:
    made = Throttle(0, 60, clock.seconds)
    for _ in range(1000):
        made.check("a")
        made.count("a")


def test_the_number_of_keys_is_bounded(clock: Clock) -> None:
    made = Throttle(1, 60, clock.seconds, keys_max=10)
    for number in range(30):
        made.count(str(number))
    assert [number for number in range(30) if is_throttled(made, str(number))] == list(
        range(20, 30)
    )


def test_an_owner_of_many_ipv6_networks_has_a_share_of_the_limit_and_no_multiple(
    clock: Clock,
) -> None:
    made = Throttle(3, 60, clock.seconds)

    def allowed(networks: list[str]) -> int:
        taken = 0
        for network in networks:
            with contextlib.suppress(MarketError):
                made.take(network)
                taken += 1
        return taken

    assert allowed(["2001:db8:1:2::/64"] * 10) == 3
    assert allowed([f"2001:db8:1:{subnet:x}::/64" for subnet in range(256)]) == 3 * 4 - 3
    subnets = [f"2001:db8:1:{subnet:x}::/64" for subnet in range(0, 65_536, 16)]
    assert allowed(subnets) == 3 * 16 - 3 * 4
    assert allowed(["2001:db8:2:2::/64"]) == 1
    made.take_back("2001:db8:1:2::/64")
    assert allowed(["2001:db8:1:2::/64"]) == 1
