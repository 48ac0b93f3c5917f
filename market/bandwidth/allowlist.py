"""Client addresses that open a session without a password: their notation and their proof.

A buyer could list the address of another person. So an address opens the session only once a client
that may use the session has come from it: the buyer, over the API, or a client with the session's
password, over the proxy. Until then it is pending: it opens nothing, and takes nothing from others.
"""

from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address

from market.base.errors import Code, MarketError
from market.base.networks import plain
from storage.bandwidth import allowlist as queries
from storage.bandwidth import sessions as session_queries
from storage.bandwidth.allowlist import AddressRow
from storage.engines.store import Transaction

ADDRESSES_MAX = 16


def canonical(texts: Iterable[str]) -> tuple[str, ...]:
    """Return addresses in the one spelling in which they are compared, each once, in order.

    An IPv4 address that is mapped into IPv6 (RFC 4291, section 2.5.5.2) is that IPv4 address.

    Raises:
        MarketError: `invalid_field`, when one is no address that a client can come from.
    """
    return tuple(sorted(set(_each(texts))))


def _each(texts: Iterable[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        try:
            address = ip_address(text)
        except ValueError:
            raise _refused(index) from None
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            raise _refused(index)
        address = plain(address)
        if address.is_unspecified or address.is_multicast:
            raise _refused(index)
        yield str(address)


async def prove(tx: Transaction, session_id: str, address: str) -> AddressRow:
    """Open a session to its pending address; an address that opens it already stays unchanged.

    Raises:
        MarketError: `address_not_pending`; `addresses_taken`, when another session has proved it
            first on that port.
    """
    # Settling the session deletes its addresses, and must not miss one.
    await session_queries.lock(tx, [session_id])
    for row in await queries.pending_of_session(tx, session_id):
        if row.address == address:
            if not await queries.insert(tx, row):
                raise MarketError(Code.ADDRESSES_TAKEN)
            await queries.delete_pending(tx, row)
            return row
    for row in await queries.of_session(tx, session_id):
        if row.address == address:
            return row
    raise MarketError(Code.ADDRESS_NOT_PENDING)


def _refused(index: int) -> MarketError:
    message = f"allow_ips[{index}] is not one IPv4 or IPv6 address that a client can come from."
    return MarketError(Code.INVALID_FIELD, message, field="allow_ips")
