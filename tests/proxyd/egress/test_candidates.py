"""Candidates among a name's addresses, and their order."""

from ipaddress import ip_address

from support.base.cases import cases

from proxyctl.protocol.policy import Policy
from proxyd.egress.candidates import CANDIDATES_MAX, candidates


@cases(
    ("given", "tried"),
    [
        ("", ""),
        ("8.8.8.8", "8.8.8.8"),
        ("2606:4700::1 2606:4700::2 8.8.8.8 1.1.1.1", "2606:4700::1 8.8.8.8 2606:4700::2 1.1.1.1"),
        ("8.8.8.8 1.1.1.1 2606:4700::1", "8.8.8.8 2606:4700::1 1.1.1.1"),
        ("10.0.0.1 2606:4700::1 127.0.0.1 8.8.8.8 ::1", "2606:4700::1 8.8.8.8"),
        ("10.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1", ""),
        ("8.8.8.8 1.1.1.1", "8.8.8.8 1.1.1.1"),
    ],
)
def test_permitted_families_take_turns(given: str, tried: str) -> None:
    addresses = [ip_address(text) for text in given.split()]
    assert candidates(addresses, 80, Policy()) == [ip_address(text) for text in tried.split()]


def test_the_tried_candidates_are_bounded_and_of_both_families() -> None:
    addresses = [ip_address(f"2606:4700::{n}") for n in range(1, 60)]
    addresses += [ip_address(f"8.8.8.{n}") for n in range(1, 60)]
    tried = candidates(addresses, 80, Policy())
    assert len(tried) == CANDIDATES_MAX
    assert [address.version for address in tried] == [6, 4] * (CANDIDATES_MAX // 2)
