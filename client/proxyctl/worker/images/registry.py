"""Reads images from registries: the OCI distribution protocol, as far as pulling needs it.

The answers of a registry come from a stranger: every content is checked against its digest, and
every size against the announced one. Every address is judged before a connection, also after a
redirect.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import re
import socket
import ssl
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urljoin, urlsplit

from proxyctl.words import plain_line
from proxyctl.worker.base.references import DEFAULT_REGISTRY
from proxyctl.worker.base.watch import Pace, Watch, encrypted, head_of
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.network.outward import ForbiddenError, anywhere
from proxyctl.worker.task.patience import IMAGE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from urllib.parse import SplitResult

    from proxyctl.worker.base.references import Reference
    from proxyctl.worker.network.outward import Dial
    from proxyctl.worker.task.patience import Patience

_logger = logging.getLogger("worker")

STALL_SECONDS: Final = 30.0  # without a byte; a busy registry may take ten
CHUNK_BYTES: Final = 1 << 18
_MANIFEST_MAX_BYTES: Final = 4 << 20  # the limit of registries
_TOKEN_MAX_BYTES: Final = 64 << 10
_REDIRECTS_MAX: Final = 5
_DOCKER_HUB: Final = "registry-1.docker.io"
_MANIFESTS: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_PARAMETER: Final = re.compile(r'([a-z]+)="([^"]*)"')
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


def failure(message: str) -> TaskError:
    """Return the error of an image that is not available."""
    return TaskError(IMAGE, message)


@dataclass(frozen=True)
class Manifest:
    """The manifest of an image from a registry, checked against its digest.

    Attributes:
        digest: "sha256:…" of its text.
        fields: the JSON.
    """

    digest: str
    fields: Mapping[str, Any]


class Registry:
    """Client of one registry for one repository.

    Args:
        reference: the image; its host and name are used.
        dial: connects to it, to where it redirects, and to where it has tokens.
        deadline: monotonic time after which nothing is waited for any more.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        dial: Dial,
        deadline: float,
        patience: Patience,
    ) -> None:
        self.host = reference.host
        self._name = reference.name
        self._dial = dial
        self._deadline = deadline
        self._patience = patience
        self._token = ""
        self._pace = Pace()  # of the answer that comes just now
        self._base = _base_of(reference.host)

    def manifest(self, which: str) -> Manifest:
        """Return a manifest by its tag, or by its digest.

        Raises:
            TaskError: it is missing, or has another digest.
        """
        with self._get(f"manifests/{which}", ", ".join(_MANIFESTS)) as response:
            data = b"".join(self._chunks(response, _MANIFEST_MAX_BYTES))
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if ":" in which and digest != which:
            raise failure(f"{self.host} gave something else for the digest {which}")
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise failure(f"{self.host} gave a manifest that is no JSON object")
        return Manifest(digest, fields)

    def blob(self, digest: str, size: int) -> Generator[bytes, None, None]:
        """Yield a content piece by piece; the digest is checked after the last piece.

        Close the generator to end the connection before the last piece.

        Raises:
            TaskError: it is missing, or has another digest or size.
        """
        total, hashed = 0, hashlib.sha256()
        with self._get(f"blobs/{digest}", "*/*") as response:
            for chunk in self._chunks(response, size):
                total += len(chunk)
                hashed.update(chunk)
                yield chunk
        if total != size or f"sha256:{hashed.hexdigest()}" != digest:
            raise failure(f"{self.host} gave something else for the digest {digest}")

    def _chunks(self, response: http.client.HTTPResponse, most: int) -> Iterator[bytes]:
        total = 0
        while True:
            self._require_time()
            try:
                chunk = response.read1(CHUNK_BYTES)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._require_time()
                raise failure(f"{self.host} broke off: {_words(error)}") from None
            if not chunk:
                self._require_time()
                return
            total += len(chunk)
            self._pace.add(len(chunk))
            self._patience.came(len(chunk))
            if total > most:
                raise failure(f"{self.host} sent more than the {most} bytes that it had announced")
            yield chunk

    def _is_over(self) -> bool:
        return self._patience.is_over() or time.monotonic() > self._deadline

    def _is_in_vain(self) -> bool:
        return self._is_over() or self._pace.is_too_slow()

    def _require_time(self) -> None:
        if self._patience.is_over():
            raise failure("it was cancelled")
        if time.monotonic() > self._deadline or self._pace.is_too_slow():
            raise failure(f"{self.host} is too slow: the time for pulling an image is over")

    @contextmanager
    def _get(self, path: str, accept: str) -> Iterator[http.client.HTTPResponse]:
        address = f"{self._base}/v2/{self._name}/{path}"
        for attempt in range(2):
            with self._request(address, accept) as response:
                if response.status == http.client.UNAUTHORIZED and attempt == 0:
                    self._token = self._fetch_token(response.headers.get("WWW-Authenticate", ""))
                    continue
                self._require_content(response, path)
                yield response
                return

    def _require_content(self, response: http.client.HTTPResponse, path: str) -> None:
        status = response.status
        if status == http.client.OK:
            return
        which = f"{self.host}/{self._name}"
        if status == http.client.NOT_FOUND:
            raise failure(f"there is no {which} with {path.replace('/', ' ')}")
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise failure(f"{which} is not public: its registry wants a login")
        if status == http.client.TOO_MANY_REQUESTS:
            raise failure(
                f"{self.host} has had too many requests from this device; later it may do"
            )
        raise failure(f"{self.host} answered {status} for {which}")

    def _fetch_token(self, challenge: str) -> str:
        """Return an anonymous token from the address that the registry names."""
        if not challenge.lower().startswith("bearer "):
            raise failure(f"{self.host}/{self._name} is not public: its registry wants a login")
        said = dict(_PARAMETER.findall(challenge))
        scope = f"repository:{self._name}:pull"
        query = urlencode({"service": said.get("service", ""), "scope": scope})
        with self._request(f"{said.get('realm', '')}?{query}", "application/json") as response:
            if response.status != http.client.OK:
                raise failure(f"{self.host}/{self._name} is not public: its registry wants a login")
            data = b"".join(self._chunks(response, _TOKEN_MAX_BYTES))
        with suppress(ValueError, RecursionError):
            fields = json.loads(data)
            known = fields if isinstance(fields, dict) else {}
            token = known.get("token") or known.get("access_token")
            if isinstance(token, str) and token.isascii() and token.isprintable():
                return token
        raise failure(f"{self.host} gave a token that cannot be understood")

    @contextmanager
    def _request(self, address: str, accept: str) -> Iterator[http.client.HTTPResponse]:
        headers = {"Accept": accept, "User-Agent": "proxyctl", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        for _ in range(_REDIRECTS_MAX):
            connection = self._connect(address)
            sock = connection.sock  # the connection forgets its socket if it ends with the answer
            try:
                with closing(self._ask(connection, address, headers)) as response:
                    if response.status not in _REDIRECTS:
                        self._pace = Pace()
                        with Watch(sock, self._is_in_vain):
                            yield response
                        return
                    following = urljoin(address, response.headers.get("Location", ""))
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise failure(f"a request to {self.host} failed: {_words(error)}") from None
            finally:
                connection.close()
            if urlsplit(following).netloc != urlsplit(address).netloc:
                headers.pop("Authorization", None)  # only this registry may have it
            address = following
        raise failure(f"{self.host} redirects without an end")

    def _connect(self, address: str) -> http.client.HTTPConnection:
        try:
            parts = urlsplit(address)
            host, port = _place_of(parts)
        except ValueError:
            raise failure(f"{self.host} names an invalid address") from None
        if parts.scheme not in ("http", "https") or not host:
            raise failure(f"{self.host} names an invalid address")
        if parts.scheme == "http" and not _is_loopback(host):
            raise failure(f"{host} is a server without encryption, which cannot be trusted")
        try:
            sock = self._dial(host, port, STALL_SECONDS)
            if parts.scheme == "https":
                sock = encrypted(sock, ssl.create_default_context(), host, self._is_over)
        except (ForbiddenError, OSError) as error:
            # A buyer must not use this device to find open ports, or names of the owner's network.
            _logger.info("the registry %s cannot be reached: %s", host, _words(error))
            raise failure(f"{host} cannot be reached on the public internet") from None
        connection = http.client.HTTPConnection(host, port)
        connection.sock = sock
        return connection

    def _ask(
        self, connection: http.client.HTTPConnection, address: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        parts = urlsplit(address)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        return head_of(connection, connection.sock, path, headers, self._is_over)


def way_to(host: str, named: Iterable[str], guarded: Dial) -> Dial:
    """Return the connector for a registry, its redirections and its token address.

    The owner may name registries of the own network, and the way to those is not judged. Any other
    place is judged, also if one of those registries redirects to it or names it for tokens: a
    stranger chooses the image, and may have put it there.

    Args:
        host: of the registry, as it stands in an image's name.
        named: hosts of registries that the owner has named.
        guarded: connects to places of strangers.
    """
    places = {_place(each) for each in named} - {None}
    if _place(host) not in places:
        return guarded

    def dial(to: str, port: int, seconds: float) -> socket.socket:
        way = anywhere if (to, port) in places else guarded
        return way(to, port, seconds)

    return dial


def _place(host: str) -> tuple[str, int] | None:
    """Return the host and port of a registry; None if there can be no such place."""
    try:
        return _place_of(urlsplit(_base_of(host)))
    except ValueError:
        return None


def _place_of(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _base_of(host: str) -> str:
    host = _DOCKER_HUB if host == DEFAULT_REGISTRY else host
    return f"{'http' if _is_loopback(host) else 'https'}://{host}"


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] or host if host.count(":") == 1 else host
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _words(error: BaseException) -> str:
    if isinstance(error, socket.timeout):
        return f"it said nothing for {STALL_SECONDS:g} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return plain_line(str(text))[:200]
