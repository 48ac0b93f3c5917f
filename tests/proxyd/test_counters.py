"""A latency is counted up to the bound that it does not exceed."""

from proxyd.counters import LATENCY_BOUNDS_SECONDS, Counters, Latency


def test_each_bound_counts_the_values_up_to_it_and_the_last_one_the_rest() -> None:
    latency = Latency()
    for bound in LATENCY_BOUNDS_SECONDS:
        latency.observe(bound)
    latency.observe(LATENCY_BOUNDS_SECONDS[-1] * 2)
    assert latency.counts == [1] * (len(LATENCY_BOUNDS_SECONDS) + 1)
    latency.observe(0)
    assert latency.counts[0] == 2
    assert latency.seconds == sum(LATENCY_BOUNDS_SECONDS) + LATENCY_BOUNDS_SECONDS[-1] * 2


def test_both_transports_are_there_before_anything_is_relayed() -> None:
    assert Counters().relays == {"tcp": 0, "udp": 0}
