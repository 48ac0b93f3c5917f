"""Rights of an API key: its scopes, and the data of the key in a request."""

from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Final

from msgspec import Struct

from market.accounts.spending import Spender
from market.base.networks import plain


class Scope(StrEnum):
    """Part of the API that a key may use. Each route names the scope that it needs.

    Passwords, logins and keys themselves have none: no key may touch them.
    """

    ACCOUNT_READ = "account:read"
    SESSIONS_READ = "sessions:read"
    SESSIONS_WRITE = "sessions:write"
    USAGE_READ = "usage:read"
    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    DEVICES_READ = "devices:read"
    DEVICES_WRITE = "devices:write"
    WALLET_READ = "wallet:read"
    WEBHOOKS_WRITE = "webhooks:write"
    EVENTS_READ = "events:read"
    ASSISTANT_USE = "assistant:use"


class Grant(Struct, frozen=True):
    """The rights of a valid key.

    `purse_id` is the first key of a line that was rolled; keys of one line have it in common.
    """

    key_id: str
    purse_id: str
    scopes: frozenset[str]
    spender: Spender


class Maker(Struct, frozen=True):
    """The login or API key that makes something; it may have ended since the request began.

    `key` is the API key, if one makes it. A program of this machine has neither.
    """

    login_id: str | None = None
    key: Grant | None = None

    @property
    def key_id(self) -> str | None:
        """The API key; None without one."""
        return None if self.key is None else self.key.key_id

    @property
    def purse_id(self) -> str | None:
        """The first key of the API key's line, which counts the spending; None without a key."""
        return None if self.key is None else self.key.purse_id


LOCAL: Final = Maker()


def permits(networks: str, address: str) -> bool:
    """Return whether a key with these networks may be used from an address.

    Args:
        networks: as they are stored, with spaces between them; "" for all addresses.
        address: the address of the client.
    """
    if not networks:
        return True
    try:
        parsed = plain(ip_address(address))
    except ValueError:
        return False
    return any(parsed in ip_network(network) for network in networks.split())
