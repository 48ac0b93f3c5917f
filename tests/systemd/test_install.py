"""Installed by the page's commands under a real systemd: it serves, shut in, and keeps secrets."""

import asyncio
import re
import shutil
import socket
import subprocess
from typing import Any

from support.base.waiting import until, until_true
from support.clients.socks import tunnel
from support.machines.installed import (
    DATABASE,
    EMAIL,
    MAIL_PASSWORD,
    PASSWORD,
    SIGNING_KEY,
    Service,
)
from support.machines.machine import PAGE
from support.targets import targets, threads
from support.targets.nameserver import NameServer
from support.targets.targets import pattern

SIZE = 3_000_001
HOLD = f"""
import sqlite3, sys
connection = sqlite3.connect({DATABASE!r}, isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


def fetched(proxy: dict[str, Any], scheme: str, url: str) -> bytes:
    assert shutil.which("curl"), "curl is one of the four things a machine needs"
    address = f"{scheme}://{proxy['username']}:{proxy['password']}@{proxy['host']}:{proxy['port']}"
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "30", "--proxy", address, url],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_fetches_through_a_session_that_was_bought(running: Service, token: str) -> None:
    bought = running.buy(token)
    with threads.web() as target:
        for scheme in ("socks5h", "http"):
            url = f"http://localhost:{target.port}/bytes/{SIZE}"
            assert fetched(bought["proxy"], scheme, url) == pattern(SIZE)
        until_true(
            lambda: (
                running.used(token, bought["session_id"])
                == target.received + target.sent
                > 2 * SIZE
            )
        )


def test_it_is_active_only_once_it_is_ready(running: Service) -> None:
    machine = running.machine
    machine.run("systemctl stop proxyd.service")
    with machine.process("/usr/bin/python3", "-c", HOLD) as holder:
        assert holder.stdout.readline() == b"held\n"
        machine.run("systemctl start --no-block proxyd.service")
        until_true(lambda: "proxyd.db" in running.open_files(), "the database is opened")
        assert (running.state, machine.show("SubState")) == ("activating", "start")
        with socket.create_connection(("127.0.0.1", 8080)) as early:
            early.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert running.state == "activating"
            holder.stdin.close()
            until_true(lambda: running.state == "active", "active")
            with early.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 200 OK\r\n"


def test_the_status_says_where_it_listens(running: Service) -> None:
    words = (
        "API on http://127.0.0.1:8080, proxy on 0.0.0.0:1080, without passwords on 0.0.0.0:1081, "
        f"database {DATABASE}"
    )
    assert running.machine.show("StatusText") == words
    assert f'Status: "{words}"' in running.machine.says("systemctl status --full proxyd.service")


def test_it_is_shut_in(running: Service) -> None:
    machine = running.machine
    status = dict(line.split(":\t", 1) for line in running.of_process("status").splitlines())
    owner = machine.says("id --user proxyd")
    assert status["Uid"].split() == [owner] * 4 != ["0"] * 4
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    limits = running.of_process("limits")
    hard = min(1_048_576, int(machine.says("ulimit -H -n")))
    assert re.search(rf"Max open files +{hard} +{hard} ", limits), limits
    assert re.search(r"Max core file size +0 +0 ", limits), limits
    for name, value in {
        "User": "proxyd",
        "NotifyAccess": "main",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "MemoryDenyWriteExecute": "yes",
        "CapabilityBoundingSet": "",
    }.items():
        assert machine.show(name) == value, name


def test_it_can_write_its_own_folder_and_nothing_else(running: Service) -> None:
    within = f"nsenter --target {running.main_pid} --mount --"
    for path in (
        "/etc/proxyd/x",
        "/opt/proxyd/x",
        "/usr/x",
        "/var/x",
        "/run/x",
        "/run/lock/x",
        "/home/x",
    ):
        done = running.machine.run(f"{within} touch {path}", check=False)
        assert done.returncode != 0, path
        assert "Read-only file system" in done.stderr or "No such file" in done.stderr, done.stderr
    running.machine.run(f"{within} touch /var/lib/proxyd/x; rm /var/lib/proxyd/x")
    for path in ("/tmp/of-the-machine", "/home/of-the-machine"):
        running.machine.run(f"touch {path}")
        seen = running.machine.run(f"{within} ls {path}", check=False)
        assert seen.returncode != 0, path


def test_the_sandbox_hides_nothing_that_metrics_need(running: Service) -> None:
    url = "http://127.0.0.1:8080/metrics"
    done = subprocess.run(["curl", "--silent", url], capture_output=True, text=True, check=True)
    for name in (
        "process_open_fds",
        "process_max_fds",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
    ):
        assert re.search(rf"^{name} [\d.e+]+$", done.stdout, re.MULTILINE), name


def test_only_the_service_sees_secrets(running: Service) -> None:
    machine = running.machine
    shown = {
        "properties": machine.says("systemctl show proxyd.service"),
        "environment": running.of_process("environ"),
        "command line": running.of_process("cmdline"),
        "journal": machine.says("journalctl --output=export"),
        "settings": machine.says("cat /etc/proxyd/proxyd.toml"),
    }
    assert "StateDirectory=proxyd" in shown["properties"]
    assert "CREDENTIALS_DIRECTORY" in shown["environment"]
    assert "ready: API on" in shown["journal"]
    for secret in (SIGNING_KEY, MAIL_PASSWORD):
        for place, text in shown.items():
            assert secret not in text, place
    for path in ("/etc/proxyd/secrets/signing-key", "/run/credentials/proxyd.service/signing-key"):
        as_other = f"setpriv --reuid=nobody --clear-groups cat {path}"
        assert "Permission denied" in machine.run(as_other, check=False).stderr
    assert not machine.says("ls /var/lib/proxyd").count("signing.key"), "a key was made besides"


async def test_it_asks_name_servers_and_writes_access_records(running: Service) -> None:
    token = await asyncio.to_thread(running.log_in, EMAIL, PASSWORD)
    folder = "/var/lib/proxyd/access"
    async with NameServer().serving() as names, targets.echo() as target:
        names.has("target.test", "127.0.0.1")
        settings = {
            "egress__nameservers": f'["{names.address}"]',
            "access_log__folder": f'"{folder}"',
        }
        with running.changed(**settings):
            proxy = (await asyncio.to_thread(running.buy, token))["proxy"]
            shown = proxy["username"], proxy["password"]
            client = await tunnel(running.proxy_port, *shown, "target.test", target.port)
            await client.send(b"hello")
            assert await client.receive(5) == b"hello"
            await client.close()
            await until(lambda: '"bytes_up"' in running.machine.says(f"cat {folder}/*"))


def test_a_port_below_1024_is_taken_by_the_socket_unit(running: Service, token: str) -> None:
    machine, edited = running.machine, "/etc/systemd/system/proxyd.socket.d/override.conf"
    (lines,) = re.findall(r"^    \[Socket\]\n(?:    .*\n)+", PAGE.read_text(), re.MULTILINE)
    machine.write(edited, re.sub("^    ", "", lines, flags=re.MULTILINE))
    try:
        machine.run("systemctl daemon-reload; systemctl restart proxyd.socket")
        until_true(lambda: running.state == "active", "active again")
        assert "proxy on 0.0.0.0:443," in machine.show("StatusText")
        proxy = running.buy(token)["proxy"]
        assert proxy["port"] == 443
        with threads.web() as target:
            url = f"http://127.0.0.1:{target.port}/bytes/10"
            assert fetched(proxy, "socks5h", url) == pattern(10)
    finally:
        machine.run(f"rm {edited}; systemctl daemon-reload; systemctl restart proxyd.socket")
        until_true(lambda: running.state == "active", "active again")


def test_nothing_is_installed_that_only_tests_need(running: Service) -> None:
    machine = running.machine
    names = machine.says("ls /opt/proxyd/.venv/lib/python3*/site-packages").split()
    assert {"aiohttp", "proxyd", "storage"} <= set(names)
    assert not {name for name in names if name.startswith(("pytest", "mypy", "ruff", "__editable"))}
    assert "No broken requirements" in machine.says("/opt/proxyd/.venv/bin/pip check")
