"""Secrets that stand in files of their own: `password = "@mail-password"`."""

from collections.abc import Mapping
from pathlib import Path

SECRETS = frozenset({"auth.signing_key", "storage.url", "mail.password", "assistant.api_key"})
MARK = "@"
MAX_BYTES = 64 * 1024


def resolved(name: str, value: object, environment: Mapping[str, str]) -> object:
    """Return a setting's value: of a secret that begins with `@`, what the file says.

    Args:
        name: the setting, as `section.key`.
        value: `@/absolute/path`, or `@name` for a credential of systemd's, a file in
            `$CREDENTIALS_DIRECTORY`; `@@` is an `@` that means itself. Anything else stays.
        environment: names that folder.

    Raises:
        ValueError: there is no such file, or it holds no usable text; never repeats the text.
    """
    if name not in SECRETS or not isinstance(value, str) or not value.startswith(MARK):
        return value
    named = value.removeprefix(MARK)
    if named.startswith(MARK):
        return named
    path = Path(named)
    if not path.is_absolute():
        folder = environment.get("CREDENTIALS_DIRECTORY")
        if folder is None or path.name != named:
            raise ValueError(
                f"expected @/absolute/path, or @name of a credential when systemd passes some, "
                f"got {value!r}; an @ that means itself is written @@"
            )
        path = Path(folder) / named
    return _read(path)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode().rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not UTF-8 text") from None
    if not text or len(content) > MAX_BYTES:
        raise ValueError(f"{path}: {'is too long' if text else 'is empty'}")
    return text
