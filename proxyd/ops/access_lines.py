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
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b, sha256
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Final, Literal

import msgspec

from proxyd.access import DESTINATIONS_MAX, Access, Reached, Sent
from proxyd.egress.names import address_of_number, canonical, is_number
from proxyd.wire.hosts import unmapped

Target = Literal["host", "hash", "none"]
Client = Literal["full", "network", "none"]
_Value = str | int | float | list[str] | list[list[str]]

HASH_BYTES: Final = 8  # 16 digits; two hosts of one service share a hash by no likely chance
NETWORK_BITS: Final = {4: 24, 6: 48}  # 256 addresses of IPv4; the usual prefix of one IPv6 site
NETWORKS_KEPT: Final = 4096
HASHES_KEPT: Final = 8192
RUN_BYTES: Final = 4  # tells a process from those before it in the files of an hour
HOUR, STILL, BEGAN, ENDED, LOST = "hour", "still", "began", "ended", "lost"
SENT: Final = "sent"
ENDED_LINE: Final = b'{"event":"ended"'

_encode = msgspec.json.Encoder().encode


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
        self._process = process

    def hour(self, moment: int, open_connections: int, lost: int) -> bytes:
        """Return the first line of this process in a file."""
        fields = self._head(HOUR, moment)
        return _line(fields | {"open": open_connections, "lost": lost})

    def lost(self, moment: int, lines: int) -> bytes:
        """Return the line about lines that were lost since the last such line."""
        return _line(self._head(LOST, moment) | {"lines": lines})

    def reached(self, event: str, moment: int, began: int, record: Reached) -> bytes:
        """Return the line of an open connection: `BEGAN` or `STILL`."""
        fields = self._head(event, moment) | {"started": timestamp(began)}
        self._connection(fields, record)
        self._reached(fields, record)
        return _line(fields)

    def sent(self, moment: int, record: Sent) -> bytes | None:
        """Return the line of a destination of datagrams; None where records have no targets."""
        if self._target == "none":
            return None
        fields = self._head(SENT, moment)
        self._connection(fields, record.reached)
        self._reached(fields, record.reached)
        if record.others:
            fields["others"] = record.others
        return _line(fields)

    def ended(self, moment: int, record: Access, reached: Reached | None) -> bytes:
        """Return the line of the end of a connection, which may have reached its target before."""
        fields = self._head(ENDED, moment)
        fields["started"] = timestamp(moment - round(record.seconds))
        self._connection(fields, record)
        if reached is not None:
            self._reached(fields, reached)
        elif record.exit:
            fields["exit"], fields["exit_address"] = record.exit, record.exit_address
        elif record.tried:
            fields["tried"] = [[device, address] for device, address in record.tried]
        fields["bytes_up"], fields["bytes_down"] = record.bytes_up, record.bytes_down
        fields["seconds"] = round(record.seconds, 3)
        fields["reason"] = record.reason
        return _line(fields)

    def _head(self, event: str, moment: int) -> dict[str, _Value]:
        fields: dict[str, _Value] = {
            "event": event,
            "time": timestamp(moment),
            "run": self._run,
        }
        if self._process is not None:
            fields["process"] = self._process
        return fields

    def _connection(self, fields: dict[str, _Value], record: Access | Reached) -> None:
        fields["connection"] = record.connection
        fields["session"] = record.session_id
        if self._client == "full":
            fields["client"] = record.client
        elif self._client == "network":
            fields["client"] = network_of(record.client)
        if self._target == "host":
            fields["host"] = one_spelling(record.host)
        elif self._target == "hash":
            host = one_spelling(record.host)
            fields["host_hash"] = self._hashed.of(host)
            # The hash of a name looks like that of an address.
            if host and not is_address(host):
                fields["name"] = True
        fields["port"] = record.port

    def _reached(self, fields: dict[str, _Value], record: Reached) -> None:
        fields["protocol"] = record.protocol
        if record.protocol == "udp" and self._target != "none":
            fields["destinations"] = DESTINATIONS_MAX
        if record.addresses and self._target != "none":
            fields["addresses" if self._target == "host" else "address_hashes"] = list(
                self._forms(record.addresses)
            )
        if record.source_port:
            fields["source_port"] = record.source_port
        if record.exit:
            # Not left out like clients' addresses: the record must clear an owner of a device of
            # the acts of a buyer from the owner's address.
            fields["exit"], fields["exit_address"] = record.exit, record.exit_address
            if record.seen_address:
                fields["seen_address"] = record.seen_address

    def _forms(self, addresses: Iterable[str]) -> Iterable[str]:
        spelled = map(one_spelling, addresses)
        return spelled if self._target == "host" else map(self._hashed.of, spelled)


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


def _line(fields: dict[str, _Value]) -> bytes:
    return _encode(fields) + b"\n"
