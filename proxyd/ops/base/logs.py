"""Log lines on standard error: one event a line, as text for people or JSON for programs."""

import json
import logging
import os
import sys
import syslog
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Literal, TextIO

from api.http import request_id
from config.settings import reloadable

# The least level of each priority of syslog(3).
PRIORITIES = (
    (logging.CRITICAL, syslog.LOG_CRIT),
    (logging.ERROR, syslog.LOG_ERR),
    (logging.WARNING, syslog.LOG_WARNING),
    (logging.INFO, syslog.LOG_INFO),
)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO gateway: the message`, or `… INFO [2] gateway: …`.

    Args:
        process: the number of the process that writes the lines, if there are several; None where
            there is one.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._source = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by a traceback if there is one."""
        source = f"{self._source}{record.name}"
        line = f"{_time(record)} {record.levelname} {source}: {_one_line(record)}"
        if request := request_id.current.get():
            line += f" [request {request}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """Formatter of JSON lines: time, level, logger, message, and a traceback if there is one.

    Args:
        process: the number of the process that writes the lines, for the field `process`; None
            where there is one.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        fields: dict[str, str | int] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _one_line(record),
        }
        if self._process is not None:
            fields["process"] = self._process
        if request := request_id.current.get():
            fields["request"] = request
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class JournalFormatter(logging.Formatter):
    """Puts a priority before each line, for the journal: systemd.exec(5), SyslogLevelPrefix=."""

    def __init__(self, other: logging.Formatter) -> None:
        super().__init__()
        self._other = other

    def format(self, record: logging.LogRecord) -> str:
        """Return the other formatter's lines with their priority, a traceback's lines too."""
        prefix = f"<{_priority(record.levelno)}>"
        return "\n".join(prefix + line for line in self._other.format(record).split("\n"))


def set_up(level: str, style: Literal["text", "json"], process: int | None = None) -> None:
    """Send every log line of `level` and above to standard error.

    Args:
        level: the least one that is written.
        style: the form of the lines.
        process: the number of this process, if there are several; None where there is one.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter = TextFormatter(process) if style == "text" else JsonFormatter(process)
    handler.setFormatter(JournalFormatter(formatter) if _is_journal(sys.stderr) else formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("asyncio", "aiosqlite"):  # aiosqlite logs each call at debug
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def log_reload(changed: Collection[str], *, has_certificate: bool) -> None:
    """Log the changes of a reload, and the settings that wait for a restart.

    Args:
        changed: the settings that were changed, each as `section.key`.
        has_certificate: whether a certificate was also read again.
    """
    logger, live = logging.getLogger("reload"), reloadable().intersection(changed)
    names = [*sorted(live), *(["the certificate"] if has_certificate else [])]
    logger.info("reloaded: %s", ", ".join(names) or "nothing has changed")
    if waiting := sorted(set(changed) - live):
        logger.warning("these change with a restart only: %s", ", ".join(waiting))


def _is_journal(stream: TextIO) -> bool:
    """Return whether a stream goes to the journal: systemd sets its device and inode."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # it is closed, or has no descriptor
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _priority(level: int) -> int:
    """Return the priority of syslog(3) for a level."""
    for least, priority in PRIORITIES:
        if level >= least:
            return priority
    return syslog.LOG_DEBUG


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def escaped(character: str) -> str:
    r"""Return a character that does not print as a terminal shows it, such as `\n` or `\x1b`."""
    return character.encode("unicode_escape").decode()


def _one_line(record: logging.LogRecord) -> str:
    """Return the message, control characters escaped: a client cannot forge a line of the log."""
    message = record.getMessage()
    if message.isprintable():
        return message
    return "".join(each if each.isprintable() else escaped(each) for each in message)
