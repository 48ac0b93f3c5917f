"""The signing key: from the settings, or made at the first start in a file of mode 0600."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from config.check import SIGNING_KEY_MIN_BYTES
from config.settings import Settings
from proxyd.ops.base import privacy
from proxyd.ops.base.errors import CannotServeError
from proxyd.ops.base.privacy import Readers, readers

FILE_NAME = "signing.key"
KEY_BYTES = 48  # of randomness, which make 64 characters; more than `SIGNING_KEY_MIN_BYTES`


class SigningKeyError(CannotServeError):
    """The signing key is unusable; the message has the reason, for the operator."""


def signing_key(settings: Settings) -> bytes:
    """Return the key that signs session tokens; make it at the first start.

    A key that every user of the machine may read is refused, as ssh does: each of them could log in
    as any user. Access by a group may be intended; it is only a warning (`privacy.warnings`).

    Raises:
        SigningKeyError: the file cannot be read or written, is open to everybody, or is too short.
    """
    if settings.auth.signing_key:
        return settings.auth.signing_key.encode()
    path = key_file(settings)
    return made_key(
        path,
        "the signing key",
        f"who could log in as anybody: chmod go-rwx {path}, and delete it if that may have "
        "happened: a new one is made, and ends every login",
        "which ends every login and opens no sealed data, such as payout methods",
    )


def made_key(path: Path, name: str, danger: str, loss: str) -> bytes:
    """Return the key in a file; make it if there is no file.

    Args:
        path: the file.
        name: the key's name in messages.
        danger: the end of the message about a file that every user may read; "" for `chmod`.
        loss: the end of the message about a damaged file: what is lost with the key.

    Raises:
        SigningKeyError: the file cannot be read or written, is open to everybody, or is too short.
    """
    try:
        if path.exists() and readers(path) is Readers.EVERYBODY:
            raise SigningKeyError(
                f"{name} {path} may be read or changed by {Readers.EVERYBODY}, "
                f"{danger or f'chmod go-rwx {path}'}"
            )
        key = _make(path) if not path.exists() else path.read_bytes().strip()
    except OSError as error:
        raise SigningKeyError(f"{name} {path}: {error.strerror}") from error
    if len(key) < SIGNING_KEY_MIN_BYTES:
        raise SigningKeyError(
            f"{name} {path} has fewer than {SIGNING_KEY_MIN_BYTES} bytes: restore it from a "
            f"backup; without one move it away: a new one is made, {loss}"
        )
    return key


def key_problems(settings: Settings) -> Iterator[str]:
    """Yield the problems of the key's file, if it exists."""
    path = key_file(settings)
    try:
        if not settings.auth.signing_key and path.exists():
            signing_key(settings)
    except OSError as error:
        yield f"auth.signing_key_file: {path}: {error.strerror}"
    except SigningKeyError as error:
        yield f"auth.signing_key_file: {error}"


def exposed_files(settings: Settings) -> list[str]:
    """Return a warning for each of the daemon's files that others may read."""
    key = None if settings.auth.signing_key else key_file(settings)
    return privacy.warnings(settings.storage.url, key)


def key_file(settings: Settings) -> Path:
    """Return the file of a key that is not in the settings: beside the database by default."""
    if settings.auth.signing_key_file:
        return Path(settings.auth.signing_key_file)
    return Path(settings.storage.url.removeprefix("sqlite:///")).parent / FILE_NAME


def _make(path: Path) -> bytes:
    """Make the key's file and return the key; two simultaneous starts both get the first key.

    The file appears complete: it is written under another name and then linked, which fails if the
    other start was faster.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = secrets.token_urlsafe(KEY_BYTES).encode()
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
