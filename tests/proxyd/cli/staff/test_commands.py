# ruff: noqa: F811 - fixtures of another file
"""Commands about staff and users: their output, their JSON, and their refusals."""

import errno
import json
import os
import pwd
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyotp import TOTP, parse_uri
from support.base.cases import cases

from proxyd.__main__ import main
from proxyd.loop import clock
from tests.proxyd.cli.test_commands import (  # noqa: F401 - fixtures
    EMAIL,
    PASSWORD,
    ada,
    database,
    database_of_ada,
    environment,
    misused,
    refused,
    rows,
    run,
)

Run = Callable[..., subprocess.CompletedProcess[str]]
OPERATOR = "olga@staff.example.com"
CREATE = ["staff", "create", OPERATOR, "--role", "operator", "--password-stdin"]
BECAUSE = ["--reason", "a reason"]
ME = pwd.getpwuid(os.getuid()).pw_name


def answer(run: Run, arguments: Sequence[str], given: str = "") -> Any:
    """Run a command with `--json`, and return its document."""
    done = run([*arguments, "--json"], given.encode())
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


@pytest.fixture
def olga(run: Run, ada: None) -> Any:
    """Begin with an operator, and return the document that made her."""
    return answer(run, [*CREATE, *BECAUSE], f"{PASSWORD}\n")


def test_a_member_is_created_with_a_factor_that_is_shown_once(
    run: Run,
    ada: None,
    database: Path,
) -> None:
    done = run([*CREATE, *BECAUSE], f"{PASSWORD}\n".encode())
    assert (done.returncode, done.stderr) == (0, "")
    created, authenticator, head, *codes = done.stdout.splitlines()
    assert re.fullmatch(f"created: id [0-9a-f-]{{36}}, email {OPERATOR}, role operator", created)
    assert authenticator.startswith("authenticator: otpauth://totp/proxyd:olga%40staff.example.com")
    assert (head, len(codes)) == ("recovery_codes:", 10)
    kept = " ".join(map(str, rows(database, "SELECT * FROM staff, staff_recovery")))
    assert not any(code.strip() in kept for code in codes)
    [listed] = answer(run, ["staff", "list"])["staff"]
    assert (listed["email"], listed["role"], listed["state"]) == (OPERATOR, "operator", "active")
    assert listed["codes_left"] == 10
    assert OPERATOR in run(["staff", "list"]).stdout
    refused(run([*CREATE, *BECAUSE], f"{PASSWORD}\n".encode()), "e-mail address exists")


def test_a_password_and_a_code_are_checked(run: Run, olga: Any) -> None:
    check = ["staff", "check", OPERATOR]
    authenticator = parse_uri(olga["authenticator"])
    assert isinstance(authenticator, TOTP)
    code = authenticator.at(clock.seconds())
    assert answer(run, check, f"{PASSWORD}\n{code}\n")["right"]["role"] == "operator"
    refused(run(check, f"{PASSWORD}\n{code}\n".encode()), "used before")
    recovery = olga["recovery_codes"][3]
    assert answer(run, check, f"{PASSWORD}\n{recovery}\n")
    refused(run(check, f"{PASSWORD}\n{recovery}\n".encode()), "used before")
    refused(run(check, f"wrong\n{code}\n".encode()), "password is wrong")
    refused(run(check, b"one line\n"), "two lines")
    refused(run(check, b"\xff\n\n"), "UTF-8")
    [listed] = answer(run, ["staff", "list"])["staff"]
    assert listed["codes_left"] == 9


def test_keys_are_made_shown_once_and_ended(run: Run, olga: Any, database: Path) -> None:
    create = ["staff", "key", "create", OPERATOR, "--name", "reports", *BECAUSE]
    address = ["--allow-ip", "192.0.2.7", "--allow-ip", "2001:db8::/32"]
    made = answer(run, [*create, "--scope", "read", "--scope", "act", *address, "--days", "7"])
    assert made["key"].startswith("pxs_")
    assert made["key"] not in str(rows(database, "SELECT * FROM staff_keys"))
    [listed] = answer(run, ["staff", "key", "list"])["keys"]
    assert (listed["member"], listed["state"]) == (OPERATOR, "active")
    assert (listed["scopes"], listed["addresses"]) == ("act read", "192.0.2.7/32 2001:db8::/32")
    misused(run([*create, "--scope", "staff", *address]), "staff")
    misused(run([*create, "--scope", "read"]), "--allow-ip")
    refused(run([*create, "--scope", "read", "--allow-ip", "here"]), "allow_ips", code=2)
    refused(run([*create, "--scope", "read", *address, "--days", "91"]), "90 days", code=2)
    revoke = ["staff", "key", "revoke", made["created"]["id"], *BECAUSE]
    assert answer(run, revoke)["revoked"]["member"] == OPERATOR
    refused(run(revoke), "no such staff key")
    refused(run(["staff", "key", "revoke", "nothing", *BECAUSE]), "no such staff key")


