"""The lines of the access log: one JSON object each, with the kind of event first.

| event | written |
|---|---|
| `hour` | first, by each process: number of open connections, lines lost so far |
| `still` | after it, for each connection that was open when the hour began |
| `began` | when a target is reached, unless the connection ends within a second or two |
| `sent` | when datagrams go to a destination first in an hour, or to others than are recorded |
| `ended` | at the end of a connection |
| `lost` | after an outage of the disk: the number of lines that are missing |

So the file of one hour has all connections that were open in it.
"""

import secrets
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b, sha256
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Encoder

from proxyd.access import DESTINATIONS_MAX
from proxyd.access_records import Access, Reached, Sent
from proxyd.egress.names import address_of_number, canonical, is_number
from proxyd.wire.hosts import unmapped

Target = Literal["host", "hash", "none"]
Client = Literal["full", "network", "none"]

HASH_BYTES: Final = 8  # 16 digits; two hosts of one service share a hash by no likely chance
NETWORK_BITS: Final = {4: 24, 6: 48}  # 256 addresses of IPv4; the usual prefix of one IPv6 site
NETWORKS_KEPT: Final = 4096
HASHES_KEPT: Final = 8192
RUN_BYTES: Final = 4  # tells a process from those before it in the files of an hour
HOUR, STILL, BEGAN, ENDED, LOST = "hour", "still", "began", "ended", "lost"
SENT: Final = "sent"
ENDED_LINE: Final = b'{"event":"ended"'

_encode = Encoder().encode
# The forms of a host: as it is, its hash, and whether the hash is that of a name.
_Text = str | UnsetType
_Forms = tuple[_Text, _Text, bool | UnsetType]
# The first fields of a line, and those of a connection that has reached its target.
_Head = tuple[
    str, str, str, int | UnsetType, _Text, int, str, _Text, _Text, _Text, bool | UnsetType, int
]
_Addresses = list[str] | UnsetType
_Way = tuple[_Text, int | UnsetType, _Addresses, _Addresses, int | UnsetType, _Text, _Text, _Text]
_NO_WAY: Final[_Way] = (UNSET, UNSET, UNSET, UNSET, UNSET, UNSET, UNSET, UNSET)


class _Connection(Struct, gc=False):
    """Line of a connection, in the order of its fields; those without a value are left out."""

    event: str
    time: str
    run: str
    process: int | UnsetType
    started: str | UnsetType
    connection: int
    session: str
    client: str | UnsetType
    host: str | UnsetType
    host_hash: str | UnsetType
    name: bool | UnsetType
    port: int
    protocol: str | UnsetType = UNSET
    destinations: int | UnsetType = UNSET
    addresses: list[str] | UnsetType = UNSET
    address_hashes: list[str] | UnsetType = UNSET
    source_port: int | UnsetType = UNSET
    exit: str | UnsetType = UNSET
    exit_address: str | UnsetType = UNSET
    seen_address: str | UnsetType = UNSET
    tried: tuple[tuple[str, str], ...] | UnsetType = UNSET
    bytes_up: int | UnsetType = UNSET
    bytes_down: int | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    others: int | UnsetType = UNSET


class TargetHash:
    """Keyed hash of hosts and addresses: only the holder of the key can compute it.

    Args:
        key: the secret.
    """

    def __init__(self, key: bytes) -> None:
        self._key = sha256(b"access log\0" + key).digest()
        self._kept = lru_cache(HASHES_KEPT)(self._hash)

    def of(self, host: str) -> str:
        """Return the hash of a host name or an address; a name has one hash in any case."""
        return self._kept(host)

    def _hash(self, host: str) -> str:
        return blake2b(host.lower().encode(), key=self._key, digest_size=HASH_BYTES).hexdigest()


