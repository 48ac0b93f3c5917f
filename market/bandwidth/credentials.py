"""Credentials of a proxy session: random and URL-safe; only a hash of the password is stored."""

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_USERNAME_CHARACTERS = 16  # 80 bits: two sessions never get the same name by chance
_PASSWORD_BYTES = 16
_USERNAME = re.compile(f"[{_ALPHABET}]{{{_USERNAME_CHARACTERS}}}")


class Credentials(NamedTuple):
    """Credentials of a client at the proxy, and the stored hash of the password."""

    username: str
    password: str
    password_hash: str


def new_credentials() -> Credentials:
    """Make credentials: a user name of 80 random bits, a password of 128."""
    username = "".join(secrets.choice(_ALPHABET) for _ in range(_USERNAME_CHARACTERS))
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    return Credentials(username, password, hash_password(password.encode()))


def is_username(text: str) -> bool:
    """Return whether a text has the form of our user names; other texts need no query."""
    return _USERNAME.fullmatch(text) is not None


def begins_username(text: str) -> bool:
    """Return whether a text has the form of the beginning of our user names."""
    return is_username(text.ljust(_USERNAME_CHARACTERS, _ALPHABET[0]))


def hash_password(password: bytes) -> str:
    """Hash a session's password; a fast hash is right for 128 random bits."""
    return hashlib.sha256(password).hexdigest()


def matches(password: bytes, password_hash: str) -> bool:
    """Return whether a password has this hash, in constant time."""
    return hmac.compare_digest(hash_password(password), password_hash)
