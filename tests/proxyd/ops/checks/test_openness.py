"""Settings that open the API to strangers: each one is warned of, and no other."""

from typing import Any

import msgspec
from support.base.cases import cases

from config.settings import Settings
from proxyd.ops.checks.openness import open_settings

CERTIFIED = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}


@cases(
    ("api", "names"),
    [
        ({}, []),
        ({"host": "::1"}, []),
        ({"host": "localhost"}, []),
        ({"host": "0.0.0.0", "base_url": "https://api.example.com"}, []),
        ({"base_url": "https://api.example.com"}, ["api.trusted_proxies"]),
        ({"base_url": "https://a.example", "trusted_proxies": ["127.0.0.1/32"]}, []),
        ({"host": "0.0.0.0", **CERTIFIED}, []),
        ({"host": "0.0.0.0"}, ["api.host"]),
        ({"host": "192.0.2.1", "base_url": "http://api.example.com"}, ["api.host"]),
        ({"trusted_proxies": ["127.0.0.1/32", "10.0.0.0/8"]}, []),
        ({"trusted_proxies": ["0.0.0.0/0", "::/0"]}, ["api.trusted_proxies"] * 2),
    ],
)
def test_open_parts_are_named(api: dict[str, Any], names: list[str]) -> None:
    settings = msgspec.convert({"api": api}, Settings)
    assert [line.partition(" ")[0] for line in open_settings(settings)] == names
