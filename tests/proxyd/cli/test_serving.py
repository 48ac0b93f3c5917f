"""`proxyd serve` starts, or reports why it cannot start."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.base.ports import free_port
from support.base.waiting import until_true
from support.daemons.forked import ForkedProcess
from support.daemons.process import Process
from support.daemons.service import settings_for
from support.market.pictures import jpeg, natural
from support.targets.upstream import judges
from support.targets.upstream import upstream as served_model
from support.workers.process import require_sandbox

from proxyd.cli import demo
from storage.engines.errors import CannotOpenError
from storage.engines.open import open_store

ROOT = Path(__file__).parents[3]
NOBODY = 65534
KEY = "tell-nobody" * 4

Daemon = subprocess.Popen[str] | ForkedProcess
Serve = Callable[..., Daemon]

ALIVE = '{"ok":true,"service":"proxyd"}\n'


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "proxyd.db"


@pytest.fixture
def serve(tmp_path: Path, database: Path) -> Iterator[Serve]:
    """Start `proxyd serve`; its output goes to two files beside the database.

    It is forked from a process that has imported its modules, unless it is `new`.
    """
    started: list[Daemon] = []
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROXYD_")}
    environment = kept | {
        "PROXYD_STORAGE__URL": f"sqlite:///{database}",
        "PROXYD_API__PORT": "0",
        "PROXYD_PROXY__PORT": "0",
        "PROXYD_AUTH__ARGON2_TIME_COST": "1",
        "PROXYD_AUTH__ARGON2_MEMORY_KIB": "64",
        "PROXYD_LIMITS__DRAIN_SECONDS": "2",
    }

    def starting(
        *options: str, name: str = "daemon", new: bool = False, **variables: str
    ) -> Daemon:
        with (
            Path(os.devnull).open() as nothing,
            (tmp_path / f"{name}.out").open("w") as out,
            (tmp_path / f"{name}.err").open("w") as err,
        ):
            standard = (nothing.fileno(), out.fileno(), err.fileno())
            daemon = started_by(("serve", *options), environment | variables, standard, new=new)
        started.append(daemon)
        return daemon

    def started_by(
        arguments: tuple[str, ...],
        variables: dict[str, str],
        standard: tuple[int, int, int],
        *,
        new: bool,
    ) -> Daemon:
        forker = Process.forker
        if forker is not None and not new:
            return forker.start(
                "proxyd", arguments, variables, standard, leads=False, folder=tmp_path
            )
        stdin, stdout, stderr = standard
        return subprocess.Popen(
            [sys.executable, "-m", "proxyd", *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=tmp_path,
            env=variables,
            text=True,
        )

    yield starting
    for daemon in started:
        if daemon.poll() is None:
            daemon.send_signal(signal.SIGKILL)
        daemon.wait()


@pytest.fixture
def out(tmp_path: Path) -> Callable[[], str]:
    return (tmp_path / "daemon.out").read_text


@pytest.fixture
def err(tmp_path: Path) -> Callable[[], str]:
    return (tmp_path / "daemon.err").read_text


@pytest.fixture
def fails(serve: Serve, tmp_path: Path) -> Callable[..., None]:
    """Check that the daemon warns, and then fails with one line that names all these words."""

    def failing(*words: object, name: str = "daemon", **variables: str) -> None:
        daemon = serve(name=name, **variables)
        assert daemon.wait(timeout=60) == 1
        assert (tmp_path / f"{name}.out").read_text() == ""
        said = (tmp_path / f"{name}.err").read_text()
        [line] = [line for line in said.splitlines() if " WARNING " not in line]
        assert line.startswith("proxyd: ")
        for word in words:
            assert str(word) in said
        assert KEY not in said

    return failing


def until_ready(daemon: Daemon, err: Callable[[], str]) -> str:
    """Wait for the daemon; return where its API is."""
    until_true(lambda: "ready: " in err() or daemon.poll() is not None, "the daemon is ready")
    found = re.search(r"ready: API on (https?://\S+), proxy on \S+:\d+, .*database ", err())
    assert found is not None, err()
    return found[1]


def stopped(daemon: Daemon, err: Callable[[], str], number: int = signal.SIGTERM) -> None:
    """Stop the daemon by a signal, and check that it ends well."""
    daemon.send_signal(number)
    assert daemon.wait(timeout=60) == 0, err()
    assert "Traceback" not in err()
    assert "stopped" in err()


def curl(*arguments: str) -> str:
    """Run curl, and return the body of the answer."""
    command = ["curl", "--silent", "--show-error", "--fail", "--max-time", "20", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def taken_port() -> Iterator[int]:
    """Listen on a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def make_database(path: Path) -> None:
    """Make a database as `proxyd` does, without running it."""

    async def make() -> None:
        store = await open_store(f"sqlite:///{path}")
        await store.close()

    asyncio.run(make())


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-keyout", key, "-out", cert, "-days", "2", *names],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.mark.parametrize("purpose", brief(["API", "proxy"]))
def test_a_port_in_use_is_named(fails: Callable[..., None], database: Path, purpose: str) -> None:
    with taken_port() as port:
        variable = {f"PROXYD_{purpose.upper()}__PORT": str(port)}
        fails(f"127.0.0.1:{port}", purpose, "in use", **variable)
    assert not database.exists()


