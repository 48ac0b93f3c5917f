"""The address and the refusals of the marketplace's API, for all parts of the program."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from proxyctl.words import OwnerError, plain_line


class ApiError(OwnerError):
    """A request that the API refused or did not answer; the message is for the owner of the device.

    `code` is the API's own word for it; empty where it said none.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


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


def refusal_of(status: int, data: bytes) -> ApiError:
    """Return the refusal that a reply with another status than 200 is."""
    fields = object_of(data) or {}
    error = fields.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return ApiError(f"the API answered {status}")
    return ApiError(plain_line(error["message"]), str(error.get("code", "")))


def object_of(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a reply; None if the reply is no JSON object."""
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
