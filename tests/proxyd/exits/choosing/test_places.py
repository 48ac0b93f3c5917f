"""The places of one exit: shares of buyers, and connections that give way."""

from math import inf

import pytest

from proxyd.exits.choosing import places as module
from proxyd.exits.choosing.places import Place, Places, yields_at

MOST, ASSOCIATIONS = 16, 8


class Relay:
    """A connection that moved its last byte at a time."""

    def __init__(self, hall: "Hall", place: Place, at: float) -> None:
        self.hall = hall
        self.place = place
        self.at = at
        self.is_half_closed = False
        self.is_cut = False
        self.traffic = 0, 0

    def yields_at(self) -> float:
        return yields_at(self.at, is_half_closed=self.is_half_closed)

    def abort(self) -> None:
        self.is_cut = True
        self.hall.places.leave(self.place, self.hall.now)


class Hall:
    """Places, and a clock."""

    def __init__(self) -> None:
        self.places = Places()
        self.now = 1000.0
        self.most = MOST

    def has(self, buyer: str, *, datagrams: bool = False) -> bool:
        return self.places.has(buyer, self.most, ASSOCIATIONS, self.now, datagrams=datagrams)

    def take(self, buyer: str, *, datagrams: bool = False, number: int = 0) -> Relay:
        assert self.has(buyer, datagrams=datagrams)
        place = self.places.take(buyer, self.most, ASSOCIATIONS, self.now, datagrams=datagrams)
        if number:
            self.places.order(place, number)
        relay = place.relay = Relay(self, place, self.now)
        return relay

    def take_all(self, buyer: str, *, datagrams: bool = False) -> list[Relay]:
        taken = []
        while self.has(buyer, datagrams=datagrams):
            taken.append(self.take(buyer, datagrams=datagrams))
        return taken


@pytest.fixture
def hall() -> Hall:
    return Hall()


def test_a_lone_buyer_leaves_a_quarter_to_newcomers(hall: Hall) -> None:
    assert len(hall.take_all("a")) == MOST * 3 // 4
    assert len(hall.take_all("b")) == MOST // 4


def test_two_buyers_have_half_each(hall: Hall) -> None:
    hall.take("b")
    assert len(hall.take_all("a")) == MOST // 2
    assert len(hall.take_all("b")) == MOST // 2 - 1


def test_a_holder_that_has_not_asked_for_a_minute_counts_no_more(hall: Hall) -> None:
    relay = hall.take("b")
    hall.places.leave(relay.place, hall.now)
    assert len(hall.take_all("a")) == MOST // 2
    hall.now += 2 * module.IDLE_SECONDS + 1
    for place in hall.places._placed:
        place.relay.at = hall.now
    assert len(hall.take_all("a")) == MOST * 3 // 4 - MOST // 2


@pytest.mark.parametrize("most", [1, 2, 3])
def test_all_places_of_a_small_exit_can_be_used(hall: Hall, most: int) -> None:
    hall.most = most
    assert len(hall.take_all("a")) == most


def test_an_exit_without_a_limit_takes_any_number(hall: Hall) -> None:
    hall.most = 0
    for _ in range(100):
        hall.take("a")


def test_an_idle_place_gives_way_and_first_that_of_the_largest_holder(hall: Hall) -> None:
    large, small = hall.take_all("a"), hall.take_all("b")
    assert not hall.has("c")
    for each in (*large[1:], *small[1:]):
        each.at += 10
    hall.now += module.IDLE_SECONDS
    hall.take("c")
    assert [each.is_cut for each in (large[0], small[0])] == [True, False]
    hall.take("c")
    assert small[0].is_cut
    assert sum(each.is_cut for each in (*large, *small)) == 2


def test_a_half_closed_connection_gives_way_after_a_moment(hall: Hall) -> None:
    taken = [*hall.take_all("a"), *hall.take_all("b")]
    taken[3].is_half_closed = True
    assert not hall.has("c")
    hall.now += module.HALF_CLOSED_SECONDS
    hall.take("c")
    assert [each.is_cut for each in taken].index(True) == 3


def test_a_buyer_with_half_of_the_places_has_its_own_give_way(hall: Hall) -> None:
    other, mine = hall.take("b"), hall.take_all("a")
    hall.now += module.IDLE_SECONDS
    assert hall.has("a")
    while not all(each.is_cut for each in mine):
        hall.take("a")
    assert not other.is_cut


def test_associations_have_a_bound_of_their_own(hall: Hall) -> None:
    assert len(hall.take_all("a", datagrams=True)) == ASSOCIATIONS * 3 // 4
    assert len(hall.take_all("b", datagrams=True)) == ASSOCIATIONS // 4
    assert hall.has("c")
    assert not hall.has("c", datagrams=True)


