import random
import ssl

import pytest
from support.base.cases import cases

from proxyctl.attach.network.sniff import name_in


def client_hello(name: str | None, **options: object) -> bytes:
    """Return the first bytes that OpenSSL sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for option, value in options.items():
        getattr(context, option)(value)
    sent = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


def test_a_client_hello_names_its_server() -> None:
    assert name_in(client_hello("WWW.example.org")) == "www.example.org"
    protocols = client_hello("example.net", set_alpn_protocols=["h2", "http/1.1"])
    assert name_in(protocols) == "example.net"
    assert name_in(client_hello(None)) is None
    assert name_in(client_hello("127.0.0.1")) is None


def test_an_http_request_names_its_host() -> None:
    assert name_in(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n") == "example.org"
    assert name_in(b"GET / HTTP/1.1\r\nA: b\r\nhost:example.org:8080 \r\n\r\n") == "example.org"


@cases(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"GET / HTTP/1.1\r\nHost: router\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \x1b[2J.org\r\n\r\n",
        b"\x16",
        b"\x16\x03\x01\x00\x00" + bytes(38),
    ],
)
def test_a_stream_without_a_name_has_none(data: bytes) -> None:
    assert name_in(data) is None


def test_no_bytes_make_it_fail() -> None:
    chance = random.Random(14)
    hello = client_hello("example.org")
    for _ in range(3_000):
        data = bytearray(hello[: chance.randrange(len(hello) + 1)])
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        name = name_in(bytes(data))
        assert name is None or name.isprintable()
