"""Registries of images on loopback: a real one, and one that lies."""

import gzip
import hashlib
import http.client
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

from support.base.ports import free_port
from support.base.waiting import until_true
from support.workers.engines import require

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "other")


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class ImageParts:
    """An image as a registry keeps it: contents by digest, and its manifest."""

    def __init__(self, *layers: bytes, config: dict[str, Any] | None = None) -> None:
        self.blobs: dict[str, bytes] = {}
        unpacked = []
        described = []
        for layer in layers:
            unpacked.append(digest_of(layer))
            described.append(self.add(gzip.compress(layer, 1)))
        fields = {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": {"Cmd": ["/bin/sh"], **(config or {})},
            "rootfs": {"type": "layers", "diff_ids": unpacked},
        }
        self.fields = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add(json.dumps(fields).encode()),
            "layers": described,
        }

    def add(self, blob: bytes) -> dict[str, Any]:
        self.blobs[digest_of(blob)] = blob
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        return {"mediaType": kind, "digest": digest_of(blob), "size": len(blob)}

    @property
    def manifest(self) -> bytes:
        return json.dumps(self.fields).encode()

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def index(self) -> bytes:
        """An index with this image for this machine, and one for another architecture."""
        entries = [
            {"platform": {"os": "linux", "architecture": "s390x"}, "digest": digest_of(b"none")},
            {"platform": {"os": "linux", "architecture": ARCHITECTURE}, "digest": self.digest},
        ]
        listed = [{"mediaType": MANIFEST, "size": len(self.manifest), **each} for each in entries]
        return json.dumps(
            {"schemaVersion": 2, "mediaType": INDEX, "manifests": listed[1:]}
        ).encode()


def layer_of(files: dict[str, bytes]) -> bytes:
    """Return a layer with some files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def push(host: str, name: str, tag: str, image: ImageParts, *, as_index: bool = False) -> None:
    """Put an image into a registry, as its protocol has it."""
    for digest, blob in image.blobs.items():
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("POST", f"/v2/{name}/blobs/uploads/")
        place = connection.getresponse().headers["Location"]
        connection.close()
        connection = http.client.HTTPConnection(host, timeout=20)
        path = place.partition(host)[2] or place
        octets = {"Content-Type": "application/octet-stream"}
        connection.request("PUT", f"{path}&digest={digest}", blob, octets)
        assert connection.getresponse().status == 201
        connection.close()
    for which, kind, text in (
        *((image.digest, MANIFEST, image.manifest),),
        *(((tag, INDEX, image.index),) if as_index else ((tag, MANIFEST, image.manifest),)),
    ):
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("PUT", f"/v2/{name}/manifests/{which}", text, {"Content-Type": kind})
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        connection.close()


@contextmanager
def registry() -> Iterator[str]:
    """A real registry; its host and port."""
    require("docker-registry")
    with tempfile.TemporaryDirectory(prefix="proxyd-registry-") as folder:
        host = f"127.0.0.1:{free_port()}"
        settings = Path(folder) / "settings.yml"
        storage = {"filesystem": {"rootdirectory": f"{folder}/data"}}
        fields = {"version": 0.1, "log": {"level": "error"}, "storage": storage}
        settings.write_text(json.dumps({**fields, "http": {"addr": host}}))
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                ["docker-registry", "serve", settings], stdout=log, stderr=log
            )
        try:
            until_true(lambda: _answers(host), "the registry does not answer")
            yield host
        finally:
            process.terminate()
            process.wait(20)


def _answers(host: str) -> bool:
    connection = http.client.HTTPConnection(host, timeout=5)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Liar:
    """A registry that answers as a test tells it: by path, a status, headers and a body."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.stalls: set[str] = set()
        self.asked: list[str] = []
        self.released = Event()
        self.host = ""

    def serve(self, name: str, image: ImageParts, tag: str = "latest") -> None:
        """Answer for an image truly."""
        for which in (tag, image.digest):
            self.answers[f"/v2/{name}/manifests/{which}"] = (200, {}, image.manifest)
        for digest, blob in image.blobs.items():
            self.answers[f"/v2/{name}/blobs/{digest}"] = (200, {}, blob)


@contextmanager
def liar() -> Iterator[Liar]:
    """A registry whose answers a test sets."""
    told = Liar()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            told.asked.append(self.path)
            status, headers, body = told.answers.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.path in told.stalls:
                self.wfile.write(body[:10])
                told.released.wait(60)
            else:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told.host = f"127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield told
    finally:
        told.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