def test_a_place_is_free_when_the_device_has_let_go_of_it(hall: Hall) -> None:
    hall.places.reports_ends = True
    hall.most = 2
    one, two = hall.take("a", number=1), hall.take("b", number=2)
    hall.places.leave(one.place, hall.now)
    hall.places.leave(two.place, hall.now)
    assert hall.places.taken == 2
    assert not hall.has("c")
    hall.places.over(1)
    hall.places.over(1)
    assert hall.places.taken == 1
    hall.now += module.LEAVING_SECONDS  # the other report was lost
    assert hall.has("c")
    assert hall.places.taken == 0


def test_a_place_is_free_at_the_end_of_its_connection_if_the_devices_report_came_before(
    hall: Hall,
) -> None:
    hall.places.reports_ends = True
    hall.most = 1
    one = hall.take("a", number=1)
    hall.places.over(1)
    assert hall.places.taken == 1, "the connection still has bytes for the buyer"
    hall.places.leave(one.place, hall.now)
    assert hall.places.taken == 0
    assert hall.has("a")


def test_nothing_is_kept_of_a_place_that_is_free(hall: Hall) -> None:
    places = hall.places
    places.reports_ends = True
    for number in range(1, 5):
        place = hall.take("a", number=number).place
        if number == 1:  # the report comes first
            places.over(number)
        if number != 2:  # freed without a report
            places.leave(place, hall.now)
        if number in (2, 3):
            places.give(place)
        places.over(number)
    assert [*places._placed, *places._ordered, *places._leaving] == []
    assert places.taken == 0


def test_a_full_device_is_asked_again_later(hall: Hall) -> None:
    hall.places.fill(hall.now, datagrams=True)
    assert hall.has("a")
    assert not hall.has("a", datagrams=True)
    hall.places.fill(hall.now, datagrams=False)
    assert not hall.has("a")
    hall.now += module.FULL_SECONDS
    assert hall.has("a", datagrams=True)


def test_a_device_that_is_always_full_is_asked_less_and_less_often(hall: Hall) -> None:
    hall.places.reports_ends = True
    began, asked = hall.now, []
    while hall.now < began + 200:
        if hall.has("anybody"):
            asked.append(hall.now - began)
            for _ in range(3):  # orders of one moment
                hall.places.fill(hall.now, datagrams=False)
        hall.now += 1
    assert asked == [0, 1, 3, 7, 15, 31, 63, 95, 127, 159, 191]
    hall.now += module.FULL_MOST_SECONDS
    relay = hall.take("anybody")
    hall.places.begin(relay.place, relay)
    hall.places.fill(hall.now, datagrams=False)
    hall.now += module.FULL_SECONDS
    assert hall.has("anybody"), "it has carried something"
    hall.places.reports_ends = False  # an older device has limits that are not known here
    for _ in range(3):
        hall.places.fill(hall.now, datagrams=False)
        hall.now += module.FULL_SECONDS
        assert hall.has("anybody")


def test_a_beginning_connection_does_not_give_way(hall: Hall) -> None:
    for each in [*hall.take_all("a"), *hall.take_all("b")]:
        each.at = inf
    hall.now += 1000
    assert not hall.has("c")


def test_accounts_with_all_places_divide_them_with_a_newcomer(hall: Hall) -> None:
    first, second = hall.take_all("a"), hall.take_all("b")
    while len(second) < MOST // 2:  # as one gets them who redials while another one leaves
        hall.places.give(first.pop().place)
        second.append(hall.take("b"))
    assert not hall.has("c")
    hall.now += module.SETTLED_SECONDS
    for each in (*first, *second):
        each.at, each.traffic = hall.now, (5000, 5000)
    first[3].traffic = 1, 1
    hall.take("c")
    assert [each.is_cut for each in (*first, *second)].index(True) == 3
    taken = 1
    while hall.has("c"):
        hall.take("c")
        taken += 1
    assert taken == MOST // 3
    assert sum(each.is_cut for each in (*first, *second)) == taken


def test_an_account_within_its_share_keeps_its_moving_connections(hall: Hall) -> None:
    taken = [hall.take(str(number)) for number in range(MOST)]
    for _ in range(8):
        hall.now += module.IDLE_SECONDS / 2
        for each in taken:
            each.at, each.traffic = hall.now, (each.traffic[0] + 2000, 0)
        assert not hall.has("c")


def test_one_connection_of_each_account_gives_way_if_it_hardly_moves(hall: Hall) -> None:
    taken = [hall.take(str(number)) for number in range(MOST)]
    for _ in range(4):
        hall.now += module.IDLE_SECONDS / 2
        for each in taken:
            fast = 2000 if each is not taken[5] else 15
            each.at, each.traffic = hall.now, (each.traffic[0] + fast, 0)
    hall.take("c")
    assert [each.is_cut for each in taken] == [each is taken[5] for each in taken]
    assert not hall.has("c")


def test_a_connection_that_was_fast_long_ago_counts_as_slow(hall: Hall) -> None:
    place = hall.take("a").place
    assert place.relay is not None
    place.relay.traffic = 10**9, 0  # type: ignore[misc]
    assert place.recent_bytes(hall.now) == 10**9
    for _ in range(4):
        hall.now += module.MEASURED_SECONDS / 2
        moved = place.recent_bytes(hall.now)
    assert moved == 0
