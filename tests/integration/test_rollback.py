"""An upgrade undone with the program before it: beside its database, or with the named backup."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemons import process
from support.daemons.process import ROOT, serving

from storage.engines import migrate

ROOMS = ("api", "config", "market", "proxyd", "storage")
NEWEST = migrate.newest("sqlite")
ADDITIVE = f"-- readable from {NEWEST}\nCREATE TABLE later (id TEXT PRIMARY KEY);\n"
DEEPER = "ALTER TABLE later ADD COLUMN size BIGINT;\n"
EMAIL, PASSWORD = "ada@example.com", "a long password"


def next_program(folder: Path, *steps: str) -> None:
    """Copy this program, with further migrations."""
    for room in ROOMS:
        ignored = shutil.ignore_patterns("__pycache__", "cpython-*")
        shutil.copytree(ROOT / room, folder / room, ignore=ignored, dirs_exist_ok=True)
    for number, step in enumerate(steps, NEWEST + 1):
        (folder / f"storage/migrations/{number:04}_next.sql").write_text(step)


def run(program: Path, url: str, *arguments: str) -> str:
    """Run a command of a program to its end, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "proxyd", *arguments],
        cwd=program,
        env=process.environment(url),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
async def url(engine: str, empty_url: str, tmp_path: Path) -> str:
    """The URL of an empty database, on each engine in turn; a file has a folder of its own."""
    return f"sqlite:///{tmp_path}/data/proxyd.db" if engine == "sqlite" else empty_url


@pytest.fixture
async def elsewhere(engine: str, empty_postgres: str, tmp_path: Path) -> str:
    """The URL of the place of a restored database, of the same engine."""
    return f"sqlite:///{tmp_path}/restored/proxyd.db" if engine == "sqlite" else empty_postgres


@pytest.mark.long
@pytest.mark.both_engines
def test_an_upgrade_is_undone_with_the_program_before(
    url: str, elsewhere: str, tmp_path: Path
) -> None:
    create = ("user", "create", EMAIL, "--username", "ada", "--password-stdin", "--usd", "20")
    assert process.run(url, *create, stdin=PASSWORD).returncode == 0
    backups = tmp_path / "backups"
    later = tmp_path / "later"

    # The next program only adds: after its upgrade and its writes this one goes on.
    next_program(later, ADDITIVE)
    run(later, url, "backup", "--all", str(backups))
    deposit = ("wallet", "deposit", EMAIL, "--usd")
    run(later, url, *deposit, "5", "--reference", "next")
    with serving(url) as daemon:
        token = daemon.log_in(EMAIL, PASSWORD)
        assert daemon.call("GET", "/api/wallet", token=token)[1]["usd_balance"] == 25
        assert daemon.buy(token)["session_id"]
        assert "which a newer program made" in daemon.output
    process.assert_audit(url)
    [before] = backups.iterdir()

    # A step that is not additive: this program refuses, and names the backup.
    next_program(later, ADDITIVE, DEEPER)
    run(later, url, *deposit, "1", "--reference", "deeper")
    refused = process.run(url, "ledger", "audit")
    assert refused.returncode == 1
    assert f"schema version {NEWEST + 2}, this program knows only {NEWEST}" in refused.stderr
    [named] = re.findall(r"from before the upgrade: (.+)", refused.stderr)
    assert named == str(before)
    place = () if elsewhere.startswith("sqlite") else ("--database", elsewhere)
    done = process.run(url, "restore", named, str(tmp_path / "restored"), *place)
    assert done.returncode == 0, done
    process.assert_audit(elsewhere)
