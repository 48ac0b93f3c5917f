"""The files of an agent: its owner's consent, its present state, and the owner's requests.

Every file is JSON, belongs to its owner alone, and is replaced whole, so that no reader meets half
of one. Commands and the running agent talk through them and through nothing else: that works
alike on every system.

The agent looks at the files once a second.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from proxyctl.words import OwnerError

_FILE_MAX_BYTES: Final = 1 << 20
_REPLACE_TRIES: Final = 5  # on Windows a file cannot be replaced while a program reads it


class FileError(OwnerError):
    """A file cannot be used; the message is for the owner of the device."""


def default_folder() -> Path:
    """Return the folder of the files, unless the command line names another place."""
    config = os.environ.get("XDG_CONFIG_HOME")
    if not config and sys.platform == "win32":
        config = os.environ.get("APPDATA")
    return (Path(config) if config else Path.home() / ".config") / "proxyctl"


def read(path: Path, max_bytes: int = _FILE_MAX_BYTES) -> dict[str, Any] | None:
    """Return the fields of a file, or None if the file does not exist.

    Args:
        path: of the file.
        max_bytes: that it may have; a larger file is not understood.

    Raises:
        FileError: it cannot be read, or it says nothing that could be understood.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise FileError(
            f"{path} is damaged: no JSON object; move it away, and run this command again"
        )
    return fields


def is_empty(path: Path) -> bool:
    """Return whether a file is there and holds nothing, as a loss of power may leave one."""
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def write(path: Path, fields: dict[str, Any], *, durable: bool = False) -> None:
    """Replace a file, readable only by its owner.

    Args:
        path: of the file; its folder is made if need be.
        fields: the new fields.
        durable: wait until it outlives a loss of power. A file that is written again and again is
            not worth the cost: it wears out the memory cards of small devices.

    Raises:
        FileError: it cannot be written.
    """
    # Not by `tempfile`, which takes a megabyte of memory in a program that runs for ever.
    name = path.parent / f".{path.name}.{os.urandom(8).hex()}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{json.dumps(fields)}\n")  # several times quicker than `dump`
            if durable:
                file.flush()
                os.fsync(file.fileno())
        _replace(name, path)
    except OSError as error:
        with suppress(OSError):
            name.unlink()
        raise FileError(f"{path} cannot be written: {error.strerror}") from None


def remove(path: Path) -> None:
    """Remove a file; a missing file is harmless.

    Raises:
        FileError: it cannot be removed.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"{path} cannot be removed: {error.strerror}") from None


def is_private(path: Path) -> bool:
    """Return whether the mode of a file keeps other users from reading it."""
    return os.name != "posix" or not path.stat().st_mode & 0o077


def stamp(path: Path) -> tuple[int, int]:
    """Return a value that changes whenever a file is replaced."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ino


def _replace(name: Path, path: Path) -> None:
    for _ in range(_REPLACE_TRIES):
        with suppress(PermissionError):
            name.replace(path)
            return
    name.replace(path)
