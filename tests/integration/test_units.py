"""The units that ship: systemd reads them, and finds the service shut in."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).parent.parent.parent / "systemd"
EXPOSURE_MAX = 1.5

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    for name in ("proxyd.service", "proxyd.socket"):
        text = (UNITS / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/proxyd/.venv/bin/proxyd", sys.executable))
    answer = analyze("verify", *(str(tmp_path / name) for name in ("proxyd.service",)))
    ours = [line for line in answer.stderr.splitlines() if "proxyd" in line]
    assert ours == []


def test_the_service_is_shut_in() -> None:
    answer = analyze("security", "--offline=true", str(UNITS / "proxyd.service"))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", answer.stdout)
    assert found is not None, answer.stdout + answer.stderr
    assert float(found[1]) <= EXPOSURE_MAX
