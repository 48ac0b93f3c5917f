"""Warnings about settings that are allowed, and open the API to more than is wanted."""

from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from config.settings import Settings


def open_settings(settings: Settings) -> Iterator[str]:
    """Yield a line for each setting of the API that helps strangers."""
    api = settings.api
    if not (_is_loopback(api.host) or api.tls_cert or api.base_url.startswith("https://")):
        yield (
            f"api.host is {api.host}, without TLS: passwords, tokens and cookies cross the network "
            "in clear; set api.tls_cert, or leave the API on loopback behind a web server"
        )
    if _is_loopback(api.host) and api.base_url.startswith("https://") and not api.trusted_proxies:
        yield (
            "api.trusted_proxies is empty, and api.base_url is an https address: behind a web "
            "server on this machine all clients have the address 127.0.0.1, in limits, logins and "
            'searches; set it to ["127.0.0.1/32"], and have the web server send X-Forwarded-For'
        )
    for network in api.trusted_proxies:
        if ip_network(network).prefixlen == 0:
            yield (
                f"api.trusted_proxies has {network}: every client may say that it comes from "
                "elsewhere, and passes limits and lists of addresses"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