def test_a_port_without_passwords_that_is_in_use_is_named(
    fails: Callable[..., None], database: Path
) -> None:
    with taken_port() as port:
        variable = {"PROXYD_PROXY__PASSWORDLESS_PORTS": f"[0, {port}]"}
        fails(f"127.0.0.1:{port}", "proxy without passwords", "in use", **variable)
    assert not database.exists()


def test_an_address_of_another_machine_is_named(fails: Callable[..., None]) -> None:
    fails("192.0.2.1:4000", "API", PROXYD_API__HOST="192.0.2.1", PROXYD_API__PORT="4000")


def test_a_database_that_is_a_directory_is_named(
    fails: Callable[..., None], database: Path
) -> None:
    database.mkdir()
    fails(database, "directory")


def test_a_database_below_a_file_is_named(fails: Callable[..., None], tmp_path: Path) -> None:
    below = tmp_path / "file" / "proxyd.db"
    below.parent.write_text("")
    fails(below, PROXYD_STORAGE__URL=f"sqlite:///{below}")


def test_a_database_that_is_garbage_is_named_and_left_alone(
    fails: Callable[..., None], database: Path
) -> None:
    garbage = bytes(range(256)) * 64
    database.write_bytes(garbage)
    fails(database, "not an SQLite database")
    assert database.read_bytes() == garbage


def test_a_database_that_was_cut_short_is_named(fails: Callable[..., None], database: Path) -> None:
    make_database(database)
    database.write_bytes(database.read_bytes()[:6000])
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    fails(database)


@pytest.mark.long
def test_a_database_that_another_program_holds_is_named(
    fails: Callable[..., None], database: Path
) -> None:
    make_database(database)
    with closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        fails(database, "locked")


def test_a_database_of_a_newer_program_is_named_and_left_alone(
    fails: Callable[..., None], database: Path
) -> None:
    make_database(database)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("INSERT INTO schema_versions (version, name) VALUES (9999, 'later')")
    fails(database, "9999", "newer")
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT MAX(version) FROM schema_versions").fetchone() == (9999,)


def test_a_database_of_another_program_is_left_alone(
    fails: Callable[..., None], database: Path
) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE users (mine TEXT)")
    fails(database, "users")
    with closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        assert tables.fetchall() == [("users",)]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may enter, which the folders of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="proxyd-read-only-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Run as an unprivileged user: root ignores the permissions of files."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("writable", ["nothing", "the folder", "the file"])
async def test_a_read_only_database_is_named(shared_folder: Path, writable: str) -> None:
    database = shared_folder / "proxyd.db"
    store = await open_store(f"sqlite:///{database}")
    await store.close()
    before = database.read_bytes()
    if writable == "the file":
        database.chmod(0o666)
        shared_folder.chmod(0o555)
    else:
        database.chmod(0o444)
        shared_folder.chmod(0o777 if writable == "the folder" else 0o555)
    with without_privileges():
        with pytest.raises(CannotOpenError) as caught:
            await open_store(f"sqlite:///{database}")
    assert str(database) in str(caught.value)
    assert any(
        word in str(caught.value).lower() for word in ("permission", "read-only", "unable to open")
    )
    assert database.read_bytes() == before


