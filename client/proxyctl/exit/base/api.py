"""Requests to the marketplace's API: the terms, and the end of a consent."""

from __future__ import annotations

from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from proxyctl.api import ApiError, object_of, refusal_of
from proxyctl.words import plain_line

_SECONDS: Final = 20.0
_REPLY_MAX_BYTES: Final = 1 << 20


class _NoRedirects(HTTPRedirectHandler):
    """A token is sent to the address that its owner gave, and to no other."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""
        return


def get_terms(api: str) -> dict[str, Any]:
    """Return the terms for exits, and where exits attach.

    Raises:
        ApiError: they are not available.
    """
    return _ask(Request(f"{api}/api/exits/terms", headers=_HEADERS))  # noqa: S310 - see api_address


def try_token(api: str, token: str) -> None:
    """Ask something that only a device may, and changes nothing.

    Raises:
        ApiError: the marketplace does not know the token, or does not answer.
    """
    headers = {**_HEADERS, "X-Worker-Token": token}
    _ask(Request(f"{api}/api/worker/jobs?limit=1", headers=headers))  # noqa: S310 - see api_address


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
            raise refusal_of(error.code, error.read(_REPLY_MAX_BYTES)) from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise ApiError(f"{request.host} cannot be reached: {plain_line(str(reason))}") from None
    fields = object_of(data)
    if fields is None:
        raise ApiError(f"{request.host} did not answer as the API of a marketplace does")
    return fields
