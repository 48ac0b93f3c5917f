"""proxyctl.worker.executors.bwrap.netns: sockets inside a namespace that unshare made."""

import errno
import fcntl
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.workers import battery

from proxyctl.worker.executors.base.family import children
from proxyctl.worker.executors.bwrap import netns

HIGH = 1024  # the first descriptor that `select` refuses
SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 8888))
print("ready", flush=True)
while True:
    server.accept()[0].sendall(b"hello from within")
"""
CLIENT = """
import socket, sys
print(socket.create_connection(("127.0.0.1", int(sys.stdin.readline()))).recv(100), flush=True)
sys.stdin.readline()
"""


def within(program: str) -> subprocess.Popen[bytes]:
    """Run a program in a network namespace with a loopback."""
    if shutil.which("bwrap") is None:
        battery.require("bubblewrap is not installed")
    walls = ("--unshare-user", "--unshare-net", "--bind", "/", "/", "--die-with-parent")
    return subprocess.Popen(
        ("bwrap", *walls, "--", battery.PYTHON, "-c", program),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that end with the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for each in processes:
        each.kill()
        each.wait()
        for stream in (each.stdin, each.stdout):
            assert stream is not None
            stream.close()


def first_within(process: subprocess.Popen[bytes]) -> int:
    """Return a process that is in another namespace already."""
    own = Path("/proc/self/ns/net").stat().st_ino
    found: list[int] = []

    def is_there() -> bool:
        for pid in (*children(process.pid), process.pid):
            if Path(f"/proc/{pid}/ns/net").stat().st_ino != own:
                found.append(pid)
        return bool(found)

    until_true(is_there, "a process in a namespace of its own")
    return found[0]


def test_a_port_that_only_the_job_sees(started: list[subprocess.Popen[bytes]]) -> None:
    """A server in the job is served from outside; outside itself no server listens."""
    process = within(CLIENT)
    started.append(process)
    # Bound outside, where it does not listen: so no other process listens.
    with socket.socket() as outside:
        outside.bind(("127.0.0.1", 0))
        port = outside.getsockname()[1]
        serve_inside(process, port)


def serve_inside(process: subprocess.Popen[bytes], port: int) -> None:
    """Serve a job on a port of its own, which is closed outside."""
    with netns.listen_inside(first_within(process), port) as listening:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"%d\n" % port)
        process.stdin.flush()
        listening.settimeout(20)
        sock, _ = listening.accept()
        with sock:
            sock.sendall(b"hello from outside")
        assert b"hello from outside" in process.stdout.readline()


def test_a_port_on_which_the_job_listens(started: list[subprocess.Popen[bytes]]) -> None:
    """The same way in: nothing of it is open to anybody else."""
    process = within(SERVER)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    pid = first_within(process)
    spaces = netns.Spaces()
    with spaces.connect("a", 8888, lambda: pid) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert received(sock) == b"hello from within"
    # From then on no process has to be found: the namespace is kept.
    with spaces.connect("a", 8888, lambda: None) as sock:
        assert received(sock) == b"hello from within"
    assert connecting(spaces.connect("a", 8889, lambda: None)) == errno.ECONNREFUSED
    spaces.forget("a")
    with pytest.raises(ProcessLookupError):
        spaces.connect("a", 8888, lambda: None)


def connecting(sock: socket.socket) -> int:
    """Wait until a socket has connected, or failed. Return the error number, and close it."""
    with sock:
        select.select([], [sock], [], 20)
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def received(sock: socket.socket) -> bytes:
    sock.settimeout(20)
    return sock.recv(100)


def test_a_process_that_was_replaced_is_not_connected_to(
    started: list[subprocess.Popen[bytes]],
) -> None:
    """Its number may be another job's by then."""
    process = within(CLIENT)
    started.append(process)
    numbers = iter([first_within(process), None])
    with pytest.raises(ProcessLookupError):
        netns.Spaces().connect("a", 8888, lambda: next(numbers))


