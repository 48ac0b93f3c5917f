"""Buyers get an address that they can dial where the service manager holds the proxy's socket."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.base.cases import cases
from support.daemons.process import ROOT, environment
from support.daemons.supervisor import supervising

from config.settings import ProxySettings, Settings
from proxyd.ops.checks import reachability

UNIT = ROOT / "systemd" / "proxyd.socket"


def told(settings: ProxySettings, *hosts: str, name: str = "proxy") -> list[str]:
    """Return the problems where sockets are held at these addresses."""
    sockets = []
    try:
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sockets.append(socket.create_server((host, 0), family=family))
        return list(reachability.problems(Settings(proxy=settings), {name: sockets}))
    finally:
        for sock in sockets:
            sock.close()


@cases("bound", ["0.0.0.0", "::"])
@cases("host", ["127.0.0.1", "127.0.0.9", "::1"])
def test_a_socket_for_all_addresses_is_not_reported_as_loopback(bound: str, host: str) -> None:
    (problem,) = told(ProxySettings(host=host), bound)
    assert problem.startswith("proxy.public_host: must name the host that buyers dial")
    assert f"holds the proxy's socket on {bound}, and the API gives them {host}" in problem


@cases("public", ["proxy.example.com", "192.0.2.1", "127.0.0.1"])
def test_an_explicit_public_host_causes_no_problem(public: str) -> None:
    assert told(ProxySettings(public_host=public), "0.0.0.0") == []


def test_an_address_that_is_not_loopback_is_reported() -> None:
    assert told(ProxySettings(host="192.0.2.1"), "0.0.0.0") == []


@cases("bound", ["127.0.0.1", "::1"])
def test_a_socket_on_loopback_is_a_developers(bound: str) -> None:
    assert told(ProxySettings(), bound) == []


def test_one_of_several_is_enough_and_reported_once() -> None:
    assert len(told(ProxySettings(), "127.0.0.1", "0.0.0.0", "0.0.0.0", name="passwordless")) == 1


def test_the_apis_socket_is_no_proxys() -> None:
    assert told(ProxySettings(), "0.0.0.0", name="api") == []


def test_without_such_a_socket_loopback_is_no_problem() -> None:
    assert list(reachability.problems(Settings(), {})) == []


def of_unit(folder: Path, text: str, *edits: str) -> list[str]:
    """Return the problems of a unit with its edits."""
    unit = folder / "proxyd.socket"
    unit.write_text(text)
    for number, edit in enumerate(edits):
        (folder / "proxyd.socket.d").mkdir(exist_ok=True)
        (folder / "proxyd.socket.d" / f"{number}.conf").write_text(edit)
    return list(reachability.problems_of_unit(unit, {}, Settings()))


@pytest.mark.parametrize(
    "line",
    [
        "ListenStream=0.0.0.0:1080",
        "ListenStream=1080",
        "ListenStream = [::]:1080",
        "ListenStream=203.0.113.7:1080",
        "ListenStream=[2001:db8::1]:1080",
        "ListenStream=127.0.0.1:1080\nListenStream=0.0.0.0:1080",
    ],
)
def test_a_unit_for_all_addresses_is_read(tmp_path: Path, line: str) -> None:
    assert len(of_unit(tmp_path, f"[Unit]\nDescription=x\n[Socket]\n{line}\n")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "ListenStream=127.0.0.1:1080",
        "ListenStream=[::1]:1080",
        "# ListenStream=0.0.0.0:1080",
        "ListenStream=/run/proxyd.sock",
        "ListenStream=0.0.0.0:1080\nListenStream=\nListenStream=127.0.0.1:1080",
    ],
)
def test_a_unit_for_this_machine_is_read(tmp_path: Path, line: str) -> None:
    assert of_unit(tmp_path, f"[Socket]\n{line}\n") == []


def test_an_edit_of_the_unit_counts(tmp_path: Path) -> None:
    edit = "[Socket]\nListenStream=\nListenStream={}:443\n"
    assert of_unit(tmp_path, UNIT.read_text(), edit.format("127.0.0.1")) == []
    again = of_unit(tmp_path, UNIT.read_text(), edit.format("127.0.0.1"), edit.format("0.0.0.0"))
    assert len(again) == 1


def check(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `config check` as systemd runs a program: with the proxy's socket, on every address."""
    with socket.create_server(("0.0.0.0", 0)) as proxy:
        script = 'export LISTEN_PID=$$; exec 200<&"$PROXY"; exec "$@" 3<&200'
        command = [sys.executable, "-m", "proxyd", "config", "check", *arguments]
        return subprocess.run(
            ["/bin/bash", "-c", script, "sh", *command],
            cwd=ROOT,
            env={
                **environment(f"sqlite:///{folder}/proxyd.db", **settings),
                "LISTEN_FDS": "1" if "PROXY_IS_HELD" in settings else "0",
                "LISTEN_FDNAMES": "proxy",
                "PROXY": str(proxy.fileno()),
            },
            pass_fds=[proxy.fileno()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def test_config_check_sees_its_sockets_and_the_given_unit(tmp_path: Path) -> None:
    dialled_by_name = {"PROXYD_PROXY__PUBLIC_HOST": "proxy.example.com"}
    for arguments, held in (([], {"PROXY_IS_HELD": "1"}), (["--unit", str(UNIT)], {})):
        refused = check(tmp_path, *arguments, **held)
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert line.startswith("proxyd: wrong in the settings: proxy.public_host: must name")
        assert check(tmp_path, *arguments, **held, **dialled_by_name).returncode == 0
    assert check(tmp_path).returncode == 0
    missing = check(tmp_path, "--unit", str(tmp_path / "missing.socket"))
    assert (missing.returncode, "missing.socket: No such file" in missing.stderr) == (2, True)


@pytest.mark.long
def test_a_start_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with supervising(tmp_path) as supervisor:
        (tmp_path / "proxyd.db").unlink(missing_ok=True)
        supervisor.sockets["proxy"].close()
        supervisor.sockets["proxy"] = socket.create_server(("0.0.0.0", 0))
        with pytest.raises(AssertionError):
            supervisor.start()
        assert supervisor.wait() == 2
        (line,) = supervisor.log.splitlines()
        assert line.startswith("proxyd: wrong in the settings: proxy.public_host: must name")
        assert not (tmp_path / "proxyd.db").exists()
        supervisor.start(PROXYD_PROXY__PUBLIC_HOST="127.0.0.1")
        assert "ready: " in supervisor.log
    assert "LISTEN_FDS" not in os.environ
