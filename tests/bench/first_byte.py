"""How long it takes to reach a target through a server and have 64 bytes back, in milliseconds.

`python -m bench.first_byte ORDER` is the client, in whichever place it is started.
"""

import json
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bench.servers import PATIENCE_SECONDS, ROOT, Place, Server

ONE_AT_A_TIME, AT_ONCE = 10, 8
ECHO_BYTES = 64


def measured(server: Server, host: str, port: int, place: Place) -> tuple[float, float]:
    """Return the medians of one at a time, and of several at once, from some place."""
    order = [[server.name, server.host, server.port, server.user, server.password], host, port]
    command = [*place.prefix, sys.executable, "-m", "bench.first_byte", json.dumps(order)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    alone, together = map(float, done.stdout.split())
    return alone, together


def taken(server: Server, host: str, port: int) -> float:
    """Return how long one took, from the connect to the last byte."""
    began = time.monotonic()
    with server.connect(host, port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(bytes(ECHO_BYTES))
        left = ECHO_BYTES
        while left:
            received = len(sock.recv(left))
            if not received:
                raise ConnectionError(f"{server.name} closed the connection")
            left -= received
    return (time.monotonic() - began) * 1000


def wait_serving(server: Server, host: str, port: int) -> None:
    """Wait until a target can be reached through a server."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            taken(server, host, port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def main(server: Server, host: str, port: int) -> None:
    """Connect again and again, one at a time and then several together."""
    wait_serving(server, host, port)
    alone = [taken(server, host, port) for _ in range(ONE_AT_A_TIME)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        together = list(pool.map(lambda _: taken(server, host, port), range(AT_ONCE)))
    print(statistics.median(alone), statistics.median(together))


if __name__ == "__main__":
    named, *target = json.loads(sys.argv[1])
    main(Server(*named), *target)
