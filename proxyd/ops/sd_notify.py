"""Tells the service manager how the daemon is (sd_notify(3)): a datagram of a few lines.

Without a service manager nobody is told, and nothing fails.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping

MICRO = 1_000_000
FEEDS_PER_TIMEOUT = 3


class ServiceManager:
    """Whoever started the daemon and wants to know.

    Args:
        environment: variables; `NOTIFY_SOCKET` says where, `WATCHDOG_USEC` how often to be alive.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        self._feed_seconds = _feed_seconds(environment)

    def ready(self, status: str) -> None:
        """Starting is over, or reloading is."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Settings are read anew."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """No new work is taken."""
        self._tell("STOPPING=1", f"STATUS={status}")

    async def feed(self) -> None:
        """Say again and again that the event loop turns, if somebody watches it."""
        if self._feed_seconds is None:
            return
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._feed_seconds)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return  # no manager that listens, or no descriptor left: neither must stop the service


def _feed_seconds(environment: Mapping[str, str]) -> float | None:
    """Return how often the watchdog wants to be fed; None when it watches nobody, or another."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(environment["WATCHDOG_USEC"]) / MICRO / FEEDS_PER_TIMEOUT
    except (KeyError, ValueError):
        return None
