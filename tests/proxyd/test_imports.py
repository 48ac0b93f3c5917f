"""A command loads the modules that it needs, and does not wait for those of other commands."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.base.waiting import until_true
from support.daemons import process

from proxyd.cli import commands

SERVERS = {"aiohttp", "prometheus_client", "pycares", "aiodns", "swagger_ui"}
DRIVERS = {"aiosqlite", "asyncpg", "sqlite3"}
CRYPTOGRAPHY = {"cryptography", "jwt", "argon2"}
OTHERS = {"PIL", "aiosmtplib", "multipart", "uvloop"}
PLACES = {"iptocc", "maxminddb"}  # a daemon without exits never needs them
HEAVY = SERVERS | DRIVERS | CRYPTOGRAPHY | OTHERS | PLACES
SQLITE = {"aiosqlite", "sqlite3"}

EMAIL = "ada@example.com"

WATCHING = """
import gc, sys, threading

def tell(text):
    sys.stderr.write(f"{text}\\n")

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "jwt":
            is_main = threading.current_thread() is threading.main_thread()
            tell("imported in the main thread" if is_main else "imported beside the loop")

def freeze_and_tell(freeze=gc.freeze):
    freeze()
    tell("frozen with it" if "jwt" in sys.modules else "frozen without it")

sys.meta_path.insert(0, Finder())
gc.freeze = freeze_and_tell
"""
CREATE = ("user", "create", EMAIL, "--username", "ada", "--password-stdin")


def loaded(database: Path, *arguments: str, stdin: str = "") -> set[str]:
    """Run a command to its good end; return the packages that it has imported, of all there are."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "proxyd", *arguments],
        env=process.environment(f"sqlite:///{database}"),
        cwd=process.ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    found = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "argparse" in found
    return found


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["serve", "--help"]])
def test_the_version_and_help_wait_for_nothing(tmp_path: Path, arguments: list[str]) -> None:
    found = loaded(tmp_path / "unused.db", *arguments)
    assert found & (HEAVY | {"asyncio", "msgspec", "config", "market", "storage", "api"}) == set()


def test_settings_are_checked_without_a_server_or_a_database(tmp_path: Path) -> None:
    assert loaded(tmp_path / "unused.db", "config", "check") & HEAVY == set()


def test_a_command_on_the_books_loads_only_the_driver_of_its_database(tmp_path: Path) -> None:
    database = tmp_path / "proxyd.db"
    books = SQLITE | {"argon2", "uvloop"}
    assert loaded(database, *CREATE, stdin="long enough\n") & HEAVY == books
    assert loaded(database, "wallet", "deposit", EMAIL, "--usd", "1") & HEAVY == books
    assert loaded(database, "ledger", "audit") & HEAVY == books
    assert loaded(database, "staff", "list") & HEAVY == books
    assert loaded(database, "backup", str(tmp_path / "copy.db")) & HEAVY == {"sqlite3"}


def _printed(script: str) -> str:
    """Run a script in a process of its own, which must complain of nothing; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=process.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_a_daemon_without_a_model_and_a_mail_server_loads_no_client() -> None:
    script = """
import sys
from argparse import Namespace
from unittest.mock import patch

from config.settings import ApiSettings, ProxySettings, Settings
from proxyd.cli import commands

settings = Settings(api=ApiSettings(port=0), proxy=ProxySettings(port=0))
with patch("asyncio.Runner.run", lambda _, work: work.close()):
    commands.COMMANDS["serve"](settings, Namespace(config=None, demo=False))
print("aiohttp.web" in sys.modules)
unneeded = {"aiohttp.client", "aiohttp.connector", "aiosmtplib", "jwt", "PIL", "asyncpg"}
unneeded |= {"prometheus_client.exposition", "http.server", "iptocc", "maxminddb"}
print(*sorted(unneeded & set(sys.modules)))
"""
    assert _printed(script) == "True\n\n"


def test_modules_for_tokens_are_imported_once_all_is_ready_and_not_in_the_loop(
    tmp_path: Path,
) -> None:
    """Otherwise the first token, valid or not, would make every transfer wait for it."""
    told, output = _imports_of_a_daemon(tmp_path, "1")
    assert told == ["frozen without it", "imported beside the loop", "frozen with it"]
    assert output.index("daemon: ready") < output.index("imported beside")


def test_modules_for_tokens_are_imported_before_processes_are_forked(tmp_path: Path) -> None:
    """So that a successor runs the same code, and none of them imports it or looks through it."""
    told, output = _imports_of_a_daemon(tmp_path, "2")
    assert told == ["frozen without it", "imported in the main thread", "frozen with it"]
    assert output.index("frozen with it") < output.index("] daemon: ready")


def _imports_of_a_daemon(folder: Path, processes: str) -> tuple[list[str], str]:
    """Return the lines of a daemon about its late import, and its whole output."""
    (folder / "sitecustomize.py").write_text(WATCHING)
    url = f"sqlite:///{folder}/proxyd.db"
    settings = {"PYTHONPATH": str(folder), process.PROCESSES: processes}
    settings["PROXYD_LOG__LEVEL"] = "debug"  # at which each of several processes says `ready`
    with process.serving(url, **settings) as running:
        until_true(lambda: "frozen with it" in running.output, "the import")
        assert running.call("GET", "/auth/me", token="a.b.c")[0] == 401
    told = [line.strip() for line in running.lines if line.startswith(("imported", "frozen"))]
    return told, running.output


def test_no_collection_runs_over_the_serving_modules() -> None:
    """Not while it is imported, which would take a tenth of a start, and never again."""
    script = """
import asyncio
import gc
from argparse import Namespace
from unittest.mock import patch

from config.settings import ApiSettings, ProxySettings, Settings
from proxyd.cli import commands

settings = Settings(api=ApiSettings(port=0), proxy=ProxySettings(port=0))
gc.collect()  # so that nothing of the above is due while what follows is watched
collections = []
gc.callbacks.append(lambda phase, about: collections.append(phase))
freeze = gc.freeze

def freeze_and_tell():
    gc.callbacks.clear()
    freeze()

with patch("gc.freeze", freeze_and_tell), patch("asyncio.Runner.run", lambda _, work: work.close()):
    commands.COMMANDS["serve"](settings, Namespace(config=None, demo=False))
print(collections, gc.isenabled(), gc.get_freeze_count() > 30_000, gc.get_threshold()[0])
"""
    assert _printed(script) == f"[] True True {commands.NEW_OBJECTS}\n"
