"""The certificate of the exits' port, where the operator has none: made here, and kept.

Devices get its fingerprint when their owner agrees to the terms, and connect to no other server. So
it lasts: with another certificate every device would need the new fingerprint.
"""

import os
import secrets
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from config.settings import Settings

FILE_NAME: Final = "exits.pem"
# It is known by its fingerprint, and its end would be an outage.
YEARS: Final = 100
DAYS_OF_YEAR: Final = 365
_END: Final = "-----END CERTIFICATE-----"
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"


def own_certificate(folder: Path, now: int) -> Path:
    """Return the file of the certificate and its key (PEM, mode 0600); make it the first time.

    The file appears complete: it is written under another name and then linked, so of two starts at
    once both get the first one's.

    Args:
        folder: the folder of the file; made if it is missing.
        now: UTC seconds.

    Raises:
        OSError: the file cannot be read or written.
    """
    path = folder / FILE_NAME
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{FILE_NAME}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(_made(now))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path


def next_certificate_problems(settings: Settings) -> Iterator[str]:
    """Yield the mistakes in the next certificate, which devices receive before it is used."""
    path = settings.exits.next_tls_cert
    if not path:
        return
    try:
        fingerprint(Path(path))
    except OSError as error:
        yield f"exits.next_tls_cert: cannot read {path}: {error.strerror}"
    except ValueError as error:
        yield f"exits.next_tls_cert: {error}"


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of the first certificate of a PEM file, in hexadecimal.

    Raises:
        OSError: the file cannot be read.
        ValueError: there is no certificate in it.
    """
    text = certificate.read_text(encoding="ascii", errors="replace")
    begin, end = text.find(_BEGIN), text.find(_END)
    if not 0 <= begin < end:
        raise ValueError(f"there is no certificate in {certificate}")
    return sha256(ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)])).hexdigest()


def _made(now: int) -> bytes:
    """Return a new key and a certificate of it, as PEM."""
    # Here, because a daemon that makes none should not wait for it.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "proxyd exits")])
    began = datetime.fromtimestamp(now, UTC) - timedelta(days=1)  # clocks of devices may be late
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=YEARS * DAYS_OF_YEAR))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
