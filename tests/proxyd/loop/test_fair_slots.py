"""Slots that holders compete for: whoever takes all that can be had leaves some."""

from proxyd.loop.fair_slots import FairSlots


def all_that_can_be_had(places: FairSlots[str], holder: str) -> int:
    taken = 0
    while places.take(holder):
        taken += 1
    return taken


def test_no_holder_may_have_more_places_than_are_left() -> None:
    places = FairSlots[str](100)
    assert [all_that_can_be_had(places, name) for name in "abcd"] == [50, 25, 13, 6]
    assert places.full() == ["a", "b", "c", "d"]
    for _ in range(50):
        places.give("a")
    assert places.taken == 44
    assert all_that_can_be_had(places, "d") == 25
    assert places.take("e")


def test_the_only_place_can_be_had_and_is_had_once() -> None:
    places = FairSlots[str](1)
    assert all_that_can_be_had(places, "a") == 1
    assert not places.take("b")
    places.give("a")
    assert places.take("b")


def test_fewer_places_than_are_taken_are_no_places() -> None:
    places = FairSlots[str](10)
    assert all_that_can_be_had(places, "a") == 5
    places.most = 3
    assert not places.take("b")
    places.most = 0
    assert not places.take("b")
