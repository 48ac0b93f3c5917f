"""The command `proxyd` for a shell: a small script, which has each command forked as daemons are.

The interpreter and the imports of a command take a third of a second of processor time, and the
pages of the documents have fifty commands.
"""

import json
import os
import shlex
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemons.forked import REQUEST_MAX_BYTES, STANDARD
from support.daemons.process import RUN_SECONDS, Process

SCRIPT = """
import json, os, socket, sys

request = {"arguments": sys.argv[2:], "variables": dict(os.environ), "folder": os.getcwd()}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
    connected.connect(sys.argv[1])
    socket.send_fds(connected, [json.dumps(request).encode()], [0, 1, 2])
    sys.exit(int(connected.recv(16)))
"""


@contextmanager
def program() -> Iterator[Path]:
    """Yield the path of the command; it works until the end of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="proxyd-program-") as folder,  # a socket's path is short
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        address, script, command = (
            Path(folder) / name for name in ("socket", "script.py", "proxyd")
        )
        script.write_text(SCRIPT)
        words = shlex.join([sys.executable, "-I", "-S", str(script), str(address)])
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o755)
        listener.bind(str(address))
        listener.listen()
        accepting = threading.Thread(target=_accept, args=[listener])
        accepting.start()
        try:
            yield command
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listener: socket.socket) -> None:
    """Run the commands until the listener ends; several of them may run at the same time."""
    running = []
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            break
        running.append(threading.Thread(target=_run, args=[accepted]))
        running[-1].start()
    for each in running:
        each.join()


def _run(accepted: socket.socket) -> None:
    with accepted:
        packet, descriptors, _, _ = socket.recv_fds(accepted, REQUEST_MAX_BYTES, STANDARD)
        try:
            request = json.loads(packet)
            assert Process.forker is not None
            forked = Process.forker.start(
                "proxyd",
                request["arguments"],
                request["variables"],
                descriptors,
                leads=False,
                folder=Path(request["folder"]),
            )
        finally:
            for each in descriptors:
                os.close(each)
        status = forked.wait(RUN_SECONDS)
        accepted.send(str(status if status >= 0 else 128 - status).encode())
