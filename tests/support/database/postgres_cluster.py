"""Two real PostgreSQL servers, a primary and its standby, each behind a wire that a test controls.

The servers are Debian's, which bring the programs that replication needs; they run as the user
`postgres`, because PostgreSQL refuses to run as root.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from support.base.waiting import until_true

USER = "postgres"
DATABASE = "proxyd"
STANDBY_NAME = "standby"
# Commits must outlive the process, and need not outlive the machine of a test.
COMMON = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "wal_level": "replica",
    "hot_standby": "on",
    "max_connections": "60",
    "wal_receiver_status_interval": "1",
    "shared_buffers": "32MB",
}


def programs() -> Path | None:
    """Return the folder of Debian's PostgreSQL programs; None where they are not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup"))
    return found[-1].parent if found else None


class Wire:
    """Passes connections on to one of several servers; it can be silent, and it can cut them.

    Args:
        target: the port of the server.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = int(self._listener.getsockname()[1])
        self._flows = threading.Event()
        self._flows.set()
        self._closing = False
        self._cut_at_commit = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def freeze(self) -> None:
        """Pass nothing on from here, in either direction; connections stay open, and silent."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass on again."""
        self._flows.set()

    def lead_to(self, target: int) -> None:
        """Lead new connections to another server, and cut those there are."""
        self.target = target
        self.cut()

    def lose_answers_to_commits(self, number: int) -> None:
        """Cut the next connections that send COMMIT, once the server has it."""
        self._cut_at_commit = number

    def cut(self) -> None:
        """Cut every connection."""
        for pair in tuple(self._pairs):
            for sock in pair:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut everything and end."""
        self._closing = True
        self._flows.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for pair in self._pairs:
            for sock in pair:
                sock.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()  # as a server that does not run refuses
                continue
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink, source is client))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                if is_client and self._cut_at_commit and b"COMMIT" in data:
                    self._cut_at_commit -= 1
                    source.shutdown(socket.SHUT_WR)  # no answer passes any more
                    source.shutdown(socket.SHUT_RD)
                    sink.sendall(data)
                    return
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class Member:
    """One server of a cluster.

    Args:
        folder: of its data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.wire = Wire(self.port)

    @property
    def url(self) -> str:
        """The server itself, without its wire."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    def create(self) -> None:
        """Make an empty database."""
        run("initdb", "--auth=trust", f"--username={USER}", "--pgdata", str(self.folder))
        self._configure()
        self.start()
        self.execute(f"CREATE DATABASE {DATABASE}", database="postgres")

    def follow(self, primary: "Member") -> None:
        """Become a standby of `primary`, with all of its data."""
        where = f"host=127.0.0.1 port={primary.port} user={USER} application_name={STANDBY_NAME}"
        run("pg_basebackup", "--pgdata", str(self.folder), "--wal-method=stream",
            "--checkpoint=fast", "--write-recovery-conf", "--dbname", where)  # fmt: skip
        self._configure()
        self.start()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        log = self.folder.parent / f"{self.folder.name}.log"
        run("pg_ctl", "start", "--wait", "--pgdata", str(self.folder), "--log", str(log))

    def kill(self) -> None:
        """End it as a loss of its processes does."""
        os.kill(self._pid(), signal.SIGQUIT)
        until_true(lambda: not (self.folder / "postmaster.pid").exists(), "PostgreSQL has ended")

    def promote(self) -> None:
        """Have a standby accept writes, on a timeline of its own."""
        run("pg_ctl", "promote", "--wait", "--pgdata", str(self.folder))

    def execute(self, *statements: str, database: str = DATABASE) -> str:
        """Run statements, and return their output without a frame."""
        args = [each for statement in statements for each in ("--command", statement)]
        return run("psql", "--no-psqlrc", "--tuples-only", "--no-align", "--quiet",
                   "--host=127.0.0.1", f"--port={self.port}", f"--username={USER}",
                   f"--dbname={database}", *args)  # fmt: skip

    def set(self, **settings: str) -> None:
        """Change settings, and have the server read them."""
        # Also on a server that was made read-only by one of them.
        writes = "SET default_transaction_read_only = off"
        changes = [f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()]
        self.execute(writes, *changes, "SELECT pg_reload_conf()")

    def close(self) -> None:
        """Stop the server at once."""
        self.wire.close()
        with suppress(FileNotFoundError, subprocess.CalledProcessError):
            run("pg_ctl", "stop", "--mode=immediate", "--pgdata", str(self.folder))

    def _pid(self) -> int:
        return int((self.folder / "postmaster.pid").read_text().splitlines()[0])

    def _configure(self) -> None:
        folder = {"unix_socket_directories": str(self.folder.parent)}
        lines = [f"{name} = '{value}'" for name, value in (COMMON | folder).items()]
        path = self.folder / "conf.d.conf"
        path.write_text("\n".join([*lines, f"port = {self.port}"]) + "\n")
        shutil.chown(path, USER)
        main = self.folder / "postgresql.conf"
        if "conf.d.conf" not in main.read_text():
            main.write_text(f"{main.read_text()}\ninclude = 'conf.d.conf'\n")


class Cluster:
    """A primary and its standby, which has everything before a commit is answered."""

    def __init__(self, folder: Path) -> None:
        self.primary = Member(folder / "one")
        self.standby = Member(folder / "two")
        self.primary.create()
        self.standby.follow(self.primary)
        self.primary.set(synchronous_standby_names=STANDBY_NAME)

    @property
    def url(self) -> str:
        """Both servers, each by its wire."""
        wires = f"127.0.0.1:{self.primary.wire.port},127.0.0.1:{self.standby.wire.port}"
        return f"postgresql://{USER}@{wires}/{DATABASE}"

    def fail_over(self) -> None:
        """Have the standby take over; it waits for no standby of its own."""
        self.standby.promote()
        self.standby.set(synchronous_standby_names="")

    def close(self) -> None:
        """End both."""
        for member in (self.standby, self.primary):
            member.close()

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """Run a cluster until the test is over."""
        folder = Path(tempfile.mkdtemp(prefix="proxyd-cluster-", dir="/dev/shm"))
        shutil.chown(folder, USER)
        try:
            cluster = cls(folder)
            try:
                yield cluster
            finally:
                cluster.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run(program: str, *arguments: str) -> str:
    """Run one of PostgreSQL's programs as its user; return its output."""
    folder = programs()
    assert folder is not None, "PostgreSQL of Debian is not installed"
    done = subprocess.run(
        [str(folder / program), *arguments],
        user=USER if os.geteuid() == 0 else None,
        group=pwd.getpwnam(USER).pw_gid if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/"},
        stdin=subprocess.DEVNULL,
        # A server that `pg_ctl` starts would keep a pipe open.
        stdout=subprocess.PIPE if program == "psql" else subprocess.DEVNULL,
        stderr=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(
            done.returncode, [program, *arguments], stderr=done.stderr
        )
    return (done.stdout or "").strip()


def lines_of(text: str) -> Sequence[str]:
    """Return the rows that `execute` has printed."""
    return [line for line in text.splitlines() if line]
