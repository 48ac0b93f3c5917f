"""A device reaches nothing of its owner's network for strangers."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.ports import closed_port
from support.daemons.process import ROOT
from support.exits.home import (
    DAEMON,
    OTHER_LAN_V6,
    PUBLIC,
    ROUTER,
    ROUTER_V6,
    STORAGE,
    STORAGE_V6,
    TARGETS,
    Home,
    Packet,
    home,
    listener,
)
from support.targets.threads import web
from support.workers.outward import to_loopback

from proxyctl.attach.network import lan, surroundings
from proxyctl.worker.base.retries import Retries
from proxyctl.worker.network import outward as outward_module
from proxyctl.worker.network.outward import ForbiddenError, WayOut, is_loopback

PUBLIC_SITE, PUBLIC_SITE_V6 = "198.41.0.4", "2001:503:ba3e::2:30"
NOT_FETCHED = "input: the input x: the file at its address could not be fetched"
NAMES = {
    "storage.evil.net": [STORAGE],
    "public.evil.net": [PUBLIC],
    "global.evil.net": [STORAGE_V6, ROUTER_V6, OTHER_LAN_V6],
    "mapped.evil.net": [f"::ffff:{STORAGE}"],
}
HOSTS = (
    ROUTER, STORAGE, PUBLIC, "192.168.1.10", "127.0.0.1", "169.254.169.254", f"[{ROUTER_V6}]",
    f"[{STORAGE_V6}]", f"[{OTHER_LAN_V6}]", f"[::ffff:{STORAGE}]", "localhost", "storage.local",
    "fritz", *NAMES,
)  # fmt: skip
# Packets of look-ups, and of the way to the internet.
RIGHTFUL = {
    Packet(ROUTER, "arp", 0),
    Packet(ROUTER, "udp", 53),
    Packet(ROUTER_V6, "solicitation", 0),
}


@asynccontextmanager
async def internet() -> AsyncIterator[None]:
    """The service's API on port 80, and on port 8080 of a target redirections to anywhere."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        if path == "/api/ip":
            head, body = "200 OK", json.dumps({"ip": PUBLIC})
        elif path == "/file":
            head, body = "200 OK", "a page of the owner's router"
        else:
            head, body = f"302 Found\r\nLocation: {path.removeprefix('/to/')}", ""
        fields = f"Content-Length: {len(body)}\r\nConnection: close"
        writer.write(f"HTTP/1.1 {head}\r\n{fields}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    places = ((DAEMON, 8081), (TARGETS[0], 8080))
    servers = [
        await asyncio.start_server(answer, sock=listener("internet", *each)) for each in places
    ]
    try:
        yield
    finally:
        for server in servers:
            server.close()


async def fetched(around: Home, folder: Path, urls: list[str]) -> list[str]:
    """Have the device fetch; return the words that the buyer reads of each URL."""
    command = [sys.executable, "-m", "support.workers.fetching_device", str(folder)]
    process = await asyncio.create_subprocess_exec(
        *around.command(*command, f"http://{DAEMON}:8081", *urls),
        cwd=ROOT / "client",
        env={"PATH": "/usr/sbin:/usr/bin:/bin", "PYTHONPATH": f"{ROOT}/client:{ROOT}/tests"},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in output.splitlines()]


async def test_no_input_comes_from_the_owners_network(tmp_path: Path) -> None:
    """Neither from an address or a name of it, nor by a redirection, nor from the router's own."""
    direct = [f"http://{host}{port}/admin" for host in HOSTS for port in ("", ":81")]
    redirected = [f"http://{TARGETS[0]}:8080/to/{url}" for url in direct]
    async with home() as around, internet():
        for name, addresses in NAMES.items():
            around.names.has(name, *addresses)
        file = f"http://{TARGETS[0]}:8080/file"
        words = await fetched(around, tmp_path, [*direct, *redirected, file])
        assert set(words[:-1]) == {NOT_FETCHED}
        assert "is not the one with this SHA-256" in words[-1]
        assert around.reached == []
        rightful = {Packet(DAEMON, "tcp", 8081), Packet(TARGETS[0], "tcp", 8080)}
        assert around.sniffer.sent() - RIGHTFUL - rightful == set()


def test_a_socket_that_led_elsewhere_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of the system may send connections elsewhere."""
    outward = to_loopback()
    monkeypatch.setattr(outward.guard, "permits_peer", lambda *_: False)
    with web() as target, pytest.raises(ForbiddenError, match=r"led to 127\.0\.0\.1"):
        outward.dial("127.0.0.1", target.port, 5)


def test_the_next_address_is_dialled_if_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with web() as target, closed_port() as closed:
        found = [(0, 0, 0, "", (host, 0)) for host in ("10.0.0.1", "127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(outward_module.socket, "getaddrinfo", lambda *_, **__: found)
        to_loopback().dial("name.example.com", target.port, 5).close()
        with pytest.raises(OSError, match="refused"):
            to_loopback().dial("name.example.com", closed, 5)


def test_nothing_is_permitted_until_the_service_has_named_the_public_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner's router may have that address; the service has only an IPv4 address."""
    far, far_v6 = ip_address(PUBLIC_SITE), ip_address(PUBLIC_SITE_V6)
    monkeypatch.setattr(outward_module, "LEARN_SECONDS", 0.0)
    monkeypatch.setattr(Retries, "failed", lambda _: 0.0)
    # This machine may itself have a public address, or no way out.
    monkeypatch.setattr(surroundings, "_own_addresses", list)
    monkeypatch.setattr(lan, "_open_routes", lambda: None)
    with web() as service:
        way_out = WayOut(f"http://127.0.0.1:{service.port}")
        try:
            guard = way_out.guard
            assert not guard.permits(far, 80)
            for answer in (None, b'{"error": "rate_limited"}', b"[]", b'{"ip": null}', b"<html>"):
                if answer is not None:
                    service.pages["/api/ip"] = answer
                way_out.refresh()
                assert not guard.permits(far, 80)
                assert guard.permits(far_v6, 80)
            service.pages["/api/ip"] = json.dumps({"ip": PUBLIC}).encode()
            way_out.refresh()
            assert guard.permits(far, 80)
            assert not guard.permits(ip_address(PUBLIC), 80)
            del service.pages["/api/ip"]  # it stays known
            way_out.refresh()
            assert guard.permits(far, 80)
            assert not guard.permits(ip_address(PUBLIC), 80)
        finally:
            way_out.close()


def test_connections_for_strangers_are_made_in_one_place() -> None:
    """A further way to open one would go around the guard: add it to `outward.py`, or explain it.

    All others connect to places that the owner has named, or to the jobs themselves.
    """
    ways = (
        r"create_connection\(",
        r"open_connection\((?!sock=)",
        r"class \w+\(http\.client",
        r"(return|=|with) (closing\()?http\.client\.HTTPS?Connection\(",
        r"urlopen\(",
        r"connect(_ex)?\(\(",
        r"sock_connect\(",
        r"import requests",
    )
    opens = re.compile("|".join(ways))
    folder = ROOT / "client" / "proxyctl" / "worker"
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if opens.search(path.read_text("utf-8"))
    }
    assert found == {
        "network/outward.py",
        "files/web.py",  # sockets of `outward.py` alone, which the next test holds
        "images/registry.py",  # the same
        "base/link.py",  # the API
        "executors/bwrap/netns.py",  # into a job, from inside its namespace
    }
    clusters = ROOT / "clusters" / "proxyctl_clusters"
    found = {
        path.relative_to(clusters).as_posix()
        for path in clusters.rglob("*.py")
        if opens.search(path.read_text("utf-8"))
    }
    assert found == {
        "kubernetes/kube_api.py",  # the owner's cluster
        "kubernetes/kube_trial.py",  # runs inside a pod, to try its walls
    }


@cases("name", ["files/web.py", "images/registry.py"])
def test_files_and_images_have_no_sockets_of_their_own(name: str) -> None:
    text = (ROOT / "client" / "proxyctl" / "worker" / name).read_text("utf-8")
    assert re.findall(r"socket\.(?:socket|create_connection|getaddrinfo)\(", text) == []
    assert re.findall(r"self\._?sock = |connection\.sock = ", text)


def test_addresses_of_this_machine_are_known() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("localhost.example.com", "10.0.0.1", "name", "::")))
