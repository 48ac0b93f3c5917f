"""Secrets in files of their own, which settings refer to: `password = "@mail-password"`."""

from collections.abc import Mapping
from pathlib import Path

SECRETS = frozenset(
    {
        "auth.signing_key",
        "storage.url",
        "storage.direct_url",
        "mail.password",
        "assistant.api_key",
        "work.s3_secret_key",
        "alerts.webhook_secret",
        "payments.stripe_secret_key",
        "payments.stripe_webhook_secret",
        "payments.stripe_previous_webhook_secret",
        "payments.btcpay_key",
        "payments.btcpay_webhook_secret",
        "payouts.paypal_secret",
    }
)
MARK = "@"
MAX_BYTES = 64 * 1024  # any key fits; a device or a database named by mistake does not


def resolved(name: str, value: object, environment: Mapping[str, str]) -> object:
    """Return a setting's value; for a secret that begins with `@`, the content of the file.

    Args:
        name: the setting, as `section.key`.
        value: `@/absolute/path`, or `@name` for one of systemd's credentials, a file in
            `$CREDENTIALS_DIRECTORY`; `@@` is a literal `@`. Any other value is returned as it is.
        environment: has `CREDENTIALS_DIRECTORY`, if systemd passes credentials.

    Raises:
        ValueError: the file is unreadable, empty, longer than the limit, or not UTF-8. The message
            never has its content.
    """
    if name not in SECRETS or not isinstance(value, str) or not value.startswith(MARK):
        return value
    reference = value.removeprefix(MARK)
    if reference.startswith(MARK):
        return reference
    path = Path(reference)
    if not path.is_absolute():
        folder = environment.get("CREDENTIALS_DIRECTORY")
        if folder is None or path.name != reference:
            raise ValueError(
                f"expected @/absolute/path, or @name of a credential when systemd passes some, "
                f"got {value!r}; write @@ for a literal @"
            )
        path = Path(folder) / reference
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
