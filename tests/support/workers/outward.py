"""Ways out of a device for strangers: one that leads to this machine, and one that does not."""

from ipaddress import ip_network

from proxyctl.attach.network.lan import Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.protocol.policy import Policy
from proxyctl.worker.network.outward import Outward


def to_loopback() -> Outward:
    """Permit the servers of the tests."""
    return _outward("127.0.0.0/8")


def to_nowhere_near() -> Outward:
    """Permit what a device in no network would."""
    return _outward()


def _outward(*allow: str) -> Outward:
    opened = [ip_network(each) for each in allow]
    surroundings = Surroundings(set)
    return Outward(Guard(policy=Policy(), surroundings=surroundings, kernel=None, allow=opened))
