"""The API of a Kubernetes cluster: its access, and its answers.

The standard library reads no YAML, so a kubeconfig has to be one in JSON, which `kubectl` writes;
within a cluster no kubeconfig exists, and the files of the pod's own service account are used.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from proxyctl import files
from proxyctl.words import plain_line

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

CALL_SECONDS: Final = 20.0  # a server that is busy answers within seconds
EXPORT: Final = "kubectl config view --raw --flatten --minify -o json"

_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONFIG_MAX_BYTES: Final = 1 << 20
_ANSWER_MAX_BYTES: Final = 64 << 20  # of one page of a list: 250 pods at their largest
_PAGE: Final = 250  # objects
_PAGES_MAX: Final = 400  # ends a list that a faulty server continues for ever
_WORDS_MAX_CHARACTERS: Final = 400  # of a server's words about a refusal
_KEEP_ALIVE_SECONDS: Final = 30  # of silence, before the kernel asks whether the server is there
_KEEP_ALIVE_TRIES: Final = 3


class KubeError(Exception):
    """The API server refused a request, or did not answer.

    Args:
        message: for a person.
        status: of its answer; 0 if the server did not answer, so that its state is unknown.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Access:
    """The address of an API server, and the credentials of this agent.

    Attributes:
        host: of the server.
        port: of the server.
        prefix: of every path, for a server behind another one.
        server_name: that its certificate must have.
        authority: the signers of its certificate, PEM; "" for those this machine trusts anyway.
        certificate: of ours, PEM, with its key; "" for none.
        token: of ours; "" for none.
        token_file: where it is instead, which is read each time: a cluster renews it.
        namespace: that the configuration names.
    """

    host: str
    port: int
    prefix: str = ""
    server_name: str = ""
    authority: str = ""
    certificate: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    namespace: str = "default"


def read_access(path: str) -> Access:
    """Return the access of a kubeconfig, or of the pod that this runs in if no path is given.

    Raises:
        KubeError: there is nothing that could be used; the message names the remedy.
    """
    return _of_file(Path(path)) if path else _of_pod()


def _of_pod() -> Access:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    if not host or not port.isdigit():
        raise KubeError("the settings name no kubeconfig, and this is no pod of a cluster")
    try:
        return Access(
            host=host,
            port=int(port),
            authority=(_POD / "ca.crt").read_text("ascii"),
            token_file=str(_POD / "token"),
            namespace=(_POD / "namespace").read_text("utf-8").strip(),
        )
    except (OSError, ValueError) as error:
        raise KubeError(f"this pod has no service account: {error}") from None


def _of_file(path: Path) -> Access:
    try:
        stored = files.read(path, _CONFIG_MAX_BYTES)
    except files.FileError as error:
        raise KubeError(f"{error}; it is JSON that is read here, not YAML") from None
    if stored is None:
        raise KubeError(f"{path} is not there")
    if not files.is_private(path):
        raise KubeError(f"others on this machine can read {path}; run: chmod 600 {path}")
    try:
        context = _named(stored, "context", stored["current-context"])
        cluster = _named(stored, "cluster", context["cluster"])
        user = _named(stored, "user", context["user"])
        return _access(cluster, user, str(context.get("namespace") or "default"), path.parent)
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise KubeError(f"{path} cannot be used: {error!r}") from None