def test_a_process_of_the_machine_itself_is_refused() -> None:
    """A number that was given anew must not open a port on the machine."""
    with pytest.raises(OSError, match="namespace"):
        netns.listen_inside(os.getpid(), 1080)
    with pytest.raises(FileNotFoundError):
        netns.listen_inside(2**22 - 1, 1080)


def makers() -> set[int]:
    """Return the processes of this one that run its own program."""
    own = Path("/proc/self/cmdline").read_bytes()
    # Threads of a pool still stand in `/proc` for a moment after their end: `children` passes over.
    pids = children(os.getpid())
    return {pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes() == own}


def test_one_child_makes_all_sockets_of_a_job(started: list[subprocess.Popen[bytes]]) -> None:
    process = within(SERVER)
    started.append(process)
    pid, before = first_within(process), makers()
    spaces = netns.Spaces()
    assert process.stdout is not None
    process.stdout.readline()
    with ThreadPoolExecutor(4) as pool:
        for sock in pool.map(lambda _: spaces.connect("a", 8888, lambda: pid), range(40)):
            with sock:
                assert received(sock) == b"hello from within"
    [child] = makers() - before
    assert len(list(Path(f"/proc/{child}/fd").iterdir())) == 1  # none of the agent's
    # One that was killed has a successor, as long as the job is there.
    os.kill(child, signal.SIGKILL)
    with spaces.connect("a", 8888, lambda: pid) as sock:
        assert received(sock) == b"hello from within"
    [second] = makers() - before
    assert second != child
    os.kill(second, signal.SIGTERM)  # as a signal to a whole group does
    with spaces.connect("a", 8888, lambda: None) as sock:
        assert received(sock) == b"hello from within"
    spaces.close()
    assert makers() == before


def test_a_job_that_ends_while_it_is_connected_to_leaves_no_child(
    started: list[subprocess.Popen[bytes]],
) -> None:
    """It was forgotten before there was anything to forget."""
    process = within(CLIENT)
    started.append(process)
    pid, before = first_within(process), makers()
    found = iter([pid, pid, None])
    spaces = netns.Spaces()
    with spaces.connect("a", 8888, lambda: next(found)):
        assert makers() == before


def test_an_agent_with_many_descriptors_reaches_its_jobs(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = within(CLIENT)
    started.append(process)
    pid = first_within(process)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= HIGH:
        pytest.skip("so many descriptors are not allowed here")
    pair = socket.socketpair

    def high(family: int, kind: int) -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair(family, kind)
        with ours:
            return socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, HIGH)), theirs

    monkeypatch.setattr(netns.socket, "socketpair", high)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 64), hard))
    spaces = netns.Spaces()
    try:
        with spaces.connect("a", 9, lambda: pid) as sock:
            assert not sock.get_inheritable()
    finally:
        spaces.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_child_ends_with_the_agent(started: list[subprocess.Popen[bytes]]) -> None:
    process = within(SERVER)
    started.append(process)
    pid = first_within(process)
    agent = (
        "import os, signal\n"
        "from proxyctl.worker.executors.bwrap import netns\n"
        f"netns.Spaces().connect('a', 8888, lambda: {pid})\n"
        "children = open(f'/proc/self/task/{os.getpid()}/children').read()\n"
        "print(children, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = (sys.executable, "-c", agent)
    done = subprocess.run(argv, stdout=subprocess.PIPE, env=environment, check=False)
    [child] = done.stdout.split()
    until_true(lambda: not is_alive(int(child)), "it ends")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_child_and_no_descriptor_is_left(started: list[subprocess.Popen[bytes]]) -> None:
    """Whether it went well or not."""
    process = within(CLIENT)
    started.append(process)
    pid = first_within(process)
    before = len(list(Path("/proc/self/fd").iterdir()))
    netns.listen_inside(pid, 1080).close()
    spaces = netns.Spaces()
    assert connecting(spaces.connect("a", 9, lambda: pid)) == errno.ECONNREFUSED
    spaces.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert process.pid in children(os.getpid())
