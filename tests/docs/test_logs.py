"""The page of log lines: each of its lines is in the source."""

import re

from support.daemons.process import ROOT

PAGE = ROOT / "docs" / "reference" / "logs.md"
ROOMS = ("proxyd", "api", "market", "storage", "config")
# Of the system and of SQLite.
FOREIGN = ("Permission denied", "Connection refused", "database disk image is malformed")
WORDS = 3
VALUE = "…"


def source() -> str:
    """Return the source of the daemon, with long texts joined, and values as on the page."""
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    text = "".join(path.read_text("utf-8") for path in files)
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    return re.sub(r"%[-.\d]*[sdf]|\{[^{}]*\}", VALUE, text)


def phrases(line: str) -> set[str]:
    """Return the groups of neighbouring words of a line, without values where possible."""
    words = re.sub(r"\b(?:N|M|P|ID|CAUSE)\b|(?<![\w.])\d[\d.:]*", VALUE, line).split()
    few = {" ".join(words[i : i + WORDS]).strip(":;,") for i in range(len(words) - WORDS + 1)}
    return {each for each in few if VALUE not in each} or few


def test_each_line_of_the_page_is_in_the_source() -> None:
    text = source()
    rows = re.findall(r"^\| (`.+?`) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    lines = [line for row in rows for line in re.findall(r"`([^`]+)`", row)]
    assert len(lines) > 60
    own = [line for line in lines if not any(each in line for each in FOREIGN)]
    missing = [line for line in own if not any(each in text for each in phrases(line))]
    assert not missing, "\n".join(missing)
