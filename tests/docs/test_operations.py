"""The page for operators: its commands run, in folders of the test's own."""

import re
from pathlib import Path

from support.daemons import process
from support.daemons.process import ROOT
from support.machines.operators_page import carry_out, with_service

PAGE = ROOT / "docs" / "how-to" / "operations.md"


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    root = tmp_path / "root"
    state = root / "var" / "lib" / "proxyd"
    database = state / "proxyd.db"
    with_service(root, f"sqlite:///{database}")
    carry_out(PAGE, tmp_path, f"sqlite:///{database}")
    asked = (tmp_path / "asked").read_text()
    sockets = "proxyd-api.socket proxyd.socket proxyd-passwordless.socket"
    assert f"systemctl enable --now {sockets} proxyd.service" in asked
    units = root / "etc" / "systemd" / "system"
    assert {path.name for path in units.iterdir()} == {
        path.name for path in (ROOT / "systemd").iterdir() if path.is_file()
    }
    assert len(list((root / "var" / "backups" / "proxyd").iterdir())) == 1
    process.assert_audit(f"sqlite:///{database}")


def test_the_settings_of_the_page_are_settings() -> None:
    known = (ROOT / "config" / "proxyd.example.toml").read_text()
    for key in re.findall(
        r"`(?:api|proxy|auth|storage|mail|limits|log|access_log)\.(\w+)", PAGE.read_text()
    ):
        assert re.search(rf"^{key} = ", known, re.MULTILINE), key
