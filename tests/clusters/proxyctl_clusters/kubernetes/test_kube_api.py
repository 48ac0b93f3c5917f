"""proxyctl_clusters.kubernetes.kube_api: kubeconfigs, and a server with wrong
answers."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.base.ports import closed_port
from support.targets.tls import make_certificate

from proxyctl_clusters.kubernetes import kube_api
from proxyctl_clusters.kubernetes.kube_api import KubeApi, KubeError, Opened, read_access

TOKEN = "a token of the agent"
CHUNKED = b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


class Handler(BaseHTTPRequestHandler):
    """An API server of a few answers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        answers = {
            "/list?limit=250": (200, {"items": [1], "metadata": {"continue": "next"}}),
            "/list?limit=250&continue=next": (200, {"items": [2], "metadata": {}}),
            "/endless?limit=250": (200, {"items": [], "metadata": {"continue": "c"}}),
            "/endless?limit=250&continue=c": (200, {"items": [], "metadata": {"continue": "c"}}),
            "/no": (403, {"message": f"no, says\n the {'server ' * 200}"}),
            "/array": (200, [1]),
        }
        if self.path.startswith("/log"):
            self._log()
            return
        status, said = answers.get(self.path, (404, {"message": "not found"}))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, said = 401, {"message": "who are you"}
        self._answer(status, json.dumps(said).encode())

    def do_DELETE(self) -> None:
        self.do_GET()

    def _log(self) -> None:
        self.send_response(200)
        if "short" in self.path:
            self.send_header("Content-Length", "10")
            self.end_headers()
            self.wfile.write(b"six...")
        else:
            self.send_header("Transfer-Encoding", "chunked")
            if "last" in self.path:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(CHUNKED[: -5 if "cut" in self.path else None])
        self.close_connection = True

    def _answer(self, status: int, data: bytes) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that does not trust its certificate goes away


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, Any]]:
    """Serve, and give the kubeconfig for it."""
    certificate = make_certificate(folder)
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = certificate.server.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield config(server.server_address[1], certificate.path.read_bytes())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def config(port: int, authority: bytes) -> dict[str, Any]:
    data = base64.b64encode(authority).decode()
    server = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": data}
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "s", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "s", "cluster": server}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
    }


def write(path: Path, fields: object) -> str:
    path.write_text(json.dumps(fields))
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    folder = tmp_path_factory.mktemp("api")
    with serving(folder) as fields:
        yield KubeApi(read_access(write(folder / "kube.json", fields)))


def test_lists_are_read_to_their_end_and_not_for_ever(
    api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.items("/list") == [1, 2]
    monkeypatch.setattr(kube_api, "_PAGES_MAX", 3)
    with pytest.raises(KubeError, match="has no end"):
        api.items("/endless")


def test_a_refusal_has_the_servers_words_on_one_line(api: KubeApi) -> None:
    with pytest.raises(KubeError) as caught:
        api.get("/no")
    assert caught.value.status == 403
    assert str(caught.value).startswith("no, says the server")
    assert len(str(caught.value)) <= 400
    api.delete("/what-is-not-there")


def test_a_malformed_answer_is_an_error(api: KubeApi) -> None:
    with pytest.raises(KubeError) as caught:
        api.get("/array")
    assert caught.value.status == 0


def test_a_log_that_breaks_off_is_told_from_one_that_ends(api: KubeApi) -> None:
    for path in ("/log", "/log-last"):  # the bytes between may let no connection be used again
        assert b"".join(api.lines(path, {}, 100, Opened())) == b"onetwo"
    for path in ("/log-cut", "/log-short"):
        with pytest.raises(KubeError):
            list(api.lines(path, {}, 100, Opened()))


def test_a_server_that_is_away_or_is_another_one_is_not_spoken_to(
    api: KubeApi, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path).path.read_bytes()
    with closed_port() as port:
        for each in (port, api.access.port):
            fields = config(each, other)
            stranger = KubeApi(read_access(write(tmp_path / "kube.json", fields)))
            with pytest.raises(KubeError, match="does not answer") as caught:
                stranger.get("/version")
            assert caught.value.status == 0


def test_a_token_in_a_file_is_read_each_time_as_clusters_renew_it(
    api: KubeApi, tmp_path: Path
) -> None:
    authority = base64.b64encode(api.access.authority.encode()).decode()
    fields = config(api.access.port, base64.b64decode(authority))
    fields["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "token").write_text("an old one\n")
    renewed = KubeApi(read_access(write(tmp_path / "kube.json", fields)))
    with pytest.raises(KubeError, match="who are you"):
        renewed.get("/list")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert renewed.items("/list") == [1, 2]


def test_no_token_is_shown_by_mistake(api: KubeApi) -> None:
    assert TOKEN not in repr(api.access)


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        ("clusters", {"server": "http://127.0.0.1:1"}, "no address"),
        ("clusters", {"insecure-skip-tls-verify": True}, "not checked"),
        ("clusters", {"proxy-url": "http://127.0.0.1:1"}, "behind a proxy"),
        ("clusters", {"certificate-authority-data": "?"}, "cannot be used"),
        ("users", {"exec": {"command": "aws"}}, "make a service account"),
        ("users", {"token": ""}, "neither a token nor a client certificate"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: Path, place: str, change: dict[str, Any], words: str
) -> None:
    fields = config(1, b"")
    fields[place][0][place[:-1]].update(change)
    with pytest.raises(KubeError, match=words):
        read_access(write(tmp_path / "kube.json", fields))


def test_a_file_that_is_no_kubeconfig_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "kube.json"
    with pytest.raises(KubeError, match="is not there"):
        read_access(str(path))
    path.write_text("apiVersion: v1\n")
    with pytest.raises(KubeError, match="JSON that is read here, not YAML"):
        read_access(str(path))
    path.write_text("{}")
    path.chmod(0o644)
    with pytest.raises(KubeError, match="chmod 600"):
        read_access(str(path))
    path.chmod(0o600)
    with pytest.raises(KubeError, match="current-context"):
        read_access(str(path))


def test_without_a_kubeconfig_only_a_pod_has_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeError, match="no pod of a cluster"):
        read_access("")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(KubeError, match="no service account"):
        read_access("")
