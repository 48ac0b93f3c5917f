"""Bounds are shares of the descriptors, which together leave some for the store and the names."""

from support.base.cases import cases

from proxyd.limits import (
    DESCRIPTORS_PER_ASK,
    DESCRIPTORS_PER_CONNECTION,
    DESCRIPTORS_PER_PIPE,
    api_connections_total,
    asks_total,
    connections_total,
    exits_total,
    parked_total,
    pipes_total,
    racers_total,
)


@cases(("with_exits", "processes"), [(False, 1), (True, 1), (True, 2), (True, 64)])
@cases("descriptors", [2_048, 20_000, 1_048_576])
def test_all_shares_together_leave_something(
    descriptors: int, with_exits: bool, processes: int
) -> None:
    parked, asks = parked_total(descriptors), asks_total(descriptors, processes)
    total = connections_total(0, descriptors, with_exits=with_exits, with_asks=bool(asks))
    taken = (
        total * DESCRIPTORS_PER_CONNECTION
        + asks * (processes - 1) * DESCRIPTORS_PER_ASK
        + with_exits * (exits_total(0, descriptors) + parked + parked // 2)
        + pipes_total(descriptors) * DESCRIPTORS_PER_PIPE
        + api_connections_total(descriptors)
        + racers_total(descriptors)
    )
    assert taken <= descriptors * 0.98


def test_the_api_has_some_connections_even_where_descriptors_are_few() -> None:
    assert api_connections_total(256) == 64
    assert api_connections_total(20_000) == 1_000


def test_exits_are_as_many_as_their_share_pays_for() -> None:
    assert exits_total(0, 20_000) == 6_000
    assert exits_total(10**9, 20_000) == 6_000
    assert exits_total(3, 20_000) == 3
