"""A release: its notes and sums, its refusals, and two builds that are equal to the byte."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from support.daemons.process import ROOT

from release import release
from release.deb import BuildError

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.1.0] - 2026-01-01\n\n- old\n"


def test_the_notes_are_the_section_of_the_version() -> None:
    assert release.section(CHANGELOG, "0.1.0") == "# proxyd 0.1.0\n\n- old\n"
    assert release.section(CHANGELOG, "0.2.0") == "# proxyd 0.2.0\n\n- new\n"
    with pytest.raises(BuildError):
        release.section("# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n\n- old\n", "0.2.0")
    assert len(release.section((ROOT / "CHANGELOG.md").read_text(), "0.2.0")) > 1_000


def test_the_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"x" * 3_000_000)
    (tmp_path / "a~1.deb").write_bytes(b"")
    (tmp_path / "SHA256SUMS").write_text(release.sums(tmp_path))
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    assert hashlib.sha256(b"").hexdigest() in (tmp_path / "SHA256SUMS").read_text()


@pytest.mark.parametrize("version", ["", "v1", "1..2", "1.0 ", "../x", "1;rm", "1.0\n"])
def test_a_version_that_is_none_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(BuildError, match="is not a version"):
        release.build(tmp_path / "new", version)
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(3_600)
def test_two_releases_of_one_commit_are_equal(tmp_path: Path) -> None:
    if os.environ.get("PROXYD_RELEASE") is None:
        pytest.skip("`make releases` runs it, as root: it builds everything twice")
    built = []
    for number in range(2):
        # Another folder each time, whose name no file may have.
        checkout, target = tmp_path / f"checkout{number}", tmp_path / f"release{number}"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
        (checkout / "build/image").mkdir(parents=True)
        (checkout / "build/image/base").symlink_to(ROOT / "build/image/base")
        command = ["/usr/bin/python3", "-m", "release.release", "0.2.0", "--target", str(target)]
        subprocess.run(command, cwd=checkout, check=True, stdin=subprocess.DEVNULL)
        built.append((target / "SHA256SUMS").read_text())
    assert built[0] == built[1]
    assert len(built[0].splitlines()) == 5
