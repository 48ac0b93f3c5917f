"""Listening sockets and TLS: successes, and the errors that an operator gets."""

import asyncio
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import pytest
from support.base.cases import cases
from support.base.ports import free_port
from support.daemons.service import settings_for

from proxyd.ops.processes.listening import (
    BACKLOG,
    SETTINGS,
    CannotListenError,
    Purpose,
    bound_port,
    exits_context,
    format_address,
    listen,
    tls_context,
    tls_problems,
)
from proxyd.wiring.listeners import Listeners

# Made for these tests with openssl; it protects nothing.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBgDCCASWgAwIBAgIUXRtLex41Boi8VQB9r5qBkzFwG30wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMDE4MjA0M1oYDzIxMjYxMDI3
MTgyMDQzWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATkNkzlhQz2bxoB0kfvaAq0ITZxTP2BR6K1lpr+Fy78gqUlFT0ySmN5
zLe2HC8/fb0ALJlkGdQUwL5FrYYx2JGEo1MwUTAdBgNVHQ4EFgQUq/MnH74JBMW2
x0wkhQ9r/YjaPTQwHwYDVR0jBBgwFoAUq/MnH74JBMW2x0wkhQ9r/YjaPTQwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAqB73Ah6kehcKp7O4haLG
R3aHxbmFIp3LUi/iHxzQlfwCIQCNd33mswDF+k1zFk9kOSv9dfCrIzmWreaYklot
Q38LIA==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgkB4yo6phAyLAizkr
Dg9sNodlBy1Q5vn9AVMhi8ZzhqahRANCAATkNkzlhQz2bxoB0kfvaAq0ITZxTP2B
R6K1lpr+Fy78gqUlFT0ySmN5zLe2HC8/fb0ALJlkGdQUwL5FrYYx2JGE
-----END PRIVATE KEY-----
"""
ANOTHER_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgwYLAFo9uY1cwmeMS
DDzzY/gjUYAIQ/Ew3wqHXfG0YSyhRANCAATCPyd7YgOkILEgYo1wASaKl7ANrlcC
sgL+y7lfdwJQ9RYiGEcK1b88bTICDH6BIvpr4xLhkTiVxKlqf3LTl/rF
-----END PRIVATE KEY-----
"""


@pytest.fixture
def certificate(tmp_path: Path) -> str:
    """The name of a file with a certificate."""
    path = tmp_path / "cert.pem"
    path.write_text(CERTIFICATE)
    return str(path)


@pytest.fixture
def key(tmp_path: Path) -> str:
    """The name of a file with its key."""
    path = tmp_path / "key.pem"
    path.write_text(KEY)
    return str(path)


@cases(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_listener_takes_connections(host: str, family: int) -> None:
    with listen(host, 0, "API") as sock:
        assert sock.family == family
        assert sock.getsockname()[0] == host
        assert sock.gettimeout() == 0.0
        with socket.create_connection((host, bound_port(sock)), timeout=10):
            client, _ = sock.accept()
            client.close()


def test_a_free_port_is_found_when_none_is_named() -> None:
    with listen("127.0.0.1", 0, "API") as one, listen("127.0.0.1", 0, "proxy") as other:
        assert bound_port(one) > 0
        assert bound_port(one) != bound_port(other)


def test_the_named_port_is_taken() -> None:
    with listen("127.0.0.1", 0, "API") as sock:
        port = bound_port(sock)
    with listen("127.0.0.1", port, "API") as again:
        assert bound_port(again) == port


def test_a_port_is_free_again_at_once_after_a_connection() -> None:
    with listen("127.0.0.1", 0, "API") as sock:
        port = bound_port(sock)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            served, _ = sock.accept()
            served.close()  # the server ends first, so that the port lingers in TIME_WAIT
            assert client.recv(1) == b""
    with listen("127.0.0.1", port, "API") as again:
        assert bound_port(again) == port


def test_many_clients_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0, "API") as sock:
        clients = [
            socket.create_connection(("127.0.0.1", bound_port(sock)), timeout=10)
            for _ in range(200)
        ]
        for client in clients:
            client.close()
    assert BACKLOG >= 200


