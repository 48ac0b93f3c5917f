"""The page for operators: its commands run, in folders of the test's own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from support.daemons import process
from support.daemons.process import ROOT

STAND_INS = ("apt-get", "make", "systemctl", "systemd-sysusers", "chgrp", "ufw")
PAGE = ROOT / "docs" / "how-to" / "operations.md"


def blocks() -> list[str]:
    return re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)


def moved(text: str, folder: Path) -> str:
    """Return commands or settings with every folder of the system below a folder."""
    return re.sub(r"(?<![\w.])/(?=(?:opt/proxyd|etc|var/lib)/?)", f"{folder}/", text)


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    root, programs = tmp_path / "root", tmp_path / "bin"
    programs.mkdir()
    for name in STAND_INS:
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{tmp_path}/asked"\n')
        (programs / name).chmod(0o755)
    proxyd = root / "opt" / "proxyd" / ".venv" / "bin" / "proxyd"
    proxyd.parent.mkdir(parents=True)
    proxyd.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m proxyd "$@"\n')
    proxyd.chmod(0o755)
    for name in ("systemd", "config"):
        shutil.copytree(ROOT / name, root / "opt" / "proxyd" / name)
    (root / "etc" / "systemd" / "system").mkdir(parents=True)
    state = root / "var" / "lib" / "proxyd"
    state.mkdir(parents=True)
    database = state / "proxyd.db"
    process.funded(f"sqlite:///{database}")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PROXYD_")
    }
    environment |= {
        "PATH": f"{programs}:{environment['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PROXYD_STORAGE__URL": f"sqlite:///{database}",
        "PROXYD_PROXY__PUBLIC_HOST": "proxy.example.com",  # an input of the page
    }
    bash = shutil.which("bash")
    assert bash is not None
    for block in blocks():
        script = moved(block, root).replace("ada@example.com", "buyer@example.com")
        done = subprocess.run(
            [bash, "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (block, done.stdout, done.stderr)
    asked = (tmp_path / "asked").read_text()
    sockets = "proxyd-api.socket proxyd.socket proxyd-passwordless.socket"
    assert f"systemctl enable --now {sockets} proxyd.service" in asked
    units = root / "etc" / "systemd" / "system"
    assert {path.name for path in units.iterdir()} == {
        path.name for path in (ROOT / "systemd").iterdir() if path.is_file()
    }
    assert (state / "before-upgrade.db").exists()
    process.assert_audit(f"sqlite:///{database}")


def test_the_settings_of_the_page_are_settings() -> None:
    known = (ROOT / "config" / "proxyd.example.toml").read_text()
    for key in re.findall(
        r"`(?:api|proxy|auth|storage|mail|limits|log|access_log)\.(\w+)", PAGE.read_text()
    ):
        assert re.search(rf"^{key} = ", known, re.MULTILINE), key