async def test_a_folder_that_cannot_be_written_is_named(shared_folder: Path) -> None:
    shared_folder.chmod(0o555)
    database = shared_folder / "deeper" / "proxyd.db"
    with without_privileges():
        with pytest.raises(CannotOpenError) as caught:
            await open_store(f"sqlite:///{database}")
    assert str(database) in str(caught.value)
    assert "Permission denied" in str(caught.value)


def test_a_claim_that_cannot_be_made_is_named(fails: Callable[..., None], database: Path) -> None:
    database.with_name("proxyd.db.lock").mkdir()
    fails(database)


def test_a_second_daemon_on_the_same_database_is_refused(
    serve: Serve, fails: Callable[..., None], err: Callable[[], str], database: Path
) -> None:
    daemon = serve()
    url = until_ready(daemon, err)
    assert f"database {database}" in err()
    fails(database, "another proxyd", "PROXYD_STORAGE__URL", name="second")
    assert curl(f"{url}/readyz") == ALIVE
    stopped(daemon, err)


def test_a_daemon_starts_where_another_was_killed(serve: Serve, err: Callable[[], str]) -> None:
    first = serve()
    until_ready(first, err)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = serve()
    until_ready(second, err)
    stopped(second, err)


def test_a_missing_certificate_or_key_is_named(
    fails: Callable[..., None], tmp_path: Path, database: Path
) -> None:
    missing = tmp_path / "missing.pem"
    both = {"PROXYD_API__TLS_CERT": str(missing), "PROXYD_API__TLS_KEY": str(missing)}
    fails(missing, "No such file", **both)
    assert not database.exists()


def test_a_missing_key_is_not_blamed_on_its_certificate(
    fails: Callable[..., None], tmp_path: Path
) -> None:
    cert, _ = certificate(tmp_path)
    missing = tmp_path / "missing.pem"
    both = {"PROXYD_API__TLS_CERT": str(cert), "PROXYD_API__TLS_KEY": str(missing)}
    fails(missing, "No such file", **both)


