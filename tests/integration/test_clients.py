"""Programs and libraries fetch through a bought session, and every byte is counted, up and down."""

import asyncio
import json
import socket
import subprocess
from pathlib import Path

import aiohttp
import pytest
import socks
from aiohttp_socks import ProxyConnector
from python_socks.sync import Proxy
from support.base.brief import brief
from support.clients.buyer import Buyer, output_of, program, run
from support.daemons.process import ROOT
from support.targets.targets import pattern
from support.targets.threads import WebTarget
from support.targets.tls import Certificate

SIZE = 3_000_001
CLIENTS = ROOT / "tests" / "clients"
NO_PACKAGES = "the packages of node are not installed: make clients"


# --- Python --------------------------------------------------------------------------------------


def fetch(connection: socket.socket, port: int) -> bytes:
    """Fetch a page over a connection."""
    with connection:
        head = f"GET /bytes/{SIZE} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        with connection.makefile("rb") as file:
            return file.read().partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("kind", [socks.SOCKS5, socks.HTTP], ids=["socks5", "http"])
def test_pysocks_fetches(buyer: Buyer, target: WebTarget, kind: int) -> None:
    connection = socks.create_connection(
        ("localhost", target.port),
        proxy_type=kind,
        proxy_addr="127.0.0.1",
        proxy_port=buyer.daemon.proxy_port,
        proxy_username=buyer.username,
        proxy_password=buyer.password,
        proxy_rdns=True,
    )
    assert fetch(connection, target.port) == pattern(SIZE)
    buyer.assert_counted(target)


@pytest.mark.parametrize("scheme", ["socks5", "http"])
def test_python_socks_fetches(buyer: Buyer, target: WebTarget, scheme: str) -> None:
    proxy = Proxy.from_url(f"{scheme}://{buyer.proxy}", rdns=True)
    connection = proxy.connect(dest_host="localhost", dest_port=target.port)
    assert fetch(connection, target.port) == pattern(SIZE)
    buyer.assert_counted(target)


@pytest.mark.parametrize("scheme", ["socks5", "http"])
async def test_aiohttp_socks_fetches(buyer: Buyer, target: WebTarget, scheme: str) -> None:
    connector = ProxyConnector.from_url(f"{scheme}://{buyer.proxy}", rdns=True)
    url = f"http://localhost:{target.port}/bytes/{SIZE}"
    async with aiohttp.ClientSession(connector=connector) as http:
        for _ in range(2):  # the second over the first one's connection
            async with http.get(url) as answer:
                assert await answer.read() == pattern(SIZE)
    await asyncio.to_thread(buyer.assert_counted, target)


async def test_aiohttp_fetches(buyer: Buyer, target: WebTarget) -> None:
    url = f"http://localhost:{target.port}/bytes/{SIZE}"
    async with aiohttp.ClientSession() as http:
        for _ in range(2):
            async with http.get(url, proxy=f"http://{buyer.proxy}") as answer:
                assert await answer.read() == pattern(SIZE)
    await asyncio.to_thread(buyer.assert_counted, target)


# --- node ----------------------------------------------------------------------------------------


