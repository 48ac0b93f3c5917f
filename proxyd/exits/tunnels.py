"""Tunnels: connections into jobs that run on devices, which nobody can reach from outside.

A device that holds an attempt with ports keeps a control connection open to the exits' port, as a
worker: it is no exit by that. Whoever asks for a stream into a job (`Tunnels.open`) is given a
socket; the device connects to the port inside the job's sandbox, and dials back.
"""

import socket
from typing import Protocol

AWAY = "away"  # the device has no tunnel here
REFUSED = "refused"  # nobody listens on the port, or the job has not declared it
GONE = "gone"  # the device does not run this attempt
TIMEOUT = "timeout"  # the device did not answer in time
BUSY = "busy"  # as many streams are open as may be


class TunnelError(Exception):
    """There is no stream into a job.

    Args:
        reason: `AWAY`, `REFUSED`, `GONE`, `TIMEOUT` or `BUSY`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Tunnels(Protocol):
    """Opens streams into jobs; belongs to one event loop."""

    async def open(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float
    ) -> socket.socket:
        """Return a stream into a job.

        Its other end is the job's own 127.0.0.1:port inside its sandbox. Each way ends by itself
        (`shutdown`), a reset is a reset, and who reads slowly makes the other side wait.

        Args:
            device_id: that runs the attempt.
            job_id: of the job.
            attempt: its number, from 1.
            port: that the job's payload declares.
            seconds: after which it is given up.

        Returns:
            a connected TCP socket, non-blocking; the caller's to close.

        Raises:
            TunnelError: why there is none.
        """

    def is_attached(self, device_id: str) -> bool:
        """Say whether a device can be asked for streams now; any open may fail all the same."""
