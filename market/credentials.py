"""Credentials of a proxy session: random, URL-safe, the password kept only as a hash."""

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_USERNAME_CHARACTERS = 16
_PASSWORD_BYTES = 16
_USERNAME = re.compile(f"[{_ALPHABET}]{{{_USERNAME_CHARACTERS}}}")


class Credentials(NamedTuple):
    """What a client shows the proxy, and what is kept of it."""

    username: str
    password: str
    password_hash: str


def new_credentials() -> Credentials:
    """Make credentials: a user name of 80 random bits, a password of 128."""
    username = "".join(secrets.choice(_ALPHABET) for _ in range(_USERNAME_CHARACTERS))
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    return Credentials(username, password, hash_password(password.encode()))


def is_username(text: str) -> bool:
    """Say whether a text could be a user name that was made here."""
    return _USERNAME.fullmatch(text) is not None


def hash_password(password: bytes) -> str:
    """Hash a session's password; a fast hash is right for 128 random bits."""
    return hashlib.sha256(password).hexdigest()


def matches(password: bytes, password_hash: str) -> bool:
    """Say in constant time whether a password belongs to a hash."""
    return hmac.compare_digest(hash_password(password), password_hash)