def node(*arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Fetch with node, by one of its agents."""
    program("node")
    if not (CLIENTS / "node_modules").is_dir():
        pytest.skip(NO_PACKAGES)
    return run("node", str(CLIENTS / "fetch.cjs"), *arguments, **variables)


def test_the_packages_of_node_are_pinned_with_all_that_they_bring() -> None:
    pinned = json.loads((CLIENTS / "package.json").read_text())["dependencies"]
    folders = (CLIENTS / "node_modules").glob("[!.]*/package.json")
    found = [json.loads(each.read_text()) for each in folders]
    if not found:
        pytest.skip(NO_PACKAGES)
    assert {each["name"]: each["version"] for each in found} == pinned


@pytest.mark.parametrize("scheme", brief(["socks5h", "http", "socks5"], 2))
def test_node_fetches(buyer: Buyer, target: WebTarget, scheme: str) -> None:
    url = f"http://127.0.0.1:{target.port}/bytes/{SIZE}"
    done = node(f"{scheme}://{buyer.proxy}", url, url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE) * 2
    buyer.assert_counted(target)


@pytest.mark.parametrize("scheme", brief(["http", "socks5h"]))
def test_node_fetches_by_tls(
    buyer: Buyer, secure_target: WebTarget, certificate: Certificate, scheme: str
) -> None:
    url = f"https://localhost:{secure_target.port}/bytes/{SIZE}"
    trusting = {"NODE_EXTRA_CA_CERTS": str(certificate.path)}
    done = node(f"{scheme}://{buyer.proxy}", url, url, **trusting)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE) * 2
    buyer.assert_counted(secure_target)


@pytest.mark.parametrize(
    ("scheme", "told"), [("socks5", b"authentication failed"), ("http", b"status 407")]
)
def test_node_gets_the_error_of_a_wrong_password(
    buyer: Buyer, target: WebTarget, scheme: str, told: bytes
) -> None:
    done = node(f"{scheme}://{buyer.wrong_proxy}", f"http://127.0.0.1:{target.port}/bytes/1")
    assert done.returncode == 1
    assert told in done.stderr.lower()
    assert target.asked == []
    assert buyer.used == 0


# --- programs that know no proxy -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["socks5", "http"])
def test_proxychains_makes_any_program_fetch(
    buyer: Buyer, target: WebTarget, tmp_path: Path, kind: str
) -> None:
    settings = tmp_path / "proxychains.conf"
    proxy = f"{kind} 127.0.0.1 {buyer.daemon.proxy_port} {buyer.username} {buyer.password}"
    settings.write_text(f"strict_chain\nproxy_dns\n[ProxyList]\n{proxy}\n")
    fetched = output_of(
        *("proxychains4", "-q", "-f", str(settings)),
        *("curl", "--silent", "--show-error", "--max-time", "60"),
        f"http://127.0.0.1:{target.port}/bytes/{SIZE}",
    )
    assert fetched == pattern(SIZE)
    buyer.assert_counted(target)


# --- programs that know HTTP proxies -------------------------------------------------------------


def wget(*arguments: str, **variables: str) -> bytes:
    """Fetch with wget."""
    return output_of(
        "wget", "--no-config", "--quiet", "--tries=1", "-O", "-", *arguments, **variables
    )


def test_wget_fetches(buyer: Buyer, target: WebTarget) -> None:
    url = f"http://localhost:{target.port}/bytes/{SIZE}"
    assert wget(url, url, http_proxy=f"http://{buyer.proxy}") == pattern(SIZE) * 2
    buyer.assert_counted(target)


def test_wget_fetches_by_tls(
    buyer: Buyer, secure_target: WebTarget, certificate: Certificate
) -> None:
    url = f"https://localhost:{secure_target.port}/bytes/{SIZE}"
    trusting = f"--ca-certificate={certificate.path}"
    assert wget(trusting, url, https_proxy=f"http://{buyer.proxy}") == pattern(SIZE)
    buyer.assert_counted(secure_target)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A bare repository with one commit, prepared for a server that knows nothing of git."""
    work, bare = tmp_path / "work", tmp_path / "served.git"
    who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
    output_of("git", "init", "--quiet", str(work))
    (work / "file").write_bytes(pattern(SIZE))
    output_of("git", "-C", str(work), "add", "file")
    output_of("git", *who, "-C", str(work), "commit", "--quiet", "-m", "Something to clone")
    output_of("git", "clone", "--quiet", "--bare", str(work), str(bare))
    output_of("git", "-C", str(bare), "update-server-info")
    return bare


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
def test_git_clones(
    buyer: Buyer,
    secure_target: WebTarget,
    certificate: Certificate,
    repository: Path,
    scheme: str,
) -> None:
    for path in repository.rglob("*"):
        if path.is_file():
            secure_target.pages[f"/{path.relative_to(repository)}"] = path.read_bytes()
    clone = repository.parent / "clone"
    output_of(
        *("git", "-c", f"http.proxy={scheme}://{buyer.proxy}"),
        *("clone", "--quiet", f"https://localhost:{secure_target.port}/", str(clone)),
        GIT_SSL_CAINFO=str(certificate.path),
    )
    assert (clone / "file").read_bytes() == pattern(SIZE)
    buyer.assert_counted(secure_target)
