"""Log lines: one event a line, as text and as JSON."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from support.base.cases import cases

from proxyd.ops.base.logs import JsonFormatter, TextFormatter, set_up

MOMENT = 1_769_860_800.0  # 2026-01-31T12:00:00Z


def record(message: str, *arguments: object, created: float = MOMENT) -> logging.LogRecord:
    """Return a record of a fixed moment."""
    made = logging.LogRecord("gateway", logging.INFO, __file__, 1, message, arguments, None)
    made.created = created
    return made


def failed() -> logging.LogRecord:
    """Return a record with a traceback."""
    made = record("it failed")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


@contextmanager
def logging_to_stderr(level: str, style: Literal["text", "json"]) -> Iterator[None]:
    """Set logging up as the daemon does, and restore the earlier handlers."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    levels = {name: logging.getLogger(name).level for name in ("root", "asyncio", "aiosqlite")}
    try:
        set_up(level, style)
        yield
    finally:
        root.handlers = handlers
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)


def test_a_text_line_has_time_level_logger_and_message() -> None:
    line = TextFormatter().format(record("took %d bytes from %s", 12, "somebody"))
    assert line == "2026-01-31T12:00:00.000Z INFO gateway: took 12 bytes from somebody"


def test_a_json_line_has_the_same_as_an_object() -> None:
    line = JsonFormatter().format(record("took %d bytes from %s", 12, "somebody"))
    assert json.loads(line) == {
        "time": "2026-01-31T12:00:00.000Z",
        "level": "info",
        "logger": "gateway",
        "message": "took 12 bytes from somebody",
    }


@cases(
    ("seconds", "shown"),
    [
        (0.0, "12:00:00.000Z"),
        (0.0625, "12:00:00.062Z"),
        (0.999_9, "12:00:00.999Z"),
        (59.5, "12:00:59.500Z"),
    ],
)
def test_the_time_has_milliseconds_cut_off(seconds: float, shown: str) -> None:
    line = TextFormatter().format(record("tick", created=MOMENT + seconds))
    assert line.split()[0] == f"2026-01-31T{shown}"


@cases(
    ("raw", "shown"),
    [
        ("one\ntwo", r"one\ntwo"),
        ("one\r\ntwo", r"one\r\ntwo"),
        ("one\rtwo\n", r"one\rtwo\n"),
        ("\n2026-01-31T12:00:00.000Z INFO forged: line", None),
    ],
)
def test_a_message_stays_on_its_line(raw: str, shown: str | None) -> None:
    for message in (record(raw), record("%s", raw)):
        text = TextFormatter().format(message)
        assert text.splitlines() == [text]
        line = JsonFormatter().format(message)
        assert line.splitlines() == [line]
        if shown is not None:
            assert text.endswith(f"gateway: {shown}")
            assert json.loads(line)["message"] == shown


def test_a_message_of_many_scripts_is_written_as_it_is() -> None:
    assert TextFormatter().format(record("größe 大小")).endswith("größe 大小")
    assert "größe 大小" in JsonFormatter().format(record("größe 大小"))


def test_quotes_in_a_message_do_not_break_the_object() -> None:
    message = 'she said "no" \\ and left'
    assert json.loads(JsonFormatter().format(record(message)))["message"] == message


def test_a_traceback_follows_the_text_line() -> None:
    lines = TextFormatter().format(failed()).splitlines()
    assert lines[0] == "2026-01-31T12:00:00.000Z INFO gateway: it failed"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-2:] == ["ValueError: first", "second"]


def test_a_traceback_is_a_part_of_the_object_and_of_its_line() -> None:
    line = JsonFormatter().format(failed())
    assert line.splitlines() == [line]
    fields = json.loads(line)
    assert fields["message"] == "it failed"
    assert fields["traceback"].startswith("Traceback (most recent call last):")
    assert fields["traceback"].endswith("ValueError: first\nsecond")


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_lines_from_the_level_up_are_written(
    level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    every = ["debug", "info", "warning", "error", "critical"]
    with logging_to_stderr(level, "text"):
        for each in every:
            logging.getLogger("somewhere").log(getattr(logging, each.upper()), "said at %s", each)
    written = capsys.readouterr()
    levels = [line.split()[1].lower() for line in written.err.splitlines()]
    assert levels == every[every.index(level) :]
    assert written.out == ""


def test_json_is_written_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr("info", "json"):
        logging.getLogger("somewhere").info("hello")
    fields = json.loads(capsys.readouterr().err)
    assert (fields["logger"], fields["message"]) == ("somewhere", "hello")


def test_the_journal_gets_the_priority_of_each_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    every = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
    with logging_to_stderr("debug", "text"):
        for level in every:
            logging.getLogger("somewhere").log(getattr(logging, level.upper()), "said")
        logging.getLogger("somewhere").handle(failed())
    lines = capfd.readouterr().err.splitlines()
    assert [line[:3] for line in lines[:5]] == [f"<{number}>" for number in every.values()]
    assert lines[4].endswith("CRITICAL somewhere: said")
    assert len(lines) > 7
    assert all(line.startswith("<6>") for line in lines[5:])


def test_logs_elsewhere_than_in_the_journal_have_no_priority(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when systemd starts a shell that sends the daemon's lines to a file."""
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    with logging_to_stderr("info", "json"):
        logging.getLogger("somewhere").info("hello")
    assert json.loads(capfd.readouterr().err)["message"] == "hello"


def test_setting_up_again_writes_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr("info", "json"):
        set_up("info", "text")
        logging.getLogger("somewhere").info("hello")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO somewhere: hello")


@pytest.mark.parametrize("name", ["asyncio", "aiosqlite"])
def test_noisy_loggers_are_quiet_below_warnings(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to_stderr("debug", "text"):
        logging.getLogger(name).info("noise")
        logging.getLogger(name).warning("trouble")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"WARNING {name}: trouble")


def test_noisy_loggers_are_no_louder_than_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr("error", "text"):
        logging.getLogger("asyncio").warning("noise")
    assert capsys.readouterr().err == ""


def test_characters_that_a_terminal_would_obey_are_written_out() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\x1b[2Jb\u2028c\x85d é", (), None)
    line = TextFormatter().format(record)
    assert line.endswith("x: a\\x1b[2Jb\\u2028c\\x85d é")


@cases(
    ("process", "text", "field"),
    [(None, "INFO gateway: hello", None), (2, "INFO [2] gateway: hello", 2)],
)
def test_a_line_names_its_process_where_there_are_several(
    process: int | None, text: str, field: int | None
) -> None:
    assert TextFormatter(process).format(record("hello")) == f"2026-01-31T12:00:00.000Z {text}"
    assert json.loads(JsonFormatter(process).format(record("hello"))).get("process") == field