def test_attempts_are_listed(run: Run, olga: Any) -> None:
    check = ["staff", "check", OPERATOR]
    refused(run(check, f"wrong\n{olga['recovery_codes'][0]}\n".encode()), "password is wrong")
    answer(run, check, f"{PASSWORD}\n{olga['recovery_codes'][0]}\n")
    listed = answer(run, ["staff", "attempts"])["attempts"]
    assert [(each["member"], each["via"], each["outcome"]) for each in listed] == [
        (OPERATOR, "machine", "right"),
        (OPERATOR, "machine", "wrong"),
    ]
    assert {each["unix_user"] for each in listed} == {ME}


def test_members_are_changed_for_a_reason(run: Run, olga: Any) -> None:
    second = ["staff", "create", "sam@staff.example.com", "--role", "support", "--password-stdin"]
    answer(run, [*second, *BECAUSE], f"{PASSWORD}\n")
    sam = "sam@staff.example.com"
    changed = answer(run, ["staff", "role", sam, "finance", *BECAUSE])["changed"]
    assert (changed["before"], changed["role"]) == ("support", "finance")
    assert answer(run, ["staff", "lock", sam, *BECAUSE])["locked"]["email"] == sam
    refused(run(["staff", "lock", sam, *BECAUSE]), "locked already")
    assert answer(run, ["staff", "unlock", sam, *BECAUSE])["unlocked"]["email"] == sam
    new = answer(run, ["staff", "reset-factor", sam, *BECAUSE])
    assert len(new["recovery_codes"]) == 10
    refused(run(["staff", "lock", OPERATOR, *BECAUSE]), "last operator")
    refused(run(["staff", "role", OPERATOR, "support", *BECAUSE]), "last operator")
    refused(run(["staff", "lock", "nobody", *BECAUSE]), "no such member")
    refused(run(["staff", "lock", sam, "--reason", " "]), "reason", code=2)
    misused(run(["staff", "lock", sam]), "--reason")
    misused(run(["staff", "role", sam, "owner", *BECAUSE]), "owner")
    log = answer(run, ["log", "--limit", "3"])["log"]
    assert [each["action"] for each in log] == ["staff.reset_factor", "staff.unlock", "staff.lock"]
    assert {each["author"] for each in log} == {f"{ME}@machine"}
    assert {each["text"] for each in log} == {"a reason"}


def test_a_user_is_found_viewed_and_noted(run: Run, ada: None, database: Path) -> None:
    ((user,),) = rows(database, "SELECT id FROM users")
    assert (
        run(["wallet", "deposit", EMAIL, "--usd", "12.5", "--reference", "INV-7"]).returncode == 0
    )
    for text, by in (
        (EMAIL, "e-mail"),
        ("@example.com", "e-mail domain"),
        ("AD", "user name"),
        (str(user), "identifier"),
        ("INV-7", "payment reference"),
    ):
        [found] = answer(run, ["who", text])["found"]
        assert (found["by"], found["hits"][0]["user"], found["more_than"]) == (by, user, None)
    shown = run(["who", "ada"]).stdout
    assert shown.startswith("user name:\n  kind")
    assert EMAIL not in shown
    assert answer(run, ["user", "reveal", "ada", *BECAUSE])["revealed"]["user"] == user
    assert EMAIL in run(["who", "ada"]).stdout
    assert answer(run, ["user", "note", "ada", "asked\x1b[2J"[:5]])["noted"]["user"] == user
    page = answer(run, ["user", "show", EMAIL])
    assert page["user"]["id"] == user
    assert page["balances"][0] == {"currency": "usd", "available": "12.50", "held": "0.00"}
    assert page["transactions"][0]["reference"] == "INV-7"
    assert page["limits"][0] == {"of": "sessions", "open": 0, "limit": 1000}
    assert page["notes"][0]["text"] == "asked"
    words = run(["user", "show", "ada"]).stdout
    for part in ("balances:", "sessions: none", "INV-7", "asked", "user.note"):
        assert part in words
    acts = [each["action"] for each in answer(run, ["log", "--user", "ada"])["log"]]
    assert acts == ["user.view", "user.view", "user.note", "user.reveal", "money.deposit"]


