"""Notifies the service manager of the daemon's state (sd_notify(3)): a datagram of a few lines.

Without a service manager it does nothing.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping

MICRO = 1_000_000
FEEDS_PER_TIMEOUT = 3  # one that is late, or lost, does not end the daemon; systemd advises two


class ServiceManager:
    """The service manager that started the daemon, if one did.

    Args:
        environment: variables; `NOTIFY_SOCKET` is the manager's address, `WATCHDOG_USEC` the
            watchdog's timeout.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        self._feed_seconds = _feed_seconds(environment)

    def ready(self, status: str) -> None:
        """Notify that the start, or a reload, is complete."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Notify that a reload begins."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Notify that the daemon stops, and accepts no new work."""
        self._send("STOPPING=1", f"STATUS={status}")

    async def feed(self) -> None:
        """Feed the watchdog for as long as the event loop runs; return at once if there is none."""
        if self._feed_seconds is None:
            return
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._feed_seconds)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return  # the manager is away, or no descriptor is left: neither must stop the service


def _feed_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the pause between two feeds; None when no watchdog watches this process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(environment["WATCHDOG_USEC"]) / MICRO / FEEDS_PER_TIMEOUT
    except (KeyError, ValueError):
        return None
