"""A user leaves: an export, an erasure by commands, and no trace in any file, backup or e-mail.

The commands and the daemon are processes, as an operator runs them.
"""

import asyncio
import io
import json
import re
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.base.brief import brief
from support.base.ports import free_port
from support.base.waiting import until, until_true
from support.daemons import process
from support.daemons.backed_up import wait_for_a_new_name
from support.daemons.process import Process
from support.targets import threads
from support.targets.mailbox import Mailbox, smtp

MARKER = "zebrafish"
EMAIL = f"{MARKER}@{MARKER}.example"
PASSWORD = f"a long {MARKER} word"
NEW = {"username": MARKER, "email": EMAIL, "password": PASSWORD}
WHY = ("--reason", "ticket 7")


class Stage:
    """A service with all its files in one folder."""

    def __init__(self, url: str, folder: Path, port: int) -> None:
        self.url = url
        self.folder = folder
        self.settings = {
            "PROXYD_MAIL__HOST": "127.0.0.1",
            "PROXYD_MAIL__PORT": str(port),
            "PROXYD_MAIL__TLS": "none",
            "PROXYD_WORK__FOLDER": str(folder / "work"),
            "PROXYD_ACCESS_LOG__ENABLED": "on",
            "PROXYD_ACCESS_LOG__FOLDER": str(folder / "access"),
            "PROXYD_AUTH__SIGNING_KEY": "k" * 40,
        }

    def run(self, *arguments: str, **settings: str) -> Any:
        return process.run(self.url, *arguments, **self.settings, **settings)

    def done(self, *arguments: str, status: int = 0, **settings: str) -> str:
        """Run a command that ends with a status; return its output."""
        done = self.run(*arguments, **settings)
        assert done.returncode == status, done
        return str(done.stdout)

    def back_up(self, folder: Path) -> Path:
        """Make a backup, and return its folder."""
        wait_for_a_new_name(folder)
        found = re.match(r"(\S+): \d+ files, ", self.done("backup", "--all", str(folder)))
        assert found
        return Path(found[1])


def hits(*places: Path) -> list[str]:
    """Return the files with the marker."""
    return [
        str(path)
        for place in places
        for path in ([place] if place.is_file() else place.rglob("*"))
        if path.is_file() and MARKER.encode() in path.read_bytes().lower()
    ]


def live(daemon: Process) -> str:
    """Do what leaves traces: a purchase with traffic, a job, a key, a webhook. Return a token."""
    token = daemon.log_in(EMAIL, PASSWORD)
    bought = daemon.buy(token)
    with threads.web() as target, process.proxied(daemon, bought["proxy"], target.port) as line:
        line.sendall(b"GET /bytes/2000 HTTP/1.1\r\nConnection: close\r\n\r\n")
        while line.recv(65536):
            pass
    job = {"title": MARKER, "job_type": "script", "price_credit": 0, "duration_hrs": 1}
    texts = {"description": MARKER, "requirements": MARKER}
    for method, path, body in (
        ("POST", "/api/bandwidth/end", {"session_id": bought["session_id"]}),
        ("POST", "/api/jobs", job | texts),
        ("POST", "/api/worker/token/create", {"name": MARKER, "device_type": "server"}),
        ("POST", "/api/webhooks", {"url": f"https://{MARKER}.example/", "types": ["*"]}),
        ("POST", "/api/keys", {"name": MARKER, "scopes": ["usage:read"]}),
    ):
        status, answer = daemon.call(method, path, body, token)
        assert status == 200, (path, answer)
        if path == "/api/jobs":
            status, _ = daemon.call("POST", f"/api/jobs/{answer['job_id']}/cancel", {}, token)
            assert status == 200
    return token