def test_a_search_without_a_hit_fails(run: Run, ada: None) -> None:
    done = run(["who", "nobody"])
    assert (done.returncode, done.stdout, done.stderr) == (1, "nothing is found\n", "")
    done = run(["who", "203.0.113.9", "--json"])
    assert (done.returncode, done.stdout) == (1, '{"found": []}\n')
    [act] = answer(run, ["log", "--action", "search.address"])["log"]
    assert (act["text"], act["changes"]) == ("203.0.113.9", {"hits": [None, 0]})


@pytest.mark.parametrize("command", [["who", "ada"], ["staff", "list"], ["log"]])
def test_a_command_that_reads_makes_no_database(
    run: Run, database: Path, command: list[str]
) -> None:
    done = run(command)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(database) in done.stderr
    assert not database.exists()


def test_more_than_twenty_hits_are_said_and_not_counted(
    run: Run,
    ada: None,
    database: Path,
) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for number in range(30):
            name = f"many{number:02}"
            connection.execute(
                "INSERT INTO users (id, username, username_key, email, email_key, password_hash,"
                " created_at) VALUES (?, ?, ?, ?, ?, '', 1)",
                (name, name, name, f"{name}@x.example", f"{name}@x.example"),
            )
    done = run(["who", "many"])
    assert done.stdout.splitlines()[-1] == "  more than 20"
    assert len(done.stdout.splitlines()) == 23


def test_hostile_names_of_users_do_nothing_to_a_terminal(
    run: Run,
    ada: None,
    database: Path,
) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE users SET username = 'a' || char(27) || '[2J' || char(10) || 'b'"
        )
    for command in (["who", EMAIL], ["user", "show", EMAIL]):
        done = run(command)
        assert "\x1b" not in done.stdout
        assert r"a\x1b[2J\nb" in done.stdout
        assert "\x1b" not in run([*command, "--json"]).stdout


