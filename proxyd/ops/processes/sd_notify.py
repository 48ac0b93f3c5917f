"""Notifies the service manager of the daemon's state (sd_notify(3)): a datagram of a few lines.

The service manager is systemd, or the supervisor where the daemon has several processes. Without
one nothing is sent.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping

MICRO = 1_000_000
FEEDS_PER_TIMEOUT = 3  # one that is late, or lost, does not end the daemon; systemd advises two


class ServiceManager:
    """The service manager that started the daemon, if one did.

    Args:
        send: sends it a datagram, without waiting.
        watchdog_seconds: after how long without food its watchdog acts; None when none watches.
    """

    def __init__(self, send: Callable[[bytes], object], watchdog_seconds: float | None) -> None:
        self._send_datagram = send
        self.watchdog_seconds = watchdog_seconds

    def ready(self, status: str) -> None:
        """Notify that the start, or a reload, is complete."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Notify that a reload begins."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Notify that the daemon stops, and accepts no new work."""
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Set the status line of `systemctl status`."""
        self._send(f"STATUS={status}")

    def alive(self) -> None:
        """Feed the watchdog once."""
        self._send("WATCHDOG=1")

    async def feed(self) -> None:
        """Feed the watchdog for as long as the event loop runs; return immediately without one."""
        if self.watchdog_seconds is None:
            return
        while True:
            self.alive()
            await asyncio.sleep(self.watchdog_seconds / FEEDS_PER_TIMEOUT)

    def _send(self, *lines: str) -> None:
        try:
            self._send_datagram("\n".join(lines).encode())
        except OSError:
            return  # the manager is away, or no descriptor is left: neither must stop the service


def service_manager(environment: Mapping[str, str]) -> ServiceManager:
    """Return the service manager that the environment names, or a silent one.

    Args:
        environment: variables; `NOTIFY_SOCKET` is the manager's address, `WATCHDOG_USEC` the
            watchdog's timeout.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):
        address = "\0" + address[1:]

    def send(datagram: bytes) -> None:
        if not address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(datagram, address)

    return ServiceManager(send, _watchdog_seconds(environment))


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the watchdog's timeout; None when no watchdog watches this process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(environment["WATCHDOG_USEC"]) / MICRO
    except (KeyError, ValueError):
        return None
