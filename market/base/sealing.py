"""Encrypts what is stored and may hold a secret: a copy of the database does not give it away."""

import base64


class Sealing:
    """Encrypts and decrypts with a key derived from the service's signing key (Fernet).

    Args:
        secret: the signing key.
        purpose: makes a key of its own; what was sealed for one purpose does not open for another.
    """

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        # Here, so that commands that seal nothing do not wait for it.
        from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415

        self._not_ours = InvalidToken
        self._fernet = Fernet(base64.urlsafe_b64encode(derived(secret, purpose)))

    def close(self, content: bytes) -> str:
        """Return a content encrypted and signed."""
        return self._fernet.encrypt(content).decode()

    def open(self, sealed: str) -> bytes | None:
        """Return the content; None when it was sealed with another key, or was changed."""
        try:
            return self._fernet.decrypt(sealed)
        except self._not_ours:
            return None


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose, from which neither secret nor other keys follow."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret)
