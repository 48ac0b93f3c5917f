"""The unit files: systemd accepts them, and the service is shut in."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.daemons.process import ROOT

from proxyd.ops.processes.activation import SEVERAL, SINGLE

UNITS = ROOT / "systemd"
EXPOSURE_MAX = 1.5
ANALYZE = shutil.which("systemd-analyze")

with_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run(
        [ANALYZE, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def installed(folder: Path) -> list[str]:
    """Copy the units, with programs that exist here in the place of the installed one."""
    program = folder / "proxyd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    paths = []
    for unit in (each for each in UNITS.iterdir() if each.is_file()):
        text = unit.read_text().replace("/opt/proxyd/.venv/bin/proxyd", str(program))
        text = text.replace("file:///opt/proxyd/", f"file://{ROOT}/")
        (folder / unit.name).write_text(text)
        paths.append(str(folder / unit.name))
    return paths


@with_systemd
def test_systemd_has_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", *installed(tmp_path))
    about_ours = [line for line in done.stderr.splitlines() if "proxyd" in line]
    assert about_ours == []
    assert done.returncode == 0, done.stderr


@with_systemd
@pytest.mark.parametrize("unit", ["proxyd.service", "proxyd-backup.service"])
def test_the_service_is_hardly_exposed(unit: str) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(UNITS / unit))
    found = re.search(rf"exposure level for {unit}: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_MAX


def test_the_sockets_have_the_names_that_the_daemon_knows() -> None:
    names = {
        name
        for unit in UNITS.glob("*.socket")
        for name in re.findall(r"^FileDescriptorName=(\w+)$", unit.read_text(), re.MULTILINE)
    }
    assert names == {*SINGLE, SEVERAL}
