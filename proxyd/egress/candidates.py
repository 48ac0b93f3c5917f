"""Selection of a name's addresses for a dial, and their order. Pure."""

from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Final

from market.base.networks import Address
from proxyctl.protocol.policy import Policy

# Each may hold a descriptor until the dial is over.
CANDIDATES_MAX: Final = 6


def candidates(addresses: Iterable[Address], port: int, policy: Policy) -> list[Address]:
    """Return the permitted addresses in the order of their attempts, with alternating families.

    The family of the first address begins, and each keeps its order (RFC 8305, section 4); there
    are at most `CANDIDATES_MAX`.
    """
    permitted = [address for address in addresses if policy.permits(address, port)]
    if len(permitted) < 2:
        return permitted
    first = permitted[0].version
    turns = zip_longest(
        [address for address in permitted if address.version == first],
        [address for address in permitted if address.version != first],
    )
    ordered = [address for address in chain.from_iterable(turns) if address is not None]
    return ordered[:CANDIDATES_MAX]
