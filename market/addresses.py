"""Client addresses that open a session without a password: how buyers may write them."""

from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address

from market.errors import Code, MarketError

ADDRESSES_MAX = 16


def canonical(texts: Iterable[str]) -> tuple[str, ...]:
    """Return addresses in the one spelling in which they are compared, each once, in order.

    An IPv4 address that is mapped into IPv6 (RFC 4291, section 2.5.5.2) is that IPv4 address.

    Raises:
        MarketError: `invalid_field`, when one is no address that a client can come from.
    """
    return tuple(sorted(set(_each(texts))))


def _each(texts: Iterable[str]) -> Iterator[str]:
    for place, text in enumerate(texts):
        try:
            address = ip_address(text)
        except ValueError:
            raise _refused(place) from None
        if isinstance(address, IPv6Address):
            if address.scope_id is not None:
                raise _refused(place)
            address = address.ipv4_mapped or address
        if address.is_unspecified or address.is_multicast:
            raise _refused(place)
        yield str(address)


def _refused(place: int) -> MarketError:
    message = f"allow_ips[{place}] is not one IPv4 or IPv6 address that a client can come from."
    return MarketError(Code.INVALID_FIELD, message, field="allow_ips")
