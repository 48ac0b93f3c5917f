"""Log lines on standard error: one event a line, as text for people or JSON for programs."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from api import request_id


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


def set_up(level: str, style: Literal["text", "json"]) -> None:
    """Send every log line from `level` up to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if style == "text" else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("asyncio", "aiosqlite"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


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
