"""The commands for backups, restorations and moves: one clear line for each mistake."""

from pathlib import Path

from support.base.aside import run_aside
from support.daemons import process
from support.database import sqlite

from config.load import load
from proxyd.cli import backups


def refused(url: str, *arguments: str, words: str, status: int = 1) -> None:
    """Check that a command fails with one line, or its usage, that has some words."""
    done = process.run(url, *arguments)
    assert done.returncode == status, done
    assert done.stdout == ""
    assert words in done.stderr
    if status == 1:
        (line,) = done.stderr.splitlines()
        assert line.startswith("proxyd: ")


def test_each_mistake_gets_one_line(tmp_path: Path, empty_postgres: str) -> None:
    url, folder = sqlite.database(tmp_path), str(tmp_path / "backups")
    none = f"sqlite:///{tmp_path}/none/proxyd.db"
    refused(none, "backup", "--all", folder, words="there is no database")
    refused(url, "backup", "--all", folder, "x.db", words="not allowed with", status=2)
    refused(url, "backup", words="one of the arguments", status=2)
    refused(url, "backup", "--all", folder, "--keep", "0", words="not a number from 1", status=2)
    refused(url, "backup", "x.db", "--keep", "1", words="--keep needs --all", status=2)
    refused(url, "restore", folder, words="expected the folder of a backup", status=2)
    refused(url, "restore", folder, "x", "--confirm", words="without them", status=2)
    refused(url, "restore", str(tmp_path), str(tmp_path / "new"), words="it has no MANIFEST")
    refused(none, "restore", "--confirm", words="there is no database")
    to = ("storage", "move", "--to")
    for wrong in ("mysql://host/db", "@relative", f"@{tmp_path}/none", "sqlite:///x.db"):
        refused(url, *to, wrong, words="--to: ")
    refused(url, *to, "postgresql://u:secret@127.0.0.1:1/db", words="127.0.0.1:1/db: ")
    refused(none, *to, "postgresql://127.0.0.1:1/db", words="there is no database")
    refused(empty_postgres, *to, empty_postgres, words="only an SQLite database can be moved")
    with process.serving(url):
        refused(url, *to, empty_postgres, words="the daemon runs; stop it first")


def test_a_move_prints_the_settings_to_change(tmp_path: Path, empty_postgres: str) -> None:
    url = sqlite.database(tmp_path)
    process.funded(url)
    (tmp_path / "url").write_text(empty_postgres)
    variables = {"PROXYD_STORAGE__URL": url, "PROXYD_EXITS__HOST": "127.0.0.1"}
    settings = load(None, variables)
    agrees, report = run_aside(backups.move(settings, f"@{tmp_path}/url", {}))
    assert agrees, report
    for line in (
        f'storage.url = "@{tmp_path}/url"',
        f'auth.signing_key_file = "{tmp_path}/signing.key"',
        f'work.folder = "{tmp_path}/work"',
        f'exits.tls_cert = "{tmp_path}/exits.pem"',
    ):
        assert line in report.splitlines()
