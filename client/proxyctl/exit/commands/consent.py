"""The second key: a person at the device reads the terms and types `yes`.

The first one is turned in the account. Neither does anything without the other.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.api import ApiError, api_address
from proxyctl.exit.base import api, names, record
from proxyctl.words import OwnerError, plain_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxyctl.exit.base.limits import DeviceLimits

_YES: Final = "yes"
_UNKNOWN_TOKEN: Final = "worker_unauthorized"  # noqa: S105 - a code of the API


class NoConsentError(OwnerError):
    """The consent was not given; the message has the reason."""


def agree(
    path: Path,
    api_url: str,
    limits: DeviceLimits,
    *,
    token: Callable[[], str],
    show: Callable[[str], None],
    ask: Callable[[str], str],
    asks_again: bool = True,
) -> bool:
    """Try the token, show the terms, and write down that they were agreed to.

    Args:
        path: of the record.
        api_url: of the marketplace.
        limits: the owner's.
        token: returns the worker token; called before the terms are shown, because reading them is
            useless with a token that the marketplace does not know.
        show: shows lines to the person at the device.
        ask: shows a question and returns the typed answer.
        asks_again: show the question also where the record has an agreement to the same terms,
            limits and place.

    Returns:
        Whether there was a question. Without one, only a new token is written down.

    Raises:
        ApiError: the terms are not available.
        NoConsentError: the answer was not `yes`, the terms do not match the service, or the
            marketplace refuses the token.
        FileError: it cannot be written down.
    """
    address = api_address(api_url)
    reply = api.get_terms(address)
    text, digest, host, port, pin = _understood(reply)
    secret = token()
    _try(address, secret)
    consent = record.Consent(
        api=address,
        host=host,
        port=port,
        pin=pin,
        token=secret,
        terms=digest,
        agreed_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        limits=limits,
    )
    before = None if asks_again else _agreed_before(path, consent)
    if before is not None:
        if before.token != secret:
            record.save(path, replace(before, token=secret))
        return False
    show(plain_text(text))
    show(
        f"Limits on this device: {_describe(limits)}\n"
        f"Exits of {address} attach to {host} port {port}."
    )
    if ask(f"Type {_YES} if you agree to all of this: ").strip() != _YES:
        raise NoConsentError("nothing was agreed to, and nothing was changed")
    # The nodes and the next certificates came from the service of the earlier consent.
    files.remove(path.with_name(names.NODES))
    record.save(path, consent)
    files.remove(path.with_name(names.CONTROL))  # a pause or an end of before
    return True


def _agreed_before(path: Path, consent: record.Consent) -> record.Consent | None:
    """Return the recorded agreement if it is equal except for token and date; else None."""
    try:
        before = record.load(path)
    except record.ConsentError:
        return None
    same = replace(before, token=consent.token, agreed_at=consent.agreed_at)
    return before if same == consent else None


def withdraw(folder: Path) -> str:
    """End the consent here at once, and then in the account.

    Returns:
        a description of the result.

    Raises:
        ApiError: it ended here, and the marketplace does not know yet; asking again is right.
        FileError: a file cannot be used.
    """
    path = folder / names.CONSENT
    stored = files.read(path)
    if stored is None:
        return "there is no consent to withdraw on this device"
    files.write(folder / names.CONTROL, {"paused": True, "revoked": True})
    files.write(path, {**stored, "terms": ""}, durable=True)
    address, token = stored.get("api"), stored.get("token")
    if isinstance(address, str) and isinstance(token, str):
        try:
            api.revoke(api_address(address), token)
        except ApiError as error:
            # A token that the service does not know, or that was revoked, makes no exit there.
            if error.code != _UNKNOWN_TOKEN:
                raise ApiError(
                    "this device carries nothing any more, but its account does not know: "
                    f"{str(error).rstrip('.')}; "
                    "run the command again, or withdraw the consent in your account"
                ) from None
    files.remove(path)
    return "withdrawn: this device carries nothing any more, and its token is deleted here"


def _try(address: str, token: str) -> None:
    """Check that the marketplace knows the token, before anything is written down.

    Raises:
        NoConsentError: it does not, or it does not answer.
    """
    try:
        api.try_token(address, token)
    except ApiError as error:
        if error.code == _UNKNOWN_TOKEN:
            raise NoConsentError(
                f"{address} does not know this token, or has revoked it; nothing was changed. "
                "Make another one in your account"
            ) from None
        words = str(error).rstrip(".")
        raise NoConsentError(f"the token was not tried: {words}; nothing was changed") from None


def _understood(reply: dict[str, Any]) -> tuple[str, str, str, int, str]:
    text, digest = reply.get("text"), reply.get("terms_hash")
    host, port = reply.get("host"), reply.get("port")
    pin = reply.get("certificate_sha256") or ""
    if not isinstance(text, str) or not isinstance(digest, str):
        raise NoConsentError("this marketplace shows no terms for exits")
    if not hmac.compare_digest(hashlib.sha256(text.encode()).hexdigest().encode(), digest.encode()):
        raise NoConsentError("the terms do not match their hash")
    if not isinstance(host, str) or not host or not isinstance(port, int) or not 0 < port < 1 << 16:
        raise NoConsentError("this marketplace accepts no exits now")
    if not isinstance(pin, str) or (pin and not record.is_digest(pin)):
        raise NoConsentError("the marketplace names its certificate in an unknown form")
    return text, digest, host, port, pin


def _describe(limits: DeviceLimits) -> str:
    gigabytes = {
        "a day": limits.bytes_per_day,
        "a month": limits.bytes_per_month,
    }
    parts = [f"{size / 10**9:g} GB {span}" for span, size in gigabytes.items() if size]
    if limits.bytes_per_second:
        parts.append(f"{limits.bytes_per_second * 8 / 10**6:g} Mbit/s")
    parts.append(f"{limits.connections or 'any number of'} connections at once")
    parts.append(f"{limits.dials_per_second} new connections a second")
    parts.append(f"hours {limits.hours}" if limits.hours else "at all hours")
    parts.append(f"ports {', '.join(map(str, limits.ports))}")
    parts.append("connections and datagrams (UDP)" if limits.udp else "no datagrams (UDP)")
    return "; ".join(parts)