@pytest.mark.long
def test_a_file_that_is_no_certificate_is_named(fails: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    cert, _ = certificate(tmp_path / "first")
    _, other = certificate(tmp_path / "second")
    fails(other, PROXYD_API__TLS_CERT=str(other), PROXYD_API__TLS_KEY=str(other))
    fails(cert, PROXYD_API__TLS_CERT=str(cert), PROXYD_API__TLS_KEY=str(other))


@pytest.mark.long
def test_an_unusable_signing_key_is_named(
    fails: Callable[..., None], tmp_path: Path, database: Path
) -> None:
    file = tmp_path / "signing.key"
    file.write_text("short\n")
    fails(file, "32 bytes")
    assert file.read_text() == "short\n"
    file.unlink()
    file.mkdir()
    fails(file, "directory")


def test_wrong_settings_are_all_named_before_anything_starts(
    serve: Serve, out: Callable[[], str], err: Callable[[], str], database: Path
) -> None:
    wrong = {
        "PROXYD_API__PORT": "99999",
        "PROXYD_PROXY__HOTS": "127.0.0.1",
        "PROXYD_MARKET__SESSION_DAYS": "0",
    }
    daemon = serve(**wrong)
    assert daemon.wait(timeout=60) == 2
    assert out() == ""
    assert all(variable in err() for variable in wrong)
    assert "Traceback" not in err()
    assert not database.exists()


@pytest.mark.parametrize("number", brief([signal.SIGTERM, signal.SIGINT]))
def test_a_daemon_serves_until_a_stop_signal(
    serve: Serve,
    out: Callable[[], str],
    err: Callable[[], str],
    tmp_path: Path,
    database: Path,
    number: int,
) -> None:
    daemon = serve(new=True)
    url = until_ready(daemon, err)
    assert curl(f"{url}/healthz") == ALIVE
    assert curl(f"{url}/readyz") == ALIVE
    for private in (database, tmp_path / "signing.key"):
        assert private.stat().st_mode & 0o777 == 0o600
    key = (tmp_path / "signing.key").read_text().strip()
    stopped(daemon, err, number)
    assert out() == ""
    assert key not in err()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.long
@pytest.mark.parametrize("ports", brief([2, 0, 1]))
def test_the_ports_without_passwords_are_logged(
    serve: Serve, err: Callable[[], str], ports: int
) -> None:
    daemon = serve(PROXYD_PROXY__PASSWORDLESS_PORTS=str([0] * ports))
    until_ready(daemon, err)
    (ready,) = (line for line in err().splitlines() if "ready: " in line)
    told = re.findall(r", without passwords on 127\.0\.0\.1:(\d+)", ready)
    assert len(told) == ready.count(", without") == ports
    for port in told:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as client:
            client.sendall(b"\x05\x01\x00")
            assert client.recv(2) == b"\x05\xff"
    stopped(daemon, err)


@pytest.mark.long
def test_a_configured_key_is_printed_nowhere(
    serve: Serve, out: Callable[[], str], err: Callable[[], str], tmp_path: Path
) -> None:
    daemon = serve(PROXYD_AUTH__SIGNING_KEY=KEY, PROXYD_LOG__LEVEL="debug")
    until_ready(daemon, err)
    stopped(daemon, err)
    assert KEY not in out() + err()
    assert not (tmp_path / "signing.key").exists()


def test_an_api_with_a_certificate_speaks_tls(
    serve: Serve, err: Callable[[], str], tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)
    daemon = serve(PROXYD_API__TLS_CERT=str(cert), PROXYD_API__TLS_KEY=str(key))
    url = until_ready(daemon, err)
    assert url.startswith("https://127.0.0.1:")
    assert curl("--cacert", str(cert), f"{url}/readyz") == ALIVE
    person = '{"username": "ada", "email": "ada@example.com", "password": "correct horse"}'
    as_json = ("--cacert", str(cert), "-H", "Content-Type: application/json")
    curl(*as_json, "-d", person, f"{url}/auth/register")
    until_true(lambda: f"{url}/verify?token=" in err(), "a link, and not behind http://")
    stopped(daemon, err)


def lines_of_curl(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("curl ")]


def is_printed(text: str) -> bool:
    """Return whether all of the demonstration's text is there."""
    return text.endswith("up to 100 USD and 100 credits.\n")


def token_in(text: str) -> str:
    """Return the line that sets the token for the other lines."""
    [line] = re.findall(r"^  (export TOKEN=.+)$", text, re.MULTILINE)
    assert "eyJ" not in text  # only its file has the token
    return str(line)


def examples(text: str, folder: Path) -> str:
    """Run the command for more examples that the demonstration prints; return them."""
    [command] = re.findall(r"^More examples, in this folder:  (.+)$", text, re.MULTILINE)
    return in_bash(command, folder)


def in_bash(line: str, folder: Path, text: str = "") -> str:
    """Run a line as it is pasted into a shell, after the line of the text that sets the token."""
    before = f"{token_in(text)}\n" if text else ""
    done = subprocess.run(
        ["bash", "-c", before + line],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def opened_by_curl(address: str) -> str:
    """Open an address as a browser does: it goes where it is led, with the cookies it is given."""
    done = subprocess.run(
        ["curl", "--silent", "--location", "--cookie", "", address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def test_the_demonstration_prints_lines_that_work(
    serve: Serve, out: Callable[[], str], err: Callable[[], str], tmp_path: Path, database: Path
) -> None:
    daemon = serve("--demo", new=True)
    url = until_ready(daemon, err)
    until_true(lambda: is_printed(out()), "the demonstration is printed")
    assert url in out()
    assert len((out() + err()).splitlines()) <= 20
    fetch, look = lines_of_curl(out())
    assert "socks5h://" in fetch
    more = examples(out(), tmp_path)
    by_http, through, login_of_owner, *_ = lines_of_curl(more)
    assert "http://" in by_http
    assert "-country-xx:" in through
    assert token_in(more) == token_in(out())
    assert f"\n  make exit API={url}\n" in more  # its port was moved
    assert '"token":"' in in_bash(login_of_owner, tmp_path)
    for job in re.findall(r"  (job=.*?)\n\n", more, re.DOTALL):
        posted = subprocess.run(
            ["bash", "-c", f"TOKEN=wrong; {job}"], capture_output=True, text=True, check=False
        )
        assert '"code":"unauthorized"' in posted.stderr
        assert (posted.returncode, posted.stdout) == (1, "")
    assert "var/second.db" not in more  # its values may be those of this one
    assert f"API {url.rpartition(':')[2]}, " in more
    for each in (fetch, by_http):
        assert in_bash(each, tmp_path) == ALIVE
    until_true(lambda: '"bytes_used":0,' not in in_bash(look, tmp_path, out()), "it is counted")
    assert '"status":"active"' in in_bash(look, tmp_path, out())
    login = re.search(r"login +(\S+) / (\S+)", out())
    assert login is not None
    body = f'{{"email": "{login[1]}", "password": "{login[2]}"}}'
    as_json = ("-H", "Content-Type: application/json")
    assert '"usd_balance":99.0' in curl(*as_json, "-d", body, f"{url}/auth/login")
    private = [database.with_name(f"proxyd-demo.{suffix}") for suffix in ("token", "txt")]
    assert [each.stat().st_mode & 0o777 for each in private] == [0o600, 0o600]
    stopped(daemon, err)
    assert "stopping: the proxy has no open connections" in err()
    assert "draining" not in err()
    assert [each for each in private if each.exists()] == []


@pytest.mark.long
def test_a_device_carries_the_requests_of_the_demonstration(
    serve: Serve,
    out: Callable[[], str],
    err: Callable[[], str],
    tmp_path: Path,
    database: Path,
) -> None:
    port = free_port(2)  # the apps are at the next one
    daemon = serve("--demo", PROXYD_API__PORT=str(port))
    url = until_ready(daemon, err)
    until_true(lambda: is_printed(out()), "the demonstration is printed")
    _, look = lines_of_curl(out())
    _, through, *_ = lines_of_curl(examples(out(), tmp_path))
    with pytest.raises(AssertionError):
        in_bash(through, tmp_path)  # there is no exit yet
    token = database.with_name(f"{database.stem}-exit.token")
    assert token.stat().st_mode & 0o777 == 0o600
    folder = ("--folder", str(tmp_path / "exit"))
    proxyctl = [sys.executable, "-m", "proxyctl", "exit"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    subprocess.run(
        [*proxyctl, "consent", "--api", url, "--token-file", str(token), *folder],
        input="yes\n",
        text=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    with subprocess.Popen(
        [*proxyctl, "run", *folder, "--allow", "127.0.0.0/8"],
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as agent:
        until_true(lambda: "attached from 127.0.0.1" in err(), "the device has attached")
        assert in_bash(through, tmp_path) == ALIVE
        until_true(lambda: '"bytes_used":0,' not in in_bash(look, tmp_path, out()), "counted")
        agent.terminate()
    assert 'proxyd_exit_dials_total{outcome="connected"} 1.0' in curl(f"{url}/metrics")
    stopped(daemon, err)


@pytest.mark.long
def test_a_device_works_as_the_demonstration_says(
    serve: Serve,
    out: Callable[[], str],
    err: Callable[[], str],
    tmp_path: Path,
    database: Path,
) -> None:
    require_sandbox(tmp_path)
    port = free_port(2)  # the apps are at the next one
    daemon = serve("--demo", PROXYD_API__PORT=str(port))
    url = until_ready(daemon, err)
    until_true(lambda: is_printed(out()), "the demonstration is printed")
    more = examples(out(), tmp_path)
    assert f"\n  make worker API={url}\n" in more
    line, page_line = re.findall(r"  (job=.*?)\n\n", more, re.DOTALL)
    token = database.with_name(f"{database.stem}-worker.token")
    assert token.stat().st_mode & 0o777 == 0o600
    folder = ("--folder", str(tmp_path / "worker"))
    proxyctl = [sys.executable, "-m", "proxyctl", "worker"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    agreed = subprocess.run(
        [*proxyctl, "setup", "--api", url, "--token-file", str(token), *folder, "--disk-gb", "1"],
        input="yes\n",
        text=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    assert agreed.returncode == 0
    with subprocess.Popen(
        [*proxyctl, "run", *folder], env=environment, stderr=subprocess.DEVNULL
    ) as agent:
        try:
            printed = in_bash(line.replace("sleep(1)", "sleep(0.1)"), tmp_path, out())
            answer = in_bash(page_line, tmp_path, out())
            address, _ = re.findall(r'"url":"([^"]*)"', answer)  # of the job, and of its port
            assert ".localhost:" in address
            until_true(lambda: "Directory listing" in opened_by_curl(address), "the page is there")
            job_id = address.removeprefix("http://").partition(".")[0]
            cancel = lines_of_curl(more)[-1]
            assert '"ok":true' in in_bash(f"job={job_id}; {cancel}", tmp_path, out())
        finally:
            agent.terminate()
    texts = re.findall(r'"text":"(.*?)"', printed)
    assert "".join(texts) == "0\\n1\\n2\\n3\\n4\\n"
    assert '"status":"completed"' in printed
    stopped(daemon, err)


@pytest.mark.long
def test_a_device_of_the_demonstration_may_reach_the_port_that_the_api_has_now(
    serve: Serve, out: Callable[[], str], err: Callable[[], str], database: Path
) -> None:
    daemon = serve("--demo")
    until_ready(daemon, err)
    until_true(lambda: is_printed(out()), "the demonstration is printed")
    stopped(daemon, err)
    port = free_port(2)  # the apps are at the next one
    daemon = serve("--demo", PROXYD_API__PORT=str(port))
    until_ready(daemon, err)
    until_true(lambda: is_printed(out()), "the demonstration is printed again")
    with closing(sqlite3.connect(database)) as opened:
        [(ports,)] = opened.execute("SELECT ports FROM exits")
    assert str(port) in ports.split(",")
    stopped(daemon, err)


@pytest.mark.long
def test_the_demonstration_has_exits_in_several_processes_and_a_line_of_its_own(
    serve: Serve, out: Callable[[], str], err: Callable[[], str], tmp_path: Path, database: Path
) -> None:
    second = database.with_name("second.db")
    daemon = serve("--demo", PROXYD_PROXY__PROCESSES="2", PROXYD_STORAGE__URL=f"sqlite:///{second}")
    url = until_ready(daemon, err)
    until_true(lambda: is_printed(out()), "the demonstration is printed")
    assert f"\n  make exit API={url} DEMO=second\n" in examples(out(), tmp_path)
    assert second.with_name("second-exit.token").exists()
    stopped(daemon, err)


@pytest.mark.long
def test_the_demonstration_can_be_had_again(
    serve: Serve, out: Callable[[], str], err: Callable[[], str], tmp_path: Path
) -> None:
    for _ in range(2):
        daemon = serve("--demo")
        until_ready(daemon, err)
        until_true(lambda: is_printed(out()), "the demonstration is printed")
        fetch, look = lines_of_curl(out())
        assert in_bash(fetch, tmp_path) == ALIVE
        assert in_bash(look, tmp_path, out()).count('"id":') == 1
        look_at_wallet = look.replace("/api/bandwidth/sessions", "/api/wallet")
        assert '"usd_balance":99.0' in in_bash(look_at_wallet, tmp_path, out())
        stopped(daemon, err)


def test_the_demonstration_starts_again_after_a_kill_new_terms_and_a_suspension(
    serve: Serve, out: Callable[[], str], err: Callable[[], str], tmp_path: Path, database: Path
) -> None:
    daemon = serve("--demo")
    until_true(lambda: is_printed(out()), "the demonstration is printed")
    [more] = re.findall(r"^More examples, in this folder:  (.+)$", out(), re.MULTILINE)
    text = tmp_path / "terms.md"
    text.write_text("# Terms\n", encoding="utf-8")
    publish = f"site publish terms --file {text} --reason new"
    assert "version 1" in in_bash(more.replace("demo --examples", publish), tmp_path)
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    assert database.with_name("proxyd-demo.txt").exists()
    done = subprocess.run(
        ["bash", "-c", more], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "no demonstration runs here" in done.stderr
    assert "make run" in done.stderr

    daemon = serve("--demo")
    until_true(lambda: is_printed(out()), "the demonstration is printed again")
    fetch, _ = lines_of_curl(out())
    assert in_bash(fetch, tmp_path) == ALIVE
    suspend = f"user suspend {demo.EMAIL} --shown why --reason why"
    in_bash(more.replace("demo --examples", suspend), tmp_path)
    stopped(daemon, err)
    daemon = serve("--demo")
    assert daemon.wait(timeout=60) == 1
    [remedy] = re.findall(r"is suspended; resume it: (.+) --reason TEXT$", err(), re.MULTILINE)
    in_bash(f"{remedy} --reason over", tmp_path)
    daemon = serve("--demo")
    until_true(lambda: is_printed(out()), "the demonstration is printed after the suspension")
    stopped(daemon, err)


@pytest.mark.long
def test_the_demonstration_s_own_settings_are_no_change_at_a_reload(
    serve: Serve, out: Callable[[], str], err: Callable[[], str]
) -> None:
    daemon = serve("--demo")
    until_true(lambda: is_printed(out()), "it serves")
    daemon.send_signal(signal.SIGHUP)
    until_true(lambda: "reloaded: nothing has changed" in err(), "it is reloaded")
    assert "with a restart only" not in err()
    stopped(daemon, err)


@pytest.mark.parametrize("section", brief(["API", "PROXY"]))
def test_the_demonstration_is_only_for_this_machine(
    serve: Serve, out: Callable[[], str], err: Callable[[], str], database: Path, section: str
) -> None:
    public = {f"PROXYD_{section}__HOST": "0.0.0.0", "PROXYD_PROXY__PUBLIC_HOST": "127.0.0.1"}
    daemon = serve("--demo", **public)
    assert daemon.wait(timeout=60) != 0
    assert out() == ""
    assert f"{section.lower()}.host" in err()
    assert "Traceback" not in err()
    assert not database.exists()


async def test_a_late_import_is_there_when_it_is_wanted(
    serve: Serve, err: Callable[[], str], tmp_path: Path
) -> None:
    """The client of the model, the decoder of photos, the text of the metrics."""
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(jpeg(natural(1)))
    question = '{"message": "Hello", "mode": "goodness"}'
    async with served_model() as upstream:
        models = {f"PROXYD_ASSISTANT__{name}": "stand-in" for name in ("MODEL", "VISION_MODEL")}
        daemon = serve(new=True, PROXYD_ASSISTANT__BASE_URL=upstream.url, **models)
        url = await asyncio.to_thread(until_ready, daemon, err)
        chat, analyze = f"{url}/api/assistant/chat", f"{url}/api/assistant/analyze-image"
        said = await asyncio.to_thread(
            curl, "--header", "Content-Type: application/json", "--data", question, chat
        )
        assert "Hello from the model." in said
        upstream.will(judges())
        seen = await asyncio.to_thread(curl, "--form", f"file=@{photo}", analyze)
        assert json.loads(seen)["ok"] is True
        assert len(upstream.asked) == 2
        assert "proxyd_build_info" in await asyncio.to_thread(curl, f"{url}/metrics")
        await asyncio.to_thread(stopped, daemon, err)


@cases(("api", "proxy", "apps"), [(8080, 1080, 8081), (8090, 1180, 8091), (8090, 8091, 8093)])
def test_the_apps_of_a_moved_demonstration_are_at_the_same_port_each_time(
    api: int, proxy: int, apps: int
) -> None:
    moved = {"port": proxy, "passwordless_ports": [0]}
    url = "sqlite:///var/second.db"
    settings = settings_for(url, api={"port": api}, proxy=moved, apps={"port": 8081})
    assert demo._with_exits(settings).apps.port == apps


@cases(
    ("url", "port", "offers"),
    [
        ("sqlite:///var/proxyd.db", 8080, True),
        ("sqlite:///var/proxyd.db", 8090, False),
        ("sqlite:///var/second.db", 8080, False),
    ],
)
def test_only_a_demonstration_with_the_usual_values_offers_a_second_one(
    url: str, port: int, *, offers: bool
) -> None:
    settings = settings_for(url, api={"port": port}, proxy={"port": 1080})
    assert demo._is_usual(settings) is offers