def exported(daemon: Process, token: str) -> None:
    """Download an export by the API, and look into it."""
    status, asked = daemon.call("POST", "/auth/me/export", {}, token)
    assert status == 200, asked
    request = urllib.request.Request(
        f"{daemon.api}/auth/me/export/{asked['id']}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        read = zipfile.ZipFile(io.BytesIO(answer.read()))
    assert read.testzip() is None
    [user] = map(json.loads, read.read("tables/users.jsonl").splitlines())
    assert (user["email"], "password_hash" in user) == (EMAIL, False)
    [job] = map(json.loads, read.read("tables/jobs.jsonl").splitlines())
    assert job["description"] == MARKER


def erased(stage: Stage, daemon: Process, tmp_path: Path) -> Path:
    """Let the user do things, back up, export, erase. Return the backup."""
    status, answer = daemon.call("POST", "/auth/register", NEW)
    assert status == 200, answer
    user = answer["user"]["id"]
    stage.done("wallet", "deposit", EMAIL, "--usd", "5", "--reference", "story-1")
    token = live(daemon)
    stage.done("user", "note", user, f"said that {MARKER} is a name")
    exported(daemon, token)
    stage.done("user", "export", user, str(tmp_path / "user.zip"))
    assert zipfile.ZipFile(tmp_path / "user.zip").testzip() is None
    old = stage.back_up(tmp_path / "backups")
    refused = stage.run("user", "close", user, *WHY)
    assert (refused.returncode, "USD" in refused.stderr) == (1, True)
    waits = json.loads(stage.done("user", "erase", user, *WHY, "--waived", "--json", status=3))
    refused = stage.run("approve", waits["waits"]["approval"])
    assert (refused.returncode, "second person" in refused.stderr) == (1, True)
    stage.done("refuse", waits["waits"]["approval"], *WHY)
    alone = {"PROXYD_STAFF__SECOND_PERSON_ERASE": "false"}
    stage.done("user", "erase", user, *WHY, "--waived", **alone)
    assert stage.run("user", "erase", user, *WHY, **alone).returncode == 1
    until_true(lambda: user in record(stage), "the erasure is recorded")
    assert daemon.call("GET", "/auth/me", token=token)[0] == 401
    return old


def record(stage: Stage) -> str:
    """Return the text of erasures.log."""
    found = list(stage.folder.rglob("erasures.log"))
    return found[0].read_text() if found else ""


@pytest.mark.long
@pytest.mark.parametrize("engine", brief(["sqlite", "postgres"]))
async def test_a_user_leaves_without_a_trace(
    engine: str, store_url: str, empty_postgres: str, tmp_path: Path
) -> None:
    folder, mailbox = tmp_path, Mailbox()
    port = free_port()
    stage = Stage(store_url, folder, port)
    async with smtp(mailbox, port=port):
        daemon = await asyncio.to_thread(lambda: Process(store_url, **stage.settings).wait_ready())
        try:
            old = await asyncio.to_thread(erased, stage, daemon, tmp_path)
            await until(lambda: len(mailbox.emails) >= 1, "an e-mail")
        finally:
            output = await asyncio.to_thread(stop, daemon)
    assert MARKER not in output.lower()
    new = await asyncio.to_thread(stage.back_up, tmp_path / "newer")
    await asyncio.to_thread(process.assert_audit, store_url)
    assert hits(old)
    (tmp_path / "user.zip").unlink()
    elsewhere = [each for each in tmp_path.iterdir() if each.name != "backups"]
    assert hits(*elsewhere) == []
    assert list((new / "state").glob("erasures.log")) != []
    log = next(path for path in folder.glob("**/erasures.log") if "newer" not in str(path))
    await asyncio.to_thread(restored, engine, old, log, tmp_path / "restored", empty_postgres)


def stop(daemon: Process) -> str:
    """Stop a daemon in order; return its output."""
    assert daemon.stop() == 0
    return daemon.output


def restored(engine: str, old: Path, log: Path, new: Path, empty_postgres: str) -> None:
    """Restore the old backup: the user is erased again, and no file has a trace."""
    option = [] if engine == "sqlite" else ["--database", empty_postgres]
    arguments = ["restore", str(old), str(new), *option]
    done = process.run("sqlite:////none.db", *arguments, "--erasures", str(log))
    assert done.returncode == 0, done.stderr
    assert "accounts erased again: 1, by the record" in done.stdout
    assert "the ledger agrees" in done.stdout
    assert hits(new) == []
    if engine == "sqlite":
        again = process.run("sqlite:////none.db", "restore", str(old), f"{new}-2")
        assert "are missing" in again.stdout
        assert hits(Path(f"{new}-2")) != []
    else:
        url = empty_postgres
        config = ("--config", str(new / "proxyd.toml"))
        folder = new.parent / "after"
        wait_for_a_new_name(folder)
        done = process.run(url, "backup", "--all", str(folder), *config)
        assert done.returncode == 0, done.stderr
        assert hits(folder) == []
