"""The consent of a device's owner: the terms, the date and the service. `run` needs this record."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.exit.base.limits import DeviceLimits, LimitError, limits_from
from proxyctl.status import InVainError

if TYPE_CHECKING:
    from pathlib import Path

AGREE: Final = "run: proxyctl exit consent"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class ConsentError(InVainError):
    """There is no valid consent; the message names the remedy."""


@dataclass(frozen=True)
class Consent:
    """An agreement.

    Attributes:
        api: the address of the marketplace's API.
        host: of the daemon, for exits.
        port: of the daemon, for exits.
        pin: SHA-256 of its certificate, in hexadecimal; empty where authorities vouch for it.
        token: the worker token of this device.
        terms: SHA-256 of the text that was agreed to; empty after it was revoked.
        agreed_at: when, RFC 3339.
    """

    api: str
    host: str
    port: int
    pin: str
    token: str = field(repr=False)
    terms: str
    agreed_at: str
    limits: DeviceLimits


def load(path: Path) -> Consent:
    """Return the agreement in a file.

    Raises:
        ConsentError: there is no record, or other users can read it.
        FileError: the file cannot be used.
    """
    fields = files.read(path)
    if fields is None:
        raise ConsentError(f"no user of this device has agreed yet; {AGREE}")
    if not files.is_private(path):
        raise ConsentError(
            f"others on this machine can read {path}, which holds a token; run: chmod 600 {path}"
        )
    try:
        consent = _understood(fields)
    except (KeyError, TypeError, ValueError):
        raise ConsentError(f"{path} is not complete; {AGREE}") from None
    except LimitError as error:
        raise ConsentError(f"{path}: {error}") from None
    return consent


def save(path: Path, consent: Consent) -> None:
    """Write an agreement down, readable only by its owner.

    Raises:
        FileError: it cannot be written.
    """
    fields = {name: getattr(consent, name) for name in _TEXTS}
    fields["port"] = consent.port
    fields["limits"] = consent.limits.as_fields()
    files.write(path, fields, durable=True)


_TEXTS: Final = ("api", "host", "pin", "token", "terms", "agreed_at")


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 in hexadecimal."""
    return _SHA256.fullmatch(text) is not None


def _understood(fields: dict[str, Any]) -> Consent:
    texts = {name: fields[name] for name in _TEXTS}
    port = fields["port"]
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError
    if not isinstance(port, int) or not 0 < port < 1 << 16 or not texts["host"]:
        raise ValueError
    if not all(is_digest(texts[name]) for name in ("pin", "terms") if texts[name]):
        raise ValueError
    return Consent(port=port, limits=limits_from(fields.get("limits", {})), **texts)
