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
