"""Output of a command does nothing to a terminal."""

import pytest

from proxyd.cli.output import complain


def test_an_error_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    complain("a\x1b]0;owned\x07 name\u202e of 雪\nnext line")
    assert capsys.readouterr().err == ("proxyd: a\\x1b]0;owned\\x07 name\\u202e of 雪\nnext line\n")
