"""Names that a daemon denies are denied in every spelling, and replace the earlier denials."""

from ipaddress import ip_address

import pytest
from support.base.cases import cases

from proxyctl.exit.base.denied import ADDRESSES_MAX, FRAMES_MAX, NETWORKS_MAX, Denied
from proxyctl.protocol.frames import Deny, FrameError


def test_networks_are_denied_at_every_port_and_addresses_at_some() -> None:
    denied = Denied()
    assert not denied.has(ip_address("45.33.32.156"), 443)
    denied.learn(Deny(("45.33.32.0/24", "2600:3c01::/64"), ("93.184.220.1",), (443, 1090)))
    for text in ("45.33.32.156", "::ffff:45.33.32.156", "2002:2d21:209c::1", "2600:3c01::f03c"):
        assert denied.has(ip_address(text), 80), text
    assert denied.has(ip_address("::ffff:93.184.220.1"), 1090)
    assert not denied.has(ip_address("93.184.220.1"), 80)
    denied.learn(Deny((), (), ()))
    assert not denied.has(ip_address("45.33.32.156"), 80)


@cases(
    "frame",
    [
        Deny(("no network",), (), ()),
        Deny((), ("no address",), (443,)),
        Deny(("192.0.2.0/24",) * (NETWORKS_MAX + 1), (), ()),
        Deny((), ("192.0.2.1",) * (ADDRESSES_MAX + 1), (443,)),
    ],
)
def test_an_impossible_list_is_no_frame(frame: Deny) -> None:
    with pytest.raises(FrameError):
        Denied().learn(frame)


def test_a_list_without_an_end_is_bounded() -> None:
    denied = Denied()
    for _ in range(FRAMES_MAX):
        denied.learn(Deny((), (), (), 1))
    with pytest.raises(FrameError):
        denied.learn(Deny((), (), (), 1))
