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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from support.base.ports import free_port
from support.base.waiting import until_true
from support.database.forwarder import Wire

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


class MemberWire(Wire):
    """A wire to one server of a cluster, which can lead to another one and lose answers.

    Args:
        target: the port of the server.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._cut_at_commit = 0
        super().__init__(lambda: socket.create_connection(("127.0.0.1", self.target)))

    def lead_to(self, target: int) -> None:
        """Lead new connections to another server, and cut the present ones."""
        self.target = target
        self.cut()

    def lose_answers_to_commits(self, number: int) -> None:
        """Cut the next connections that send COMMIT, once the server has it."""
        self._cut_at_commit = number

    def may_pass(self, data: bytes) -> bool:
        """See `Wire.may_pass`."""
        if self._cut_at_commit and b"COMMIT" in data:
            self._cut_at_commit -= 1
            return False
        return super().may_pass(data)


class Member:
    """One server of a cluster.

    Args:
        folder: of its data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()  # no connection gets it while the server is away
        self.wire = MemberWire(self.port)

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
        """Promote a standby, which then accepts writes on a new timeline."""
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
        """Stop the server without waiting for its clients."""
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
        """Make the standby take over; it does not wait for another standby."""
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
