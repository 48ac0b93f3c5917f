"""Output of a command does nothing to a terminal."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxyd.cli.output import complain


def test_an_answer_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "proxyd", "config", "check"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    words = "proxyd: the command is done, and its answer cannot be written: No space left on device"
    assert (done.returncode, done.stderr) == (1, f"{words}\n")


def test_an_error_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    complain("a\x1b]0;owned\x07 name\u202e of 雪\nnext line")
    assert capsys.readouterr().err == ("proxyd: a\\x1b]0;owned\\x07 name\\u202e of 雪\nnext line\n")
