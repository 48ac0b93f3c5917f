"""The page about backups: its commands run, and its messages are those of the program."""

import re
from pathlib import Path

from support.daemons import process
from support.daemons.process import ROOT
from support.machines.operators_page import carry_out, with_service

PAGE = ROOT / "docs" / "how-to" / "backup.md"


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    root = tmp_path / "root"
    state = root / "var" / "lib" / "proxyd"
    url = f"sqlite:///{state}/proxyd.db"
    with_service(root, url)
    (root / "etc" / "proxyd").mkdir()
    config = root / "etc" / "proxyd" / "proxyd.toml"
    config.write_text("# mine\n")
    carry_out(PAGE, tmp_path, url)
    assert (root / "var" / "lib" / "proxyd.old" / "proxyd.db").exists()
    assert (state / "original.toml").read_text() == "# mine\n"
    assert f'url = "{url}"' in config.read_text()
    process.assert_audit(url)
    asked = (tmp_path / "asked").read_text()
    assert "systemctl enable --now proxyd-backup.timer" in asked
    assert (ROOT / "systemd" / "proxyd-backup.timer").exists()


def test_the_messages_of_the_page_are_those_of_the_program() -> None:
    sources = "".join(
        path.read_text()
        for folder in ("proxyd/backups", "proxyd/cli", "storage/backups")
        for path in (ROOT / folder).glob("*.py")
    )
    text = re.sub(r'"\s+f?"', "", sources)
    text = re.sub(r"\{(?:manifest\.)?NAME\}", "MANIFEST", text)
    _, _, table = PAGE.read_text().partition("| message | action |")
    messages = [
        part
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for message in re.findall(r"`([^`]+)`", row)
        for part in re.split(r"…| [NM]\b|DIR|No space left on device", message)
        if len(part.strip(", ")) > 3
    ]
    assert len(messages) > 10
    for part in messages:
        assert part.strip(", ") in text, part