@cases(
    ("arguments", "words"),
    [
        (["who", ""], "A text to search for has 1 to 254"),
        (["who", "x" * 300], "A text to search for has 1 to 254"),
        (["who", "a\nb"], "1 to 254"),
        (["user", "show", ""], "1 to 254"),
        (["user", "note", EMAIL, ""], "1 to 2000"),
        (["user", "note", EMAIL, "x" * 2_001], "1 to 2000"),
        (["log", "--action", "user.delete"], "the actions are: approval.approve"),
        ([*CREATE, "--reason", ""], "1 to 500"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    run: Run,
    ada: None,
    database: Path,
    arguments: list[str],
    words: str,
) -> None:
    refused(run(arguments, f"{PASSWORD}\n".encode()), words, code=2)
    assert rows(database, "SELECT COUNT(*) FROM staff_log") == [(0,)]


def test_a_name_of_two_users_is_misuse(run: Run, ada: None, database: Path) -> None:
    done = run(
        ["user", "create", "bob@example.com", "--username", EMAIL, "--password-stdin"],
        f"{PASSWORD}\n".encode(),
    )
    assert done.returncode == 0
    refused(run(["user", "show", EMAIL]), "Several users have this name", code=2)
    assert rows(database, "SELECT COUNT(*) FROM staff_log") == [(0,)]


@cases("limit", ["0", "-1", "1001", "x", "", "99999999999999999999", "1e2"])
def test_a_limit_is_a_number_within_bounds(run: Run, limit: str) -> None:
    misused(run(["log", f"--limit={limit}"]), "1 to 1000")


def test_a_figure_of_a_trial_is_a_number(run: Run, ada: None) -> None:
    misused(run(["rule", "trial", "--scan-targets", "-1"]), "--scan-targets", "a number from 1")
    rule, *_ = answer(run, ["rule", "trial", "--scan-targets", "7"])["trial"]
    assert (rule["rule"], rule["more_than"]) == ("scan", 7)


@pytest.mark.parametrize("number", ["0", "-1", "x", "", "9" * 30])
def test_a_list_continues_before_the_number_of_an_act(run: Run, ada: None, number: str) -> None:
    for _ in range(3):
        assert run(["user", "note", "ada", "called"]).returncode == 0
    assert [each["number"] for each in answer(run, ["log", "--before", "3"])["log"]] == [2, 1]
    misused(run(["log", f"--before={number}"]), "is not the number of an act")


@pytest.mark.parametrize("command", [["user", "show"], ["who"], ["log", "--user"]])
def test_arguments_that_are_not_text_are_refused(run: Run, command: list[str]) -> None:
    misused(run([*command, b"\xff"]), "UTF-8")


def test_the_audit_finds_a_log_that_was_rewritten(
    run: Run,
    ada: None,
    database: Path,
) -> None:
    assert run(["user", "note", "ada", "called"]).returncode == 0
    done = run(["ledger", "audit"])
    assert done.returncode == 0
    assert "ok   every act of staff is in the log, in one unbroken chain" in done.stdout
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER staff_log_never_updated")
        connection.execute("UPDATE staff_log SET unix_user = 'eve'")
    done = run(["ledger", "audit"])
    assert done.returncode == 1
    assert "FAIL every act of staff is in the log, in one unbroken chain" in done.stdout
    assert "       row 1 was changed" in done.stdout


def test_a_user_is_suspended_and_resumed(run: Run, ada: None) -> None:
    suspend = ["user", "suspend", "ada", "--shown", "spam was sent", *BECAUSE]
    done = run([*suspend, "--parts", "keys,purchases", "--until", "24h"])
    assert done.returncode == 0, done
    assert "parts keys purchases" in done.stdout
    assert "cut: no daemon runs" in done.stdout
    shown = answer(run, ["user", "show", "ada"])["suspended"]
    assert [(each["part"], each["shown"]) for each in shown] == [
        ("keys", "spam was sent"),
        ("purchases", "spam was sent"),
    ]
    year = datetime.now(UTC).year + 2
    document = answer(run, [*suspend, "--until", f"{year}-01-31T12:00"])
    assert document["suspended"]["until"] == f"{year}-01-31T12:00:00+00:00"
    assert document["cut"].items() >= {"nodes": 0, "answered": 0, "connections": 0}.items()
    resumed = answer(run, ["user", "resume", "ada", *BECAUSE])["resumed"]
    assert resumed["parts"] == "devices keys logins purchases sessions"
    refused(run(["user", "resume", "ada", *BECAUSE]), "No such part")
    refused(run([*suspend, "--until", "soon"]), "'soon' is neither", code=2)
    refused(run([*suspend, "--until", "999999999d"]), "five digits at most", code=2)
    limit = ["user", "limit", "ada", "--level", "known", *BECAUSE]
    limits = answer(run, [*limit, "--until", f"{year}-01-31T12:00"])["limits"]
    assert (limits["level"], limits["until"]) == ("known", f"{year}-01-31T12:00:00+00:00")
    assert answer(run, [*limit, "--until", "24h"])["limits"]["until"]
    assert answer(run, [*limit, "--until", "none"])["limits"]["until"] is None
    refused(run([*limit, "--until", "soon"]), "'soon' is neither", code=2)
    answer(run, ["user", "limit", "ada", "--level", "new", *BECAUSE])
    assert answer(run, ["user", "show", "ada"])["limited"]["ports"] == "80, 443"
    refused(run([*suspend, "--until", "2001-01-01"]), "after now", code=2)
    refused(run([*suspend, "--until", "9999-12-31"]), "ten years", code=2)
    refused(run([*suspend[:4], " ", *BECAUSE]), "shown reason", code=2)
    misused(run([*suspend, "--parts", "all"]), "'all' is not one of")
    misused(run(["user", "suspend", "ada", *BECAUSE]), "--shown")


def test_a_closed_account_is_shown_as_closed_and_an_erasure_waits(run: Run, ada: None) -> None:
    assert "closure" not in answer(run, ["user", "show", "ada"])
    closed = answer(run, ["user", "close", "ada", *BECAUSE])["closed"]
    closure = answer(run, ["user", "show", "ada"])["closure"]
    assert (closure["state"], closure["erased"]) == ("closed", None)
    assert closure["erased_after"] == closed["erased_after"]
    waits = run(["user", "erase", "ada", *BECAUSE])
    assert (waits.returncode, waits.stdout.startswith("waits: approval ")) == (3, True)


def test_an_erasure_without_an_amount_waits_in_one_list_with_a_correction(
    run: Run, ada: None
) -> None:
    run(["user", "erase", "ada", *BECAUSE])
    big = ["money", "correct", "ada", "2000", "--currency", "usd", "--reference", "big"]
    assert run([*big, *BECAUSE]).returncode == 3
    listed = run(["approvals"])
    assert listed.returncode == 0
    assert "money.correct" in listed.stdout
    assert "user.erase" in listed.stdout


def test_a_session_is_halted_and_ended(run: Run, ada: None, database: Path) -> None:
    ((user,),) = rows(database, "SELECT id FROM users")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "INSERT INTO bandwidth_sessions (id, user_id, username, password_hash, quota_bytes,"
            " bytes_used, bytes_leased, price_per_gb, status, created_at, expires_at)"
            " VALUES ('s', ?, 'name', '', 10, 4, 0, 1, 'active', 1, 4000000000)",
            (user,),
        )
    halted = answer(run, ["session", "halt", "s", *BECAUSE])
    assert halted["halted"] == {"session": "s", "user": user}
    assert halted["cut"]["nodes"] == 0
    shown = answer(run, ["session", "show", "name"])["session"]
    assert (shown["status"], shown["state"], shown["used_bytes"]) == ("active", "halted", 4)
    assert "resumed: session s" in run(["session", "go", "s", *BECAUSE]).stdout
    refused(run(["session", "go", "s", *BECAUSE]), "not halted")
    refused(run(["session", "end", "none", *BECAUSE]), "no such session")
    refused(
        run(["key", "revoke", "none", *BECAUSE]), "No valid API key has this identifier or text"
    )
    refused(run(["exits", "bar", "none", *BECAUSE]), "no such exit")
    refused(run(["jobs", "cancel", "none", *BECAUSE]), "no such job")
    misused(run(["session", "halt", "s"]), "--reason")


def test_a_lifetime_of_zero_days_is_refused_in_its_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["staff", "key", "create", "a@example.com", "--name", "n", "--scope", "read"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--allow-ip", "127.0.0.1", "--days", "0", "--reason", "r"])
    assert ended.value.code == 2
    assert "'0' is not a number from 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("1e9", "'1e9' is not a number from 1 to 1000, in digits alone"),
        ("-1", "'-1' is not a number from 1 to 1000, in digits alone"),
        ("9" * 5_000, "it is at most 1000"),
        ("1001", "it is at most 1000"),
        ("000", "'000' is not a number from 1 to 1000"),
    ],
)
def test_a_number_is_refused_in_its_own_words(
    capsys: pytest.CaptureFixture[str], given: str, words: str
) -> None:
    with pytest.raises(SystemExit):
        main(["log", f"--limit={given}"])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("words", [["who", "ada"], ["user", "show", "ada"]])
