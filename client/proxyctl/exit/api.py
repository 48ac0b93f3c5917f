"""What the agent asks of the marketplace's API: the terms, and the end of a consent."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from proxyctl.exit.words import OwnerError, plain_line

_SECONDS: Final = 20.0
_REPLY_MAX_BYTES: Final = 1 << 20


class ApiError(OwnerError):
    """The API did not do what it was asked; the message is for the owner of the device.

    `code` is the API's own word for it; empty where it said none.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class _NoRedirects(HTTPRedirectHandler):
    """A token is sent to the address that its owner gave, and to no other."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""
        return


def api_address(text: str) -> str:
    """Return the address of an API in one spelling.

    Raises:
        ApiError: a token would cross the network in clear, or it is no address.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ApiError(f"{text!r} is no address of an API; it is like https://market.example")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ApiError(f"{text!r} would carry your token in clear; it has to begin with https://")
    return text.rstrip("/")


def get_terms(api: str) -> dict[str, Any]:
    """Return the terms for exits, and where exits attach.

    Raises:
        ApiError: they cannot be had.
    """
    return _ask(Request(f"{api}/api/exits/terms", headers=_HEADERS))  # noqa: S310 - see api_address


def revoke(api: str, token: str) -> None:
    """Withdraw the consent of this device.

    Raises:
        ApiError: it was not withdrawn there.
    """
    headers = {**_HEADERS, "X-Worker-Token": token}
    _ask(Request(f"{api}/api/worker/exit/revoke", data=b"{}", headers=headers, method="POST"))  # noqa: S310 - see api_address


_HEADERS: Final = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "Prefer": "handling=strict",
}


def _ask(request: Request) -> dict[str, Any]:
    opener: OpenerDirector = build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=_SECONDS) as reply:
            data = reply.read(_REPLY_MAX_BYTES)
    except HTTPError as error:
        with error:
            raise _refusal(error.code, error.read(_REPLY_MAX_BYTES)) from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise ApiError(f"{request.host} cannot be reached: {plain_line(str(reason))}") from None
    fields = _object(data)
    if fields is None:
        raise ApiError(f"{request.host} did not answer as the API of a marketplace does")
    return fields


def _refusal(status: int, data: bytes) -> ApiError:
    fields = _object(data) or {}
    error = fields.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return ApiError(f"the API answered {status}")
    return ApiError(plain_line(error["message"]), str(error.get("code", "")))


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
