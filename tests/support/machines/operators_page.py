"""The commands of a page for operators, run below a folder, with stand-ins for the system's own."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from support.daemons import forked_program, process
from support.daemons.process import ROOT

PROGRAM = Path("opt") / "proxyd" / ".venv" / "bin" / "proxyd"
STAND_INS = ("apt-get", "make", "systemctl", "systemd-sysusers", "chgrp", "chown", "ufw")


def with_service(root: Path, url: str) -> None:
    """Put an installed service with a database below a folder."""
    (root / PROGRAM).parent.mkdir(parents=True)
    for name in ("systemd", "config"):
        shutil.copytree(ROOT / name, root / "opt" / "proxyd" / name)
    (root / "etc" / "systemd" / "system").mkdir(parents=True)
    (root / "var" / "lib" / "proxyd").mkdir(parents=True)
    (root / "var" / "backups").mkdir(parents=True)
    process.funded(url, "20")


def carry_out(page: Path, folder: Path, url: str) -> None:
    """Run each `bash` block of a page, with the folders of the system below `folder/root`.

    The calls of stand-ins are written to `folder/asked`.
    """
    programs = folder / "bin"
    programs.mkdir()
    for name in STAND_INS:
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/asked"\n')
        (programs / name).chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PROXYD_")
    }
    environment |= {
        "PATH": f"{programs}:{environment['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PROXYD_STORAGE__URL": url,
        "PROXYD_PROXY__PUBLIC_HOST": "proxy.example.com",  # an input of the page
    }
    bash = shutil.which("bash")
    assert bash is not None
    with forked_program.program() as proxyd:
        (folder / "root" / PROGRAM).symlink_to(proxyd)
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
            script = moved(block, folder / "root").replace("ada@example.com", "buyer@example.com")
            done = subprocess.run(
                [bash, "-euo", "pipefail", "-c", script],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, (block, done.stdout, done.stderr)


def moved(text: str, folder: Path) -> str:
    """Return commands or settings with every folder of the system below a folder."""
    return re.sub(r"(?<![\w.])/(?=(?:opt/proxyd|etc|var/lib|var/backups)/?)", f"{folder}/", text)
