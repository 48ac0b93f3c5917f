"""Bounds are shares of the descriptors, which together leave some for the store and the names."""

import pytest

from proxyd.limits import (
    DESCRIPTORS_PER_CONNECTION,
    DESCRIPTORS_PER_PIPE,
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
