"""The command that requests the health of the daemon, for a container or a monitor."""

import http.client
import json
import ssl
from typing import NamedTuple

from config.settings import Settings
from proxyd.ops.base.errors import CannotServeError

WAIT_SECONDS = 5.0
REPLY_MAX_BYTES = 64 * 1024
# The address of this machine for a daemon that listens on all of its addresses.
OWN_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - these are looked up


class Health(NamedTuple):
    """Whether the daemon is ready, and the sentence about it."""

    is_ready: bool
    words: str


def health_of(settings: Settings, wait_seconds: float = WAIT_SECONDS) -> Health:
    """Return the health of the daemon that runs with these settings on this machine.

    Args:
        settings: the settings of the daemon.
        wait_seconds: the longest wait for each part of the reply.

    Raises:
        CannotServeError: the port of the API is not in the settings.
    """
    api = settings.api
    if not api.port:
        raise CannotServeError("api.port is 0, so the port of the daemon is not known")
    address = OWN_ADDRESS.get(api.host, api.host)
    place = f"[{address}]:{api.port}" if ":" in address else f"{address}:{api.port}"
    connection = _connection(settings, address, wait_seconds)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        body = reply.read(REPLY_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Health(False, f"{place} does not answer: {reason}")
    finally:
        connection.close()
    if reply.status == http.client.OK:
        return Health(True, f"{place} is ready")
    return Health(False, f"{place} is not ready: {_message(body) or f'status {reply.status}'}")


def _connection(
    settings: Settings, address: str, wait_seconds: float
) -> http.client.HTTPConnection:
    port = settings.api.port
    if not settings.api.tls_cert:
        return http.client.HTTPConnection(address, port, timeout=wait_seconds)
    # The certificate has the public name, not this address. The request has no secret.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(address, port, timeout=wait_seconds, context=context)


def _message(body: bytes) -> str:
    """Return the message of an error; nothing for another reply."""
    try:
        reply = json.loads(body)
    except ValueError:
        return ""
    error = reply.get("error") if isinstance(reply, dict) else None
    words = error.get("message") if isinstance(error, dict) else None
    return words if isinstance(words, str) else ""