def test_every_address_of_both_families_is_listened_on_with_two_colons() -> None:
    with listen("::", 0, "API") as sock:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, bound_port(sock)), timeout=10):
                client, _ = sock.accept()
                client.close()


def test_one_ipv6_address_says_nothing_of_ipv4() -> None:
    with listen("::1", 0, "API") as sock:
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1


def test_a_port_in_use_is_named_with_its_purpose() -> None:
    with listen("127.0.0.1", 0, "API") as sock:
        port = bound_port(sock)
        with pytest.raises(CannotListenError) as caught:
            listen("127.0.0.1", port, "proxy")
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port} for the proxy: Address already in use; stop the "
        "program that has it, or choose another port with PROXYD_PROXY__PORT (the "
        "setting proxy.port)"
    )


@cases(
    ("host", "shown"),
    [("192.0.2.1", r"192\.0\.2\.1:8080"), ("2001:db8::1", r"\[2001:db8::1\]:8080")],
)
def test_an_address_of_another_machine_is_named(host: str, shown: str) -> None:
    with pytest.raises(CannotListenError, match=f"cannot listen on {shown} for the API: Cannot"):
        listen(host, 8080, "API")


@cases(
    ("host", "port", "words"),
    [
        ("127.0.0.1", 8080, "127.0.0.1:8080"),
        ("::1", 1080, "[::1]:1080"),
        ("proxy.example.com", 1, "proxy.example.com:1"),
    ],
)
def test_an_address_is_written_as_in_a_url(host: str, port: int, words: str) -> None:
    assert format_address(host, port) == words


@cases(
    ("purpose", "variable", "setting"),
    [
        ("API", "PROXYD_API__PORT", "api.port"),
        (
            "proxy without passwords",
            "PROXYD_PROXY__PASSWORDLESS_PORTS",
            "proxy.passwordless_ports",
        ),
    ],
)
def test_a_port_in_use_is_reported_with_the_setting_that_changes_it(
    purpose: str, variable: str, setting: str
) -> None:
    with listen("127.0.0.1", 0, "API") as sock, pytest.raises(CannotListenError) as caught:
        listen("127.0.0.1", bound_port(sock), purpose)
    assert str(caught.value).endswith(f"with {variable} (the setting {setting})")


def test_a_port_without_passwords_stays_the_same_as_long_as_it_is_free() -> None:
    first = free_port(3)
    settings = settings_for("", proxy={"port": first, "passwordless_ports": [0, first + 1]})
    for _ in range(2):
        listeners = Listeners.open(settings, {})
        ports = [bound_port(sock) for sock in listeners.passwordless]
        listeners.close()
        assert ports == [first + 2, first + 1]
    with listen("127.0.0.1", first + 2, "API"):
        listeners = Listeners.open(settings, {})
        ports = [bound_port(sock) for sock in listeners.passwordless]
        listeners.close()
    assert ports[0] not in (first, first + 1, first + 2)
    assert ports[1] == first + 1


@cases("host", ["127.0.0.1", "::1", "::"])
def test_the_sockets_of_several_processes_share_the_clients_of_a_port(host: str) -> None:
    with ExitStack() as opened:
        proxy = opened.enter_context(listen(host, 0, "proxy"))
        open_to_all = opened.enter_context(listen("127.0.0.1", 0, "proxy"))
        first = Listeners(None, proxy, (open_to_all,), None, frozenset())
        second, third = first.beside(), first.beside()
        for each in (second, third):
            opened.callback(each.close)
            assert each.api is None
            assert [sock.getsockname() for sock in each.sockets] == [
                sock.getsockname() for sock in first.sockets
            ]
        port = bound_port(proxy)
        where = "::1" if host == "::" else host
        waiting = [opened.enter_context(socket.create_connection((where, port))) for _ in range(60)]
        accepted = [accept_all(each.proxy) for each in (first, second, third)]
        assert sum(accepted) == len(waiting)
        assert all(accepted)
        # To anybody else the port is taken, also to another daemon of the same user.
        with pytest.raises(CannotListenError, match="already in use"):
            listen(host, port, "proxy")


