"""Encryption of stored secrets, so that a copy of the database does not reveal them."""

import base64
import hmac


class Sealing:
    """Encryption and decryption with a key derived from the service's signing key (Fernet).

    Args:
        secret: the signing key.
        purpose: derives a separate key; content sealed for one purpose does not open for another.
    """

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        # Imported here, so that commands without sealing do not wait for it.
        from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415

        self._not_ours = InvalidToken
        self._key = derived(secret, purpose)
        self._fernet = Fernet(base64.urlsafe_b64encode(self._key))

    def close(self, content: bytes) -> str:
        """Return a content encrypted and signed."""
        return self._fernet.encrypt(content).decode()

    def open(self, sealed: str) -> bytes | None:
        """Return the content; None when it was sealed with another key, or was changed."""
        try:
            return self._fernet.decrypt(sealed)
        except self._not_ours:
            return None

    def mark(self, text: str) -> str:
        """Return a keyed hash of a text; the database alone does not reveal the text."""
        return hmac.new(self._key, b"mark\0" + text.encode(), "sha256").hexdigest()


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose, which reveals neither the secret nor other keys."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret)
