"""A server that receives webhooks, in threads of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """Receiver of webhooks: keeps them, and answers once it `is_open`, with `status`."""

    status: int = 200
    is_open: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run such a server; while a test clears `is_open`, it answers nothing."""
    receiver = Receiver()
    receiver.is_open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append((dict(self.headers), body))
            receiver.is_open.wait(60)
            self.send_response(receiver.status)
            self.send_header("Content-Length", "5")
            self.end_headers()
            with suppress(ConnectionError):  # the sender was killed meanwhile
                self.wfile.write(b"taken")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.is_open.set()
        server.shutdown()
        thread.join()
        server.server_close()