def test_a_command_that_reads_a_user_loads_no_server(
    ada: None, environment: dict[str, str], tmp_path: Path, words: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "proxyd", *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    assert "ada" in done.stdout
    loaded = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "sqlite3" in loaded
    assert not loaded & {"aiohttp", "asyncpg", "PIL", "markdown_it"}


def test_a_rescue_prints_a_login_and_is_listed(run: Run, olga: Any, database: Path) -> None:
    made = answer(run, ["staff", "rescue", OPERATOR, *BECAUSE])
    assert made["rescued"]["email"] == OPERATOR
    assert made["token"].count(".") == 2
    assert made["token"] not in repr(rows(database, "SELECT * FROM staff_logins, staff_log"))
    [row] = answer(run, ["staff", "rescues"])["rescues"]
    assert (row["email"], row["acknowledged"]) == (OPERATOR, None)
    assert rows(database, "SELECT action FROM staff_log ORDER BY number DESC LIMIT 1") == [
        ("staff.rescue",)
    ]
    [(key,)] = rows(database, "SELECT item_key FROM outbox WHERE item_key LIKE 'rescue %'")
    assert key.endswith(OPERATOR)
    refused(run(["staff", "rescue", "nobody@example.com", *BECAUSE]), "staff")
    misused(run(["staff", "rescue", OPERATOR]), "--reason")


def test_an_export_without_room_is_one_line_and_leaves_no_file(
    run: Run, ada: None, tmp_path: Path
) -> None:
    file, full = tmp_path / "ada.zip", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with patch("proxyd.cli.staff.erasure.erasure.Exports.write", side_effect=full):
        done = run(["user", "export", "ada", str(file)])
    refused(done, f"{file}: No space left on device")
    assert not file.exists()
