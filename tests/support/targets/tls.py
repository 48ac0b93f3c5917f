"""TLS for targets: a certificate made for the test, and connections whose every byte is counted."""

import io
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Count = Callable[[int], None]

_READ_BYTES = 65_536


@dataclass
class Certificate:
    """A certificate that only the test knows; `path` holds it in PEM, for clients."""

    path: Path
    server: ssl.SSLContext


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate for this machine, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path, secret = folder / "certificate.pem", folder / "key.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, secret)
    return Certificate(path, context)


class TlsStream(io.RawIOBase):
    """The server's side of TLS over a blocking socket; tells of each sealed byte that it moves."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, received: Count, sent: Count
    ) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._received = received
        self._sent = sent

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while True:
            try:
                return self._tls.read(len(buffer), buffer)
            except ssl.SSLWantReadError:
                self._flush()
                if not self._fill():
                    return 0
            except ssl.SSLError:  # the client has ended, or wants nothing of this certificate
                while self._fill():
                    pass
                return 0

    def write(self, data: bytes) -> int:
        written = self._tls.write(data)
        self._flush()
        return written

    def _fill(self) -> bool:
        data = self._socket.recv(_READ_BYTES)
        self._received(len(data))
        self._incoming.write(data)
        return bool(data)

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            self._socket.sendall(data)
            self._sent(len(data))


def client_hello() -> bytes:
    """Return the first bytes of a client of TLS, as they go over the wire."""
    said = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="a.test")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return said.read()
    raise AssertionError("a handshake without a server")
