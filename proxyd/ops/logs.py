"""Log lines on standard error: one event a line, as text for people or JSON for programs."""

import json
import logging
import os
import sys
import syslog
from datetime import UTC, datetime
from typing import Literal, TextIO

from api import request_id

PRIORITIES = (
    (logging.CRITICAL, syslog.LOG_CRIT),
    (logging.ERROR, syslog.LOG_ERR),
    (logging.WARNING, syslog.LOG_WARNING),
    (logging.INFO, syslog.LOG_INFO),
)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO gateway: what happened`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by a traceback if there is one."""
        line = f"{_time(record)} {record.levelname} {record.name}: {_one_line(record)}"
        if request := request_id.current.get():
            line += f" [request {request}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _one_line(record),
        }
        if request := request_id.current.get():
            fields["request"] = request
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class JournalFormatter(logging.Formatter):
    """What another one says, each line behind its priority: systemd.exec(5), SyslogLevelPrefix=.

    Args:
        other: that one.
    """

    def __init__(self, other: logging.Formatter) -> None:
        super().__init__()
        self._other = other

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or several if there is a traceback."""
        prefix = f"<{_priority(record.levelno)}>"
        return "\n".join(prefix + line for line in self._other.format(record).split("\n"))


def set_up(level: str, style: Literal["text", "json"]) -> None:
    """Send every log line from `level` up to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = TextFormatter() if style == "text" else JsonFormatter()
    handler.setFormatter(JournalFormatter(formatter) if _is_journal(sys.stderr) else formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("asyncio", "aiosqlite"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def _is_journal(stream: TextIO) -> bool:
    """Say whether a stream goes to systemd's journal, which tells where its own ends."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # it is closed, or none of the system's
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _priority(level: int) -> int:
    """Return what syslog(3) calls a level."""
    for least, priority in PRIORITIES:
        if level >= least:
            return priority
    return syslog.LOG_DEBUG


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _one_line(record: logging.LogRecord) -> str:
    message = record.getMessage()
    if message.isprintable():
        return message
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in message
    )
