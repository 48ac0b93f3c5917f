"""Sealing what lies in the store and may hold a secret: a thief of the database cannot read it."""

import base64


class Sealing:
    """Seals texts so that only this service can read them.

    Args:
        secret: what the sealing key is derived from.
        purpose: what is sealed; what was sealed for one purpose opens for no other.
    """

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        # Here, so that commands that seal nothing do not wait for it.
        from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415

        self._not_ours = InvalidToken
        self._fernet = Fernet(base64.urlsafe_b64encode(derived(secret, purpose)))

    def close(self, content: bytes) -> str:
        """Return a content sealed."""
        return self._fernet.encrypt(content).decode()

    def open(self, sealed: str) -> bytes | None:
        """Return what was sealed; None when it was sealed with another key."""
        try:
            return self._fernet.decrypt(sealed)
        except self._not_ours:
            return None


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes that is good for one purpose."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret)
