"""Reads the host name in the first bytes of a connection, for the owner's journal.

The daemon resolves names, so a device receives only addresses. But a TLS ClientHello (RFC 8446,
section
4.1.2) and an HTTP request say the name in clear. It is a service to the owner, and no check: a
client can send another name, or none.
"""

from __future__ import annotations

import re
from typing import Final

from proxyctl.attach.network.lan import public_name

LOOKED_AT_BYTES: Final = 4096  # of the first read; a ClientHello has some 600, or recently 1,800

_HANDSHAKE, _CLIENT_HELLO = 0x16, 1
_SERVER_NAME, _HOST_NAME = 0, 0
_HOST: Final = re.compile(
    rb"\r\nhost:[ \t]*([a-z0-9_.-]{1,253})(?::\d{1,5})?[ \t]*\r\n", re.IGNORECASE
)


def name_in(data: bytes) -> str | None:
    """Return the target's name in the first bytes of a client, if they contain a public name."""
    text = _name_of_tls(data) if data[:1] == bytes((_HANDSHAKE,)) else _name_of_http(data)
    name = public_name(text) if text is not None else None
    return name.rstrip(".") if name is not None else None


def _name_of_http(data: bytes) -> str | None:
    match = _HOST.search(data)
    return match[1].decode("ascii") if match is not None else None


def _name_of_tls(data: bytes) -> str | None:
    # A record's header of 5 bytes; the message's type and length, the version and 32 random bytes.
    if len(data) < 43 or data[5] != _CLIENT_HELLO:
        return None
    at = 43
    for size_bytes in (1, 2, 1):  # the session, the cipher suites, the compression methods
        at += size_bytes + int.from_bytes(data[at : at + size_bytes], "big")
    at += 2  # the length of all extensions
    while at + 4 <= len(data):
        kind = int.from_bytes(data[at : at + 2], "big")
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == _SERVER_NAME:
            return _first_name(data[at + 4 : at + 4 + size])
        at += 4 + size
    return None


def _first_name(extension: bytes) -> str | None:
    """Return the name in a server_name extension (RFC 6066, section 3)."""
    size = int.from_bytes(extension[3:5], "big")
    name = extension[5 : 5 + size]
    if len(extension) < 5 or extension[2] != _HOST_NAME or len(name) != size:
        return None
    return name.decode("ascii", "replace")
