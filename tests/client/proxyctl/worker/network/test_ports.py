"""proxyctl.worker.network.ports and probe: whether a job is ready, whatever answers at its port."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.base.waiting import until_true

from proxyctl.protocol.jobspec.payload import Ready
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.network import probe
from proxyctl.worker.network.ports import Ports, Served


class Job:
    """What listens on a port, as a job does: it says `answer` to whoever has connected."""

    def __init__(self, answer: bytes, *, is_endless: bool = False) -> None:
        self.answer = answer
        self.is_endless = is_endless
        self.requests: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def connect(self, port: int) -> socket.socket:
        """Return a socket whose connect is under way, as an executor does."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        return sock

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            with sock, suppress(OSError):
                sock.settimeout(5)
                self.requests.append(sock.recv(4096))
                sock.sendall(self.answer)
                while self.is_endless:
                    sock.sendall(b"x" * 1024)


@pytest.fixture
def ports() -> Iterator[Ports]:
    before = descriptors()
    made = Ports()
    yield made
    made.close()
    until_true(lambda: descriptors() <= before, "nothing is left open")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def served(job: Job, ready: Ready | None, told: threading.Event, attempt: str = "a-1") -> Served:
    return Served(attempt, (job.port,), ready, job.connect, told.set)


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 302 Found\r\n", b"HTTP/1.1 399 \r\n"],
)
def test_an_answer_in_order_is_readiness(ports: Ports, answer: bytes) -> None:
    job, told = Job(answer), threading.Event()
    ports.serve(served(job, Ready(job.port, "/api?a=b"), told))
    assert told.wait(20)
    assert job.requests[0].startswith(b"GET /api?a=b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % job.port)
    ports.forget("a-1")
    job.close()


@pytest.mark.parametrize(
    ("answer", "is_endless"),
    [
        (b"HTTP/1.1 500 Oops\r\n\r\n", False),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"HTTP/1.1 101 Switching\r\n\r\n", False),
        (b"HTTP/2 200\r\n\r\n", False),
        (b"SSH-2.0-Server\r\n", False),
        (b"HTTP/1.1 200", False),
        (b"", False),
        (b"", True),
    ],
)
def test_a_port_with_another_answer_is_probed_again(
    ports: Ports, answer: bytes, is_endless: bool
) -> None:
    job, told = Job(answer, is_endless=is_endless), threading.Event()
    ports.serve(served(job, Ready(job.port, "/", every_s=1), told))
    until_true(lambda: len(job.requests) >= 2, "it is asked again")
    assert not told.is_set()
    job.answer, job.is_endless = b"HTTP/1.1 200 OK\r\n", False
    assert told.wait(20)
    ports.forget("a-1")
    job.close()


def test_a_job_that_is_silent_is_given_up_for_now(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PROBE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        job, told = Job(b"HTTP/1.1 200 OK\r\n"), threading.Event()
        places = [silent.getsockname()[1], job.port]

        def connect(port: int) -> socket.socket:
            return job.connect(places.pop(0) if len(places) > 1 else port)

        ready = Ready(job.port, "/", every_s=1)
        ports.serve(Served("a-1", (job.port,), ready, connect, told.set))
        assert told.wait(20)
        ports.forget("a-1")
        job.close()


def test_without_a_page_a_connection_is_enough(ports: Ports) -> None:
    job, told = Job(b""), threading.Event()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = taken.getsockname()[1]
        places = [nobody, job.port]

        def connect(_: int) -> socket.socket:
            return job.connect(places.pop(0))

        ports.serve(Served("a-1", (job.port,), Ready(job.port), connect, told.set))
        assert told.wait(20)
    assert not places
    ports.forget("a-1")
    job.close()


def test_where_the_port_cannot_be_found_nothing_is_requested(ports: Ports) -> None:
    job, told, asked = Job(b""), threading.Event(), threading.Event()

    def connect(_: int) -> socket.socket:
        asked.set()
        raise TaskError("refused", "ports cannot be reached")

    ports.serve(Served("a-1", (job.port,), Ready(job.port), connect, told.set))
    assert asked.wait(20)
    ports.serve(served(job, None, told, "b-1"))
    ports.forget("a-1")
    ports.forget("a-1")
    assert not told.is_set()
    job.close()


def test_a_device_without_ports_has_no_thread() -> None:
    before = set(threading.enumerate())  # some of them, of tests before this one, are just ending
    ports = Ports()
    ports.forget("a-1")
    assert set(threading.enumerate()) <= before
    ports.close()
    job, told = Job(b""), threading.Event()
    ports.serve(served(job, Ready(job.port), told))  # it has been closed
    [own] = set(threading.enumerate()) - before
    job.close()
    assert not own.is_alive()
