"""How long answers are kept, and how many."""

from ipaddress import IPv4Address

from support.base.cases import cases

from proxyd.egress.dns_cache import NEGATIVE_SECONDS, DnsCache

ONE = IPv4Address("192.0.2.1")


class Hand:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


@cases(
    ("ttl", "kept"),
    [(60, 60), (0, 1), (-1, 1), (1, 1), (3600, 3600), (3601, 3600), (2**31, 3600)],
)
def test_an_answer_is_kept_for_its_time_within_bounds(ttl: int, kept: int) -> None:
    clock = Hand()
    cache = DnsCache(10, clock.now)
    cache.put("a", [ONE], ttl)
    clock.at += kept - 0.001
    assert cache.get("a") == [ONE]
    clock.at += 0.001
    assert cache.get("a") is None
    assert len(cache) == 0


def test_a_missing_address_is_kept_only_a_short_time() -> None:
    clock = Hand()
    cache = DnsCache(10, clock.now)
    cache.put("a", [], 3600)
    clock.at += NEGATIVE_SECONDS - 0.001
    assert cache.get("a") == []
    clock.at += 0.001
    assert cache.get("a") is None


def test_the_name_with_the_oldest_question_makes_room() -> None:
    cache = DnsCache(2, Hand().now)
    cache.put("a", [ONE], 60)
    cache.put("b", [ONE], 60)
    assert cache.get("a") == [ONE]
    cache.put("c", [ONE], 60)
    assert len(cache) == 2
    assert cache.get("b") is None
    assert cache.get("a") == [ONE]
    cache.put("a", [], 60)
    assert len(cache) == 2


def test_a_returned_list_may_be_changed() -> None:
    cache = DnsCache(2, Hand().now)
    cache.put("a", [ONE], 60)
    handed = cache.get("a")
    assert handed is not None
    handed.clear()
    assert cache.get("a") == [ONE]
