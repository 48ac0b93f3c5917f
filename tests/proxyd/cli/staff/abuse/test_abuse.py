# ruff: noqa: F811 - fixtures of another file
"""Commands about complaints: their output, and a clear line for bad input."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from support.base.cases import cases

from tests.proxyd.cli.staff.test_commands import answer
from tests.proxyd.cli.test_commands import (  # noqa: F401 - fixtures
    ada,
    database,
    database_of_ada,
    environment,
    refused,
    run,
)

Run = Callable[..., subprocess.CompletedProcess[str]]
EXIT = ["--exit-ip", "203.0.113.9", "--at", "2026-01-31T12:00:00Z"]
TO = ["--to", "198.51.100.7:22"]


def test_a_ticket_is_opened_listed_answered_and_closed(run: Run, ada: None) -> None:
    opened = answer(run, ["ticket", "open", "a scan", "--category", "scan", *EXIT, *TO])["opened"]
    assert (opened["number"], opened["state"], opened["category"]) == (1, "new", "scan")
    shown = answer(run, ["ticket", "show", "1"])
    assert shown["facts"] == {
        "exit_address": "203.0.113.9",
        "at": "2026-01-31T12:00:00Z",
        "host": "198.51.100.7",
        "port": 22,
    }
    answer(run, ["ticket", "move", "1", "contacted", "--reason", "wrote"])
    answer(run, ["ticket", "answer", "1", "we have acted"])
    [listed] = answer(run, ["ticket", "list"])["tickets"]
    assert (listed["state"], listed["overdue"]) == ("answered", False)
    assert run(["ticket", "list"]).stdout.endswith("  no\n")
    close = ["ticket", "close", "1", "--outcome", "unfounded", "--reason", "no abuse"]
    assert answer(run, close)["closed"]["outcome"] == "unfounded"
    refused(run(close), "The ticket is closed already.")
    refused(run(["ticket", "show", "9"]), "no such ticket")
    assert run(["ticket", "list"]).stdout == "tickets: none\n"
    assert len(answer(run, ["ticket", "list", "--state", "closed"])["tickets"]) == 1


def test_a_look_up_without_records_says_why(run: Run, ada: None, database: Path) -> None:
    done = run(["who", *EXIT])
    assert (done.returncode, done.stderr) == (1, "")
    assert "access_log is off" in done.stdout


@cases(
    ("arguments", "words"),
    [
        (["who"], "Give a TEXT, or --exit-ip"),
        (["who", "ada", *EXIT], "Give a TEXT, or --exit-ip"),
        (["who", "--exit-ip", "203.0.113.9"], "--exit-ip needs --at"),
        (["who", "--exit-ip", "nowhere", *EXIT[2:]], "--exit-ip is an IP address"),
        (["who", *EXIT[:3], "yesterday"], "--at is a time with its zone"),
        (["who", *EXIT[:3], "2026-01-31T12:00:00"], "--at is a time with its zone"),
        (["who", *EXIT[:3], "9999-01-31T12:00:00Z"], "in the future"),
        (["who", *EXIT[:3], "1900-01-31T12:00:00Z"], "The time of --at is before 1970"),
        (["who", *EXIT, "--to", "a b"], "--to is HOST"),
        (["who", *EXIT, "--to", "198.51.100.7:0"], "--to is HOST"),
        (["who", *EXIT, "--to", "198.51.100.7:99999"], "--to is HOST"),
        (["who", *EXIT, "--to", "[2001:db8::1"], "access_log is off"),
        (["who", *EXIT, "--source-port", "0"], "is not a port"),
        (["who", *EXIT, "--within", "3601"], "is not a number of seconds"),
        (["ticket", "open", " "], "The complaint has 1 to"),
        (["ticket", "open", "\x1b[2J"], "cannot be shown"),
        (["ticket", "show", "A-17"], "A-17"),
        (["ticket", "move", "1", "closed", "--reason", "r"], "invalid choice"),
    ],
)
def test_bad_input_gets_a_clear_line(
    run: Run, ada: None, arguments: Sequence[str], words: str
) -> None:
    done = run(arguments)
    assert words in (done.stderr or done.stdout)
    assert done.returncode == (1 if "off" in words else 2)
    assert "Traceback" not in done.stderr
