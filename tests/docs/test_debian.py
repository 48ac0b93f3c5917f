"""The scripts of the Debian package, in a folder instead of a machine."""

import os
import subprocess
from pathlib import Path

import pytest
from support.daemons.process import ROOT

SCRIPTS = ROOT / "release" / "debian"


def script(name: str, folder: Path, *arguments: str, path: str = "") -> str:
    """Run a script on a folder in the place of the file system; return its output."""
    text = (SCRIPTS / name).read_text()
    for place in ("/etc/proxyd", "/var/lib/proxyd", "/run/systemd"):
        text = text.replace(place, f"{folder}{place}")
    done = subprocess.run(
        ["sh", "-s", "--", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{path}:{os.environ['PATH']}"},
    )
    return done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    for name in ("etc/proxyd/secrets", "var/lib/proxyd", "var/lib/proxyd-backups"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/proxyd/proxyd.toml.dpkg-old").write_text("[storage]")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("var/lib/proxyd", "proxyd.db"),
        ("var/lib/proxyd", "money.db"),  # storage.url names any file
        ("var/lib/proxyd", "work/access.key"),  # the database is a server
        ("var/lib/proxyd-backups", "2026-11-29T03:10:00Z/MANIFEST"),
        ("etc/proxyd/secrets", "signing-key"),
    ],
)
def test_a_purge_removes_no_data_wherever_the_database_is(
    installed: Path, place: str, name: str
) -> None:
    kept = installed / place / name
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("money")
    output = script("postrm", installed, "purge")
    assert kept.read_text() == "money"
    assert output == f"proxyd: the data stays in {installed / place}\n"


def test_a_purge_without_data_leaves_nothing(installed: Path) -> None:
    assert script("postrm", installed, "purge") == ""
    assert not list(installed.rglob("*proxyd*"))


def test_a_purge_keeps_data_behind_a_link(
    installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = tmp_path_factory.mktemp("disk")
    (disk / "proxyd.db").write_text("money")
    (installed / "var/lib/proxyd").rmdir()
    (installed / "var/lib/proxyd").symlink_to(disk)
    assert "the data stays" in script("postrm", installed, "purge")
    assert (installed / "var/lib/proxyd/proxyd.db").read_text() == "money"


@pytest.mark.parametrize(
    ("answers", "is_made"),
    [("is-enabled", True), ("is-active", True), ("neither", False)],
)
def test_a_service_that_runs_or_is_enabled_is_backed_up_before_an_upgrade(
    installed: Path, answers: str, *, is_made: bool
) -> None:
    programs = installed / "bin"
    programs.mkdir()
    (installed / "run/systemd/system").mkdir(parents=True)
    program = programs / "systemctl"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = start ] && echo "$@"\n[ "$1" = {answers} -o "$1" = start ]\n'
    )
    program.chmod(0o755)
    output = script("preinst", installed, "upgrade", "1", path=str(programs))
    assert ("start proxyd-backup.service" in output) == is_made