class Lines:
    """Turns records into lines.

    Args:
        target: the form of hosts and addresses: as they are, by a hash, or not at all.
        client: the form of the client's address: whole, by its network, or not at all.
        hashed: computes the hashes.
        process: the number of this process among several; None where there is one.
    """

    def __init__(
        self, target: Target, client: Client, hashed: TargetHash, process: int | None
    ) -> None:
        self._target = target
        self._client = client
        self._hashed = hashed
        self._run = secrets.token_hex(RUN_BYTES)
        self._process: int | UnsetType = UNSET if process is None else process
        self._forms = lru_cache(HASHES_KEPT)(self._forms_of)

    def hour(self, moment: int, open_connections: int, lost: int) -> bytes:
        """Return the first line of this process in a file."""
        return self._line(HOUR, moment, {"open": open_connections, "lost": lost})

    def lost(self, moment: int, lines: int) -> bytes:
        """Return the line about lines that were lost since the last such line."""
        return self._line(LOST, moment, {"lines": lines})

    def reached(self, event: str, moment: int, began: int, record: Reached) -> bytes:
        """Return the line of an open connection: `BEGAN` or `STILL`."""
        head, way = self._head(event, moment, began, record), self._way(record)
        return _encode(_Connection(*head, *way)) + b"\n"

    def sent(self, moment: int, record: Sent) -> bytes | None:
        """Return the line of a destination of datagrams; None where records have no targets."""
        if self._target == "none":
            return None
        head, way = self._head(SENT, moment, None, record.reached), self._way(record.reached)
        return _encode(_Connection(*head, *way, others=record.others or UNSET)) + b"\n"

    def ended(self, moment: int, record: Access, reached: Reached | None) -> bytes:
        """Return the line of the end of a connection, which may have reached its target before."""
        head = self._head(ENDED, moment, moment - int(record.seconds + 0.5), record)
        way, tried = _NO_WAY, record.tried or UNSET
        if reached is not None:
            way, tried = self._way(reached), UNSET
        elif record.exit:
            unknown = _NO_WAY[:5]  # of the fields before the exit
            way, tried = (*unknown, record.exit, record.exit_address, UNSET), UNSET
        line = _Connection(
            *head,
            *way,
            tried,
            record.bytes_up,
            record.bytes_down,
            int(record.seconds * 1000 + 0.5) / 1000,  # a tenth of the time of `round`
            record.reason,
        )
        return _encode(line) + b"\n"

    def _line(self, event: str, moment: int, figures: dict[str, int]) -> bytes:
        """Return a line that is not about one connection."""
        head = {"event": event, "time": timestamp(moment), "run": self._run}
        process = {} if isinstance(self._process, UnsetType) else {"process": self._process}
        return _encode(head | process | figures) + b"\n"

    def _head(self, event: str, moment: int, began: int | None, record: Access | Reached) -> _Head:
        """Return the first fields of a line, up to its port."""
        client: str | UnsetType = UNSET
        if self._client == "full":
            client = record.client
        elif self._client == "network":
            client = network_of(record.client)
        return (
            event,
            timestamp(moment),
            self._run,
            self._process,
            UNSET if began is None else timestamp(began),
            record.connection,
            record.session_id,
            client,
            *self._forms(record.host),
            record.port,
        )

    def _forms_of(self, host: str) -> _Forms:
        if self._target == "none":
            return UNSET, UNSET, UNSET
        spelled = one_spelling(host)
        if self._target == "host":
            return spelled, UNSET, UNSET
        # The hash of a name looks like that of an address.
        is_name = bool(spelled) and not is_address(spelled)
        return UNSET, self._hashed.of(spelled), is_name or UNSET

    def _way(self, record: Reached) -> _Way:
        """Return the fields after that, of a connection that has reached its target."""
        addresses: list[str] | UnsetType = UNSET
        hashes: list[str] | UnsetType = UNSET
        if record.addresses and self._target == "host":
            addresses = [one_spelling(each) for each in record.addresses]
        elif record.addresses and self._target == "hash":
            hashes = [self._hashed.of(one_spelling(each)) for each in record.addresses]
        is_bounded = record.protocol == "udp" and self._target != "none"
        return (
            record.protocol,
            DESTINATIONS_MAX if is_bounded else UNSET,
            addresses,
            hashes,
            record.source_port or UNSET,
            # Not left out like clients' addresses: the record must clear an owner of a device of
            # the acts of a buyer from the owner's address.
            record.exit or UNSET,
            record.exit_address if record.exit else UNSET,
            (record.exit and record.seen_address) or UNSET,
        )


@lru_cache(HASHES_KEPT)
def is_address(host: str) -> bool:
    """Return whether a host is an address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@lru_cache(HASHES_KEPT)
def one_spelling(host: str) -> str:
    """Return an address in the spelling of complaints; a name as it is.

    A client chooses the spelling: an IPv4 address can be inside an IPv6 one, or a single number.
    """
    if is_address(host):
        return unmapped(host)
    key = canonical(host) or ""
    address = address_of_number(key) if is_number(key) else None
    return host if address is None else str(address)


def mapped(host: str) -> tuple[str, ...]:
    """Return the spellings of an IPv4 address inside an IPv6 one, as old records have them."""
    if ":" in host or not is_address(host):
        return ()
    number = int(IPv4Address(host))
    return (f"::ffff:{number >> 16:x}:{number & 0xFFFF:x}", f"::ffff:{host}")


@lru_cache(NETWORKS_KEPT)
def network_of(address: str) -> str:
    """Return the network that stands for an address in records, so that they name no person."""
    bits = NETWORK_BITS[ip_address(address).version]
    return str(ip_network(f"{address.partition('%')[0]}/{bits}", strict=False))


@lru_cache(2048)
def timestamp(moment: int) -> str:
    """Return a time of a record."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
