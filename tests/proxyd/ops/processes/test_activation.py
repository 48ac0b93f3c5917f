"""Sockets that are handed over: taken by name when they are this process's, refused otherwise."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.base.cases import cases
from support.daemons.process import ROOT

from proxyd.ops.processes import activation
from proxyd.ops.processes.listening import CannotListenError

CHILD = """
import os
from proxyd.ops.processes.activation import inherited
os.environ["LISTEN_PID"] = str(os.getpid())
for name, socks in sorted(inherited(os.environ).items()):
    for sock in socks:
        print(name, sock.getsockname()[1], os.get_inheritable(sock.fileno()), sock.gettimeout())
        sock.close()
print([name for name in os.environ if name.startswith("LISTEN_")])
"""


def handed(*descriptors: int, names: str) -> subprocess.CompletedProcess[str]:
    """Run a process that takes sockets over, from descriptor 3 on."""
    # Out of the way first, so that none is overwritten before it is copied.
    moves = [f"{200 + index}<&{each}" for index, each in enumerate(descriptors)]
    moves += [f"{3 + index}<&{200 + index}" for index in range(len(descriptors))]
    script = "; ".join(f"exec {move}" for move in moves) + '; exec "$@"'
    return subprocess.run(
        ["/bin/bash", "-c", script, "sh", sys.executable, "-c", CHILD],
        cwd=ROOT,
        env={**os.environ, "LISTEN_FDS": str(len(descriptors)), "LISTEN_FDNAMES": names},
        pass_fds=descriptors,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_sockets_are_taken_by_name_and_not_handed_on() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as proxy,
        socket.create_server(("127.0.0.1", 0)) as api,
    ):
        done = handed(proxy.fileno(), api.fileno(), names="proxy:api")
        ports = [each.getsockname()[1] for each in (api, proxy)]
    assert done.stdout.splitlines() == [
        f"api {ports[0]} False 0.0",
        f"proxy {ports[1]} False 0.0",
        "[]",
    ], done.stderr


@cases(
    ("names", "words"),
    [
        ("api:api", "socket activation: two sockets have the name 'api'"),
        ("api:door", "socket activation: unknown socket name 'door'"),
        ("api:proxy", "socket activation: 'proxy' is not a listening TCP socket"),
    ],
)
def test_a_socket_that_cannot_be_served_on_is_named(names: str, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as api, socket.socket() as other:
        if names != "api:proxy":
            other.bind(("127.0.0.1", 0))
            other.listen()
        done = handed(api.fileno(), other.fileno(), names=names)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f"CannotListenError: {words}")


def test_a_missing_descriptor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "FIRST_DESCRIPTOR", 1_000_000)
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "api"}
    with pytest.raises(CannotListenError, match="'api': Bad file descriptor"):
        activation.inherited(environment)


def test_several_may_need_no_password() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        done = handed(one.fileno(), other.fileno(), names="passwordless:passwordless")
        ports = [str(each.getsockname()[1]) for each in (one, other)]
    assert [line.split()[1] for line in done.stdout.splitlines()[:2]] == ports, done.stderr


def test_sockets_of_another_process_are_left_alone(tmp_path: Path) -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "api:proxy", "A": "b"}
    assert activation.inherited(environment) == {}
    assert environment == {"A": "b"}