def accept_all(sock: socket.socket) -> int:
    """Accept all waiting connections. Return their number."""
    number = 0
    while True:
        try:
            sock.accept()[0].close()
        except BlockingIOError:
            return number
        number += 1


def test_sockets_of_the_service_manager_are_shared_by_the_processes() -> None:
    with ExitStack() as opened:
        api, proxy, own = (opened.enter_context(listen("127.0.0.1", 0, "proxy")) for _ in range(3))
        first = Listeners(api, proxy, (own,), None, frozenset([api, proxy]))
        second = first.beside()
        opened.callback(second.close)
        assert (second.api, second.proxy) == (None, proxy)
        [beside] = second.passwordless
        assert beside is not own
        assert bound_port(beside) == bound_port(own)


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls_context("", "") is None


async def test_a_certificate_and_its_key_speak_tls(certificate: str, key: str) -> None:
    context = tls_context(certificate, key)
    assert context is not None

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    sock = listen("127.0.0.1", 0, "API")
    server = await asyncio.start_server(greet, sock=sock, ssl=context)
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", bound_port(sock), ssl=trusting)
        assert await reader.read() == b"hello"
        tls = writer.get_extra_info("ssl_object")
        assert tls.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(CERTIFICATE)
        writer.close()
        await writer.wait_closed()


def test_nothing_older_than_tls_1_2_is_spoken(certificate: str, key: str) -> None:
    context = tls_context(certificate, key)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_missing_certificate_is_named(tmp_path: Path, key: str) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(CannotListenError) as caught:
        tls_context(str(missing), key)
    assert str(caught.value) == f"cannot read {missing} for TLS: No such file or directory"


def test_a_missing_key_is_named(tmp_path: Path, certificate: str) -> None:
    with pytest.raises(CannotListenError, match=r"missing\.key.*No such file or directory"):
        tls_context(certificate, str(tmp_path / "missing.key"))


def test_a_key_of_another_certificate_is_reported(tmp_path: Path, certificate: str) -> None:
    other = tmp_path / "other.pem"
    other.write_text(ANOTHER_KEY)
    with pytest.raises(CannotListenError, match=r"cannot use the certificate .*mismatch"):
        tls_context(certificate, str(other))


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path, key: str) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(
        CannotListenError, match=f"cannot use the certificate {nonsense} with .*: ."
    ):
        tls_context(str(nonsense), key)


def test_exits_speak_only_tls_1_3(certificate: str, key: str) -> None:
    context = exits_context(certificate, key)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(CannotListenError, match="cannot read"):
        exits_context(certificate, key + ".missing")


def test_each_mistake_in_the_files_of_exits_is_named(tmp_path: Path, certificate: str) -> None:
    exits = {"tls_cert": certificate, "tls_key": str(tmp_path / "missing.key")}
    (problem,) = tls_problems(settings_for("sqlite:///unused.db", exits=exits))
    assert problem.startswith("exits.tls_key: cannot read")
    exits["tls_key"] = certificate
    (problem,) = tls_problems(settings_for("sqlite:///unused.db", exits=exits))
    assert problem.startswith("exits.tls_cert: cannot use")


@cases("purpose", get_args(Purpose))
def test_each_port_is_named_by_its_setting_when_it_is_taken(purpose: Purpose) -> None:
    section, _, key = SETTINGS[purpose].partition(".")
    assert key in type(getattr(settings_for(""), section)).__struct_fields__
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(CannotListenError, match=rf"the setting {section}\.{key}"),
    ):
        listen("127.0.0.1", taken.getsockname()[1], purpose)


def test_the_port_of_exits_is_named_when_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(CannotListenError, match="PROXYD_EXITS__PORT"):
            listen("127.0.0.1", taken.getsockname()[1], "exits")
