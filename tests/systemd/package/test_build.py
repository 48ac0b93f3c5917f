"""Two builds of the Debian package are equal to the byte."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from support.daemons.process import ROOT


@pytest.mark.timeout(3_600)  # a build compiles the data path
def test_two_builds_are_equal(package_root: Path, tmp_path: Path) -> None:
    assert package_root.exists()
    [built] = (ROOT / "dist").glob("proxyd_*.deb")
    command = ["/usr/bin/python3", "-m", "release.deb", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    [again] = tmp_path.glob("*.deb")
    hashes = {hashlib.sha256(each.read_bytes()).hexdigest() for each in (built, again)}
    assert len(hashes) == 1
