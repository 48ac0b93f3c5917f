"""Bounds are shares of the descriptors, which together leave some for the store and the names."""

import pytest

from proxyd.limits import (
    DESCRIPTORS_PER_CONNECTION,
    DESCRIPTORS_PER_PIPE,
    Places,
    api_connections_total,
    connections_total,
    pipes_total,
    racers_total,
)


@pytest.mark.parametrize("descriptors", [2_048, 20_000, 1_048_576])
def test_all_shares_together_leave_something(descriptors: int) -> None:
    taken = (
        connections_total(0, descriptors) * DESCRIPTORS_PER_CONNECTION
        + pipes_total(descriptors) * DESCRIPTORS_PER_PIPE
        + api_connections_total(descriptors)
        + racers_total(descriptors)
    )
    assert taken <= descriptors * 0.98


def test_the_api_has_some_connections_even_where_descriptors_are_few() -> None:
    assert api_connections_total(256) == 64
    assert api_connections_total(20_000) == 1_000


def all_that_can_be_had(places: Places, holder: str) -> int:
    taken = 0
    while places.take(holder):
        taken += 1
    return taken


def test_nobody_may_have_more_places_than_are_left() -> None:
    places = Places(100)
    assert [all_that_can_be_had(places, name) for name in "abcd"] == [50, 25, 13, 6]
    for _ in range(50):
        places.give("a")
    assert places.taken == 44
    assert all_that_can_be_had(places, "d") == 25
    assert places.take("e")


def test_the_only_place_can_be_had_and_is_had_once() -> None:
    places = Places(1)
    assert all_that_can_be_had(places, "a") == 1
    assert not places.take("b")
    places.give("a")
    assert places.take("b")


def test_fewer_places_than_are_taken_are_none() -> None:
    places = Places(10)
    assert all_that_can_be_had(places, "a") == 5
    places.most = 3
    assert not places.take("b")
    places.most = 0
    assert not places.take("b")
