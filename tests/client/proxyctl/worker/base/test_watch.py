"""proxyctl.worker.base.watch: no sender of single bytes holds a device, neither for long nor
stopped."""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.base.cases import cases
from support.workers.outward import to_loopback

from proxyctl.worker.base import watch as watch_module
from proxyctl.worker.base.link import LinkError
from proxyctl.worker.base.references import parse
from proxyctl.worker.executors.base.base import INPUTS, TaskError
from proxyctl.worker.files import web as web_module
from proxyctl.worker.files.inputs import Inputs
from proxyctl.worker.files.room import Room
from proxyctl.worker.files.web import FetchError, Web
from proxyctl.worker.images.registry import Registry
from proxyctl.worker.network.outward import anywhere
from proxyctl.worker.task.patience import Patience

DRIP_SECONDS = 0.05
FIRST = {
    "head": b"HTTP/1.1 200 OK\r\nX-Long: ",
    "error": b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    "handshake": b"\x16\x03\x03\x40\x00",  # a record of 16 KiB
}


@contextmanager
def dripping(first: bytes) -> Iterator[int]:
    """Answer with some bytes and then one at a time; yield the port."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    sock = server.accept()[0]
                    with sock, suppress(OSError):
                        sock.recv(4096)
                        sock.sendall(first)
                        while not over.wait(DRIP_SECONDS):
                            sock.sendall(b"0")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def ends(call: Callable[[], None]) -> None:
    """Require that a call ends although bytes come on."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(15)
    assert not thread.is_alive()


def read_file(port: int, which: str, is_stopped: Callable[[], bool]) -> None:
    scheme = "https" if which == "handshake" else "http"
    device = Web("http://127.0.0.1:9", "token", to_loopback())
    with (
        suppress(LinkError, FetchError),
        device.get(
            f"{scheme}://127.0.0.1:{port}/x", is_strangers=True, is_stopped=is_stopped
        ) as body,
    ):
        for _ in body.pieces():
            pass


def read_manifest(port: int, which: str, is_stopped: Callable[[], bool]) -> None:
    # The dialled place is ours in any case; the name decides about TLS.
    reference = parse("registry.example.com/x" if which == "handshake" else "localhost:5000/x")
    assert reference is not None
    registry = Registry(
        reference,
        dial=lambda _host, _port, seconds: anywhere("127.0.0.1", port, seconds),
        deadline=time.monotonic() + 600,
        patience=Patience(is_stopped=is_stopped),
    )
    with suppress(TaskError):
        registry.manifest("latest")


def send_file(port: int, which: str, is_stopped: Callable[[], bool]) -> None:
    """Send a file; the answer alone may drip, so it cannot be stopped."""
    scheme = "https" if which == "handshake" else "http"
    device = Web("http://127.0.0.1:9", "token", to_loopback())
    file = io.BytesIO(b"12")
    with suppress(LinkError, FetchError):
        device.put(f"{scheme}://127.0.0.1:{port}/x", {}, file.read, 2)
    assert not is_stopped()


@cases("which", FIRST)
@cases("read", [read_file, read_manifest])
def test_a_stopped_attempt_waits_for_no_dripping_answer(
    read: Callable[[int, str, Callable[[], bool]], None], which: str
) -> None:
    with dripping(FIRST[which]) as port:
        began = time.monotonic()
        ends(lambda: read(port, which, lambda: time.monotonic() > began + 0.3))


@pytest.mark.parametrize("which", FIRST)
@pytest.mark.parametrize("read", [read_file, read_manifest, send_file])
def test_an_answer_that_drips_is_not_waited_for(
    read: Callable[[int, str, Callable[[], bool]], None],
    which: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (web_module, watch_module):
        monkeypatch.setattr(module, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(watch_module, "GRACE_SECONDS", 0.3)
    with dripping(FIRST[which]) as port:
        ends(lambda: read(port, which, lambda: False))


def test_inputs_that_drip_end_with_the_patience_of_the_attempt(tmp_path: Path) -> None:
    """Each of them has less time than a body may take, and all of them together too much."""
    (tmp_path / INPUTS).mkdir()
    patience = Patience(grace_seconds=0.5)
    device = Web("http://127.0.0.1:9", "token", to_loopback())
    inputs = Inputs(device, tmp_path, room=Room(tmp_path, 1 << 20), patience=patience)
    with dripping(FIRST["body"]) as port:
        url = f"http://127.0.0.1:{port}/x"
        given = [{"name": f"x{n}", "url": url, "sha256": f"{n:064x}"} for n in range(64)]
        ends(lambda: inputs.fetch(given))
    failure = patience.failure()
    assert failure is not None
    assert failure.kind == "input"
    assert list((tmp_path / INPUTS).iterdir()) == []


def test_a_slow_marketplace_is_asked_again_and_is_not_the_buyers_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "GRACE_SECONDS", 0.3)
    with dripping(FIRST["body"]) as port:
        device = Web(f"http://127.0.0.1:{port}", "token", to_loopback())
        with (
            pytest.raises(LinkError, match="too slowly"),
            device.get("/api/worker/artifacts/x") as body,
        ):
            for _ in body.pieces():
                pass
