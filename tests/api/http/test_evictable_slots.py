"""Slots of the API's connections: idle holders make room, in all and by network."""

from api.http.evictable_slots import EvictableSlots


class Holder:
    """The holder of a slot."""

    def __init__(self, *, can_leave: bool = True) -> None:
        self.can_leave = can_leave
        self.was_cut = False

    def cut(self) -> None:
        self.was_cut = True


def test_the_least_recently_active_connection_makes_room_first() -> None:
    slots: EvictableSlots[Holder] = EvictableSlots()
    one, two, busy = Holder(), Holder(), Holder(can_leave=False)
    for holder in (busy, one, two):
        slots.take(holder, "192.0.2.1")
    slots.touch(one)
    assert slots.refusal("192.0.2.1", 100, 3) == ""
    assert (busy.was_cut, one.was_cut, two.was_cut) == (False, False, True)
    assert len(slots) == slots.of("192.0.2.1") == 2


def test_a_network_that_is_full_of_work_is_refused_and_others_are_not() -> None:
    slots: EvictableSlots[Holder] = EvictableSlots()
    for _ in range(3):
        slots.take(Holder(can_leave=False), "192.0.2.1")
    assert slots.refusal("192.0.2.1", 100, 3) == "192.0.2.1 has 3 connections"
    assert slots.refusal("192.0.2.2", 100, 3) == ""
    assert slots.refusal("192.0.2.2", 3, 3) == "3 connections are open"


def test_an_ipv6_site_has_a_share_of_the_slots() -> None:
    slots: EvictableSlots[Holder] = EvictableSlots()
    networks = [f"2001:db8:1:{number:x}::/64" for number in range(5)]
    for network in networks[:4]:
        slots.take(Holder(can_leave=False), network)
    assert slots.refusal(networks[4], 100, 1) == "2001:db8:1::/56 has 4 connections"
    assert slots.refusal("2001:db8:1:100::/64", 100, 1) == ""


def test_slots_that_are_given_back_leave_nothing() -> None:
    slots: EvictableSlots[Holder] = EvictableSlots()
    holders = [Holder() for _ in range(3)]
    for holder, network in zip(holders, ("192.0.2.1", "2001:db8:1:2::/64", ""), strict=True):
        slots.take(holder, network)
    for holder in (*holders, *holders):
        slots.give(holder)
    assert len(slots) == 0
    assert slots._of == {}
