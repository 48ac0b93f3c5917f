"""curl fetches through a bought session by each of its ways to a proxy; every byte is counted."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.base.ports import closed_port
from support.clients.buyer import Buyer, run
from support.targets.targets import pattern
from support.targets.threads import WebTarget
from support.targets.tls import Certificate

SIZE = 3_000_001


def curl(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    assert shutil.which("curl"), "curl is one of the four things a machine needs"
    return run("curl", "--silent", "--show-error", "--max-time", "60", *arguments)


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "http"])
def test_curl_downloads(buyer: Buyer, target: WebTarget, scheme: str) -> None:
    url = f"http://localhost:{target.port}/bytes/{SIZE}"
    if scheme == "socks5":
        url = url.replace("localhost", "127.0.0.1")
    done = curl("--proxy", f"{scheme}://{buyer.proxy}", url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)


def test_curl_uploads(buyer: Buyer, target: WebTarget, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(pattern(SIZE))
    done = curl(
        *("--proxy", f"socks5h://{buyer.proxy}", "--data-binary", f"@{body}"),
        *("-H", "Expect:", f"http://127.0.0.1:{target.port}/"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)
    assert buyer.used > 2 * SIZE


@pytest.mark.parametrize("option", ["--proxytunnel", "--proxy-anyauth"])
def test_curl_downloads_by_http(buyer: Buyer, target: WebTarget, option: str) -> None:
    url = f"http://localhost:{target.port}/bytes/{SIZE}"
    done = curl("--proxy", f"http://{buyer.proxy}", option, url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)


def test_curl_shows_why_a_tunnel_is_refused_when_it_is_asked_to(buyer: Buyer) -> None:
    refused = ("--proxy", f"http://{buyer.proxy}", "--proxytunnel", "http://127.0.0.1:25/")
    done = curl(*refused)
    assert b"CONNECT tunnel failed, response 403" in done.stderr
    assert b"Proxy-Status" not in done.stderr
    told = b'< Proxy-Status: proxyd; error=destination_ip_prohibited; details="This target'
    assert told in curl("--verbose", *refused).stderr


def test_curl_fetches_twice_by_http(buyer: Buyer, target: WebTarget) -> None:
    url = f"http://127.0.0.1:{target.port}/bytes/{SIZE}"
    done = curl("--proxy", f"http://{buyer.proxy}", "--proxy-anyauth", url, url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE) * 2
    buyer.assert_counted(target)


def test_curl_uploads_by_http(buyer: Buyer, target: WebTarget, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(pattern(SIZE))
    done = curl(
        *("--proxy", f"http://{buyer.proxy}", "--data-binary", f"@{body}"),
        *("-H", "Expect: 100-continue", f"http://127.0.0.1:{target.port}/"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "http"])
def test_curl_downloads_by_tls(
    buyer: Buyer, secure_target: WebTarget, certificate: Certificate, scheme: str
) -> None:
    url = f"https://localhost:{secure_target.port}/bytes/{SIZE}"
    done = curl("--proxy", f"{scheme}://{buyer.proxy}", "--cacert", str(certificate.path), url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(secure_target)


def test_curl_gets_the_errors_by_http(buyer: Buyer, target: WebTarget) -> None:
    wrong = f"http://{buyer.wrong_proxy}"
    page = f"http://127.0.0.1:{target.port}/bytes/1"
    told = curl("--proxy", wrong, "-w", "%{http_code}", page)
    assert told.stdout == b"The user name or the password of the session is wrong.\n407"
    tunnelled = curl("--proxy", wrong, "--proxytunnel", page)
    assert tunnelled.returncode != 0
    assert b"407" in tunnelled.stderr
    assert buyer.used == 0


def test_curl_gets_the_error_of_a_wrong_password(buyer: Buyer, target: WebTarget) -> None:
    done = curl(
        "--proxy",
        f"socks5h://{buyer.wrong_proxy}",
        f"http://127.0.0.1:{target.port}/bytes/1",
    )
    assert done.returncode == 97
    assert b"rejected" in done.stderr
    assert buyer.used == 0


def test_curl_gets_the_error_of_a_target_that_refuses(buyer: Buyer) -> None:
    with closed_port() as port:
        done = curl("--proxy", f"socks5h://{buyer.proxy}", f"http://127.0.0.1:{port}/")
    assert done.returncode == 97
    assert b"(5)" in done.stderr or b"refused" in done.stderr


@pytest.mark.parametrize("scheme", ["socks5h", "http"])
def test_curl_says_behind_the_user_name_how_to_leave(
    buyer: Buyer, target: WebTarget, scheme: str
) -> None:
    url = f"http://localhost:{target.port}/bytes/{SIZE}"
    done = curl("--proxy", f"{scheme}://{buyer.proxy.replace(':', '-direct:', 1)}", url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == pattern(SIZE)
    buyer.assert_counted(target)


def test_curl_shows_which_wish_is_not_understood(buyer: Buyer) -> None:
    proxy = buyer.proxy.replace(":", "-ctry-de:", 1)
    done = curl("--proxy", f"http://{proxy}", "--write-out", "%{http_code}", "http://localhost/")
    assert done.stdout == (
        b"The parameter 'ctry' is not known; did you mean 'city' or 'country'?\n400"
    )
    refused = curl("--proxy", f"socks5h://{proxy}", "http://localhost/")
    assert b"(1 6)" in refused.stderr