def _named(stored: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    found = [each[kind] for each in stored[f"{kind}s"] if each["name"] == name]
    if not found:
        raise ValueError(f"it has no {kind} {name}")
    return dict(found[0])


def _access(
    cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str, folder: Path
) -> Access:
    parts = urlsplit(str(cluster["server"]))
    if parts.scheme != "https" or parts.hostname is None:
        raise KubeError(f"{cluster['server']} is no address of a server that speaks TLS")
    if cluster.get("insecure-skip-tls-verify"):
        raise KubeError("no secrets are sent to a server whose certificate is not checked")
    if cluster.get("proxy-url"):
        raise KubeError("a cluster behind a proxy (proxy-url) cannot be reached")
    if user.get("exec") or user.get("auth-provider"):
        raise KubeError(
            "it logs in by a program of its cloud; make a service account for the agent, with a"
            " token that does not end, and name that instead"
        )
    certificate = _text(user, "client-certificate", folder)
    access = Access(
        host=parts.hostname,
        port=parts.port or 443,
        prefix=parts.path.rstrip("/"),
        server_name=str(cluster.get("tls-server-name") or ""),
        authority=_text(cluster, "certificate-authority", folder),
        certificate=f"{certificate}\n{_text(user, 'client-key', folder)}" if certificate else "",
        token=str(user.get("token") or ""),
        token_file=str(folder / user["tokenFile"]) if user.get("tokenFile") else "",
        namespace=namespace,
    )
    if not (access.certificate or access.token or access.token_file):
        raise KubeError("it names neither a token nor a client certificate")
    return access


def _text(fields: Mapping[str, Any], name: str, folder: Path) -> str:
    """Return a value of a kubeconfig, or the content of the file that it names."""
    data = fields.get(f"{name}-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=True).decode("ascii")
        except (binascii.Error, UnicodeError):
            raise ValueError(f"{name}-data is not Base64 of ASCII text") from None
    return (folder / fields[name]).read_text("ascii") if fields.get(name) else ""


class KubeApi:
    """Calls of an API server, each on a connection of its own; any thread may call.

    Raises:
        KubeError: a certificate cannot be used.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        try:
            self._tls = ssl.create_default_context(cadata=access.authority or None)
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
            if access.certificate:
                _show(self._tls, access.certificate)
        except (ssl.SSLError, ValueError) as error:
            raise KubeError(f"the certificates of the cluster cannot be used: {error}") from None

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return an object; raises as `call`."""
        return self.call("GET", path, query=query)

    def post(self, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object, and return it as it is then; raises as `call`."""
        return self.call("POST", path, fields=fields)

    def delete(self, path: str, **options: object) -> None:
        """Delete an object; one that is not there is not an error; raises as `call`."""
        try:
            self.call(
                "DELETE", path, fields={"kind": "DeleteOptions", "apiVersion": "v1", **options}
            )
        except KubeError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def items(self, path: str, selector: str = "") -> list[dict[str, Any]]:
        """Return all objects of a list, as far as a selector of labels takes them.

        Raises:
            KubeError: as `call`; or the list has no end.
        """
        found: list[dict[str, Any]] = []
        query = {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {})}
        for _ in range(_PAGES_MAX):
            page = self.get(path, query)
            found += page.get("items") or []
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return found
            query = {**query, "continue": str(following)}
        raise KubeError(f"the list {path} has no end")

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the answer of the server.

        Raises:
            KubeError: it refuses, or does not answer.
        """
        connection = self._connection(CALL_SECONDS)
        try:
            with self._ask(connection, method, path, query, fields) as answer:
                data = answer.read(_ANSWER_MAX_BYTES)
            body = json.loads(data)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise KubeError(f"{self._place()} does not answer: {_words(error)}") from None
        finally:
            connection.close()
        if not isinstance(body, dict):
            raise KubeError(f"{self._place()} does not answer as a cluster does")
        return body

    def lines(
        self, path: str, query: Mapping[str, str], size: int, opened: Opened
    ) -> Generator[bytes, None, None]:
        """Yield the bytes of a log, piece by piece as they come, up to its clean end.

        Args:
            path: of the log.
            query: of the request.
            size: of a piece at most, in bytes.
            opened: receives the connection, so that another thread can end this.

        Raises:
            KubeError: the server refuses, or the log breaks off.
        """
        connection = self._connection(CALL_SECONDS)
        try:
            connection.connect()
            connected = connection.sock  # not kept there, where an answer is the last one on it
            with self._ask(connection, "GET", path, query, None) as answer:
                _wait_for_ever(connected)
                opened.take(connected)
                while True:
                    piece = answer.read1(size)
                    if not piece:
                        if answer.length:  # of a body in chunks, `read1` tells by itself
                            raise KubeError(f"{self._place()} has ended the log early")
                        return
                    yield piece
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise KubeError(f"{self._place()} does not answer: {_words(error)}") from None
        finally:
            opened.let_go()
            connection.close()

    def _connection(self, seconds: float) -> http.client.HTTPSConnection:
        access = self.access
        kind = http.client.HTTPSConnection
        if access.server_name:
            return _Named(access, self._tls, seconds)
        return kind(access.host, access.port, timeout=seconds, context=self._tls)

    def _ask(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        fields: Mapping[str, Any] | None,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json, */*"}
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = None
        if fields is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(fields).encode()
        target = self.access.prefix + quote(path)
        connection.request(
            method, f"{target}?{urlencode(query)}" if query else target, body, headers
        )
        answer = connection.getresponse()
        if answer.status >= http.client.MULTIPLE_CHOICES:
            with answer:
                raise KubeError(_refusal(answer), answer.status)
        return answer

    def _token(self) -> str:
        if not self.access.token_file:
            return self.access.token
        try:
            return Path(self.access.token_file).read_text("ascii").strip()
        except (OSError, ValueError) as error:
            raise KubeError(f"the token of the cluster cannot be read: {error}") from None

    def _place(self) -> str:
        return f"the API server {self.access.host}:{self.access.port}"


class Opened:
    """The connection of a reader, which another thread may end."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def take(self, connected: socket.socket) -> None:
        """Store the socket."""
        self._socket = connected

    def let_go(self) -> None:
        """Forget the connection; its opener closes it."""
        self._socket = None

    def end(self) -> None:
        """End the stream for its reader."""
        connected = self._socket
        if connected is not None:
            with suppress(OSError):  # it has just been closed
                # Not the method of TLS, which would take the reader's state away under it.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _Named(http.client.HTTPSConnection):
    """A connection to a server whose certificate has another name than its address."""

    def __init__(self, access: Access, tls: ssl.SSLContext, seconds: float) -> None:
        super().__init__(access.host, access.port, timeout=seconds, context=tls)
        self._server_name = access.server_name
        self._tls = tls

    def connect(self) -> None:
        """Connect, and ask for that name."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


def _show(tls: ssl.SSLContext, certificate: str) -> None:
    """Load our certificate into a context; the standard library takes it only from files."""
    descriptor = os.memfd_create("certificate")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(certificate.encode("ascii"))
        tls.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _wait_for_ever(connected: socket.socket) -> None:
    """Remove the time limit of a silent job; the kernel's keepalive still detects a lost server."""
    connected.settimeout(None)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEP_ALIVE_SECONDS),
        ("TCP_KEEPINTVL", _KEEP_ALIVE_SECONDS),
        ("TCP_KEEPCNT", _KEEP_ALIVE_TRIES),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _refusal(answer: http.client.HTTPResponse) -> str:
    """Return the server's own words."""
    said = ""
    with suppress(ValueError, RecursionError, AttributeError):
        said = str(json.loads(answer.read(_ANSWER_MAX_BYTES)).get("message") or "")
    return plain_line(said)[:_WORDS_MAX_CHARACTERS] or f"{answer.status} {answer.reason}"


def _words(error: BaseException) -> str:
    return plain_line(str(error))[:_WORDS_MAX_CHARACTERS] or type(error).__name__
