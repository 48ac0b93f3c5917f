"""The signing key: configured, or made on first start and kept where only the owner reads it."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from config.check import SIGNING_KEY_MIN_BYTES
from config.settings import Settings
from proxyd.ops import privacy
from proxyd.ops.errors import CannotServeError
from proxyd.ops.privacy import Readers, readers

FILE_NAME = "signing.key"
MADE_BYTES = 48


class SigningKeyError(CannotServeError):
    """There is no usable signing key; the message says why, for the operator."""


def signing_key(settings: Settings) -> bytes:
    """Return the key that signs session tokens, making it if this is the first start.

    One that every user of the machine may read is refused, as ssh does: each of them could log in
    as anybody. A group may be meant, so that is a warning (`privacy.warnings`).

    Raises:
        SigningKeyError: the file cannot be read or written, is everybody's, or holds too little.
    """
    if settings.auth.signing_key:
        return settings.auth.signing_key.encode()
    path = key_file(settings)
    try:
        if path.exists() and readers(path) is Readers.EVERYBODY:
            raise SigningKeyError(
                f"the signing key {path} may be read or changed by {Readers.EVERYBODY}, who could "
                f"log in as anybody: chmod go-rwx {path}, and delete it if that may have happened: "
                "a new one is made, and ends every login"
            )
        key = _made(path) if not path.exists() else path.read_bytes().strip()
    except OSError as error:
        raise SigningKeyError(f"the signing key {path}: {error.strerror}") from error
    if len(key) < SIGNING_KEY_MIN_BYTES:
        raise SigningKeyError(
            f"the signing key {path} has fewer than {SIGNING_KEY_MIN_BYTES} bytes"
        )
    return key


def key_problems(settings: Settings) -> Iterator[str]:
    """Yield what is wrong with the file of the key, if there is one already."""
    path = key_file(settings)
    try:
        if not settings.auth.signing_key and path.exists():
            signing_key(settings)
    except OSError as error:
        yield f"auth.signing_key_file: {path}: {error.strerror}"
    except SigningKeyError as error:
        yield f"auth.signing_key_file: {error}"


def exposed_files(settings: Settings) -> list[str]:
    """Return a warning for each file of the daemon's that others may read."""
    key = None if settings.auth.signing_key else key_file(settings)
    return privacy.warnings(settings.storage.url, key)


def key_file(settings: Settings) -> Path:
    """Return where the key is kept when it is not configured itself."""
    if settings.auth.signing_key_file:
        return Path(settings.auth.signing_key_file)
    return Path(settings.storage.url.removeprefix("sqlite:///")).parent / FILE_NAME


def _made(path: Path) -> bytes:
    """Make a key; whoever comes second, of two starts at once, reads what the first one made."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = secrets.token_urlsafe(MADE_BYTES).encode()
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(key + b"\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        return path.read_bytes().strip()
    finally:
        draft.unlink()
    return key
