"""Records of TLS 1.3 that no library sends: made by hand, with the key of a real client."""

import hmac
import socket
import ssl
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ALERT: Final = 21
HANDSHAKE: Final = 22
STREAM: Final = 23
END: Final = bytes([1, 0])  # the alert that ends a stream: close_notify

_KEY_UPDATE: Final = bytes([24, 0, 0, 1, 1])  # the other side has to change its key too
_HASH: Final = "sha384"
_HASH_BYTES: Final = 48
_TAG_BYTES: Final = 16


class RecordMaker:
    """Makes the records of a client (RFC 8446, section 5.2), for TLS_AES_256_GCM_SHA384.

    Args:
        secret: the client's traffic secret.
    """

    def __init__(self, secret: bytes) -> None:
        self._change(secret)

    def _change(self, secret: bytes) -> None:
        self._secret = secret
        self._key = AESGCM(_expand(secret, b"key", 32))
        self._nonce = int.from_bytes(_expand(secret, b"iv", 12), "big")
        self._number = 0

    def record(self, kind: int, data: bytes) -> bytes:
        """Return a record with `data`, which may be empty."""
        plain = data + bytes([kind])
        head = bytes([STREAM, 3, 3]) + (len(plain) + _TAG_BYTES).to_bytes(2, "big")
        nonce = (self._nonce ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._key.encrypt(nonce, plain, head)

    def key_updates(self, number: int) -> bytes:
        """Return records that change the key, and ask the other side for the same."""
        made = bytearray()
        for _ in range(number):
            made += self.record(HANDSHAKE, _KEY_UPDATE)
            self._change(_expand(self._secret, b"traffic upd", _HASH_BYTES))
        return bytes(made)


def shake_hands(sock: socket.socket, folder: Path) -> tuple[socket.socket, RecordMaker]:
    """Shake hands over a socket; return the socket of TCP, and the maker of its next records."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    log = folder / f"keys-{sock.fileno()}"
    context.keylog_filename = str(log)
    client = context.wrap_socket(sock)
    lines = [line.split() for line in log.read_text("ascii").splitlines()]
    (secret,) = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
    log.unlink()
    bare = socket.socket(fileno=client.detach())
    bare.settimeout(sock.gettimeout() or 60.0)
    return bare, RecordMaker(bytes.fromhex(secret))


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    """Return HKDF-Expand-Label of one block without a context (RFC 8446, section 7.1)."""
    name = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\x00"
    return hmac.digest(secret, info + b"\x01", _HASH)[:size]
