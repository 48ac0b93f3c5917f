"""`make install`: a program of its own, from a clean checkout, with only the packages for serving.

No index is queried: the packages come from the place where the tests have them.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.base.once import made_once
from support.base.waiting import until_true
from support.daemons.process import READY, ROOT, environment

from proxyd.compiled import finder, manifest

# An environment is made before the first test, with a pip of its own.
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

# Compiling takes longer than all of this.
NO_COMPILER = {"CC": "/bin/false"}
PACKAGES = ("api", "client/proxyctl", "config", "market", "proxyd", "storage")


def check_out(target: Path) -> None:
    """Make a clean checkout, which lies somewhere else than the program will."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without an index: the tests' packages can be imported, but not our own."""
    others = tmp_path_factory.mktemp("others")
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "proxyd" not in path.name and "proxyctl" not in path.name:
            (others / path.name).symlink_to(path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROXYD_")}
    # The last three are there when `make test` runs this: the make within would be another's part.
    for name in ("PYTHONDONTWRITEBYTECODE", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        kept.pop(name, None)
    return {
        **kept,
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way of saying that it is switched off
        "PYTHONPATH": str(others),
    }


def install(checkout: Path, prefix: Path, variables: dict[str, str]) -> str:
    """Run `make install`. Return its output."""
    done = subprocess.run(
        ["make", "install", f"PREFIX={prefix}", f"PYTHON={sys.executable}"],
        cwd=checkout,
        env=variables,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is installed. All processes that run tests share it."""
    folder = made_once(tmp_path_factory, "opt", lambda folder: install_once(folder, variables))
    return folder / "proxyd"


def install_once(folder: Path, variables: dict[str, str]) -> None:
    """Install from a checkout, and remove the checkout.

    `make setup` has left an environment in the place of the program.
    """
    checkout, target = folder / "source" / "proxyd", folder / "proxyd"
    check_out(checkout)
    (target / ".venv").mkdir(parents=True)
    for name in (".complete", "tool"):
        (target / ".venv" / name).touch()
    before = sorted(checkout.rglob("*"))
    printed = install_as_here(checkout, target, variables)
    if finder.way() == "compiled":
        assert re.search(r"\ncompiled: \d+ modules .+, as the checkout has them\n", printed)
        shutil.rmtree(manifest.folder(str(checkout)))
    assert not (target / ".venv" / "tool").exists()
    assert sorted(checkout.rglob("*")) == before, "root leaves nothing there"
    shutil.rmtree(checkout)


def install_as_here(checkout: Path, target: Path, variables: dict[str, str]) -> str:
    """Run `make install` with the compiled modules of this checkout, if there are any."""
    if finder.way() == "compiled":
        compiled = manifest.folder(str(checkout))
        shutil.copytree(manifest.folder(str(ROOT)), compiled, dirs_exist_ok=True)
    else:
        variables = variables | NO_COMPILER
    printed = install(checkout, target, variables)
    assert f"\nproxyd 0.2.0.dev0 ({finder.way()}" in printed
    return printed


@pytest.mark.long
def test_a_new_version_takes_the_place_of_an_older_one(
    variables: dict[str, str], tmp_path: Path
) -> None:
    """The older version is interpreted; a second installation of the new one compiles nothing."""
    checkout, target = tmp_path / "source" / "proxyd", tmp_path / "proxyd"
    check_out(checkout)
    version = checkout / "proxyd" / "__init__.py"
    of_today = version.read_text()
    version.write_text(of_today.replace("0.2.0.dev0", "0.0.9"))
    printed = install(checkout, target, variables | NO_COMPILER)
    assert "\nproxyd runs interpreted: " in printed
    assert re.search(r"\nproxyd 0\.0\.9 \(interpreted: .+\)\n$", printed)
    version.write_text(of_today)
    install_as_here(checkout, target, variables)
    printed = install_as_here(checkout, target, variables)
    if finder.way() == "compiled":
        assert "\ncompiled: as before; nothing has changed\n" in printed


def site_packages(prefix: Path) -> Path:
    (found,) = (prefix / ".venv" / "lib").glob("python*/site-packages")
    return found


def test_it_asks_only_for_the_packages_of_serving(prefix: Path) -> None:
    (metadata,) = site_packages(prefix).glob("proxyd-*.dist-info/METADATA")
    asked = re.findall(r"^Requires-Dist: ([\w.-]+)$", metadata.read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert asked == project["dependencies"]
    found = {path.name.partition("-")[0] for path in site_packages(prefix).glob("*.dist-info")}
    assert found <= {"proxyd", "pip", "setuptools"}  # the last two came with the environment


def test_everything_of_it_is_installed_and_compiled(prefix: Path) -> None:
    for package in PACKAGES:
        for source in (ROOT / package).rglob("*"):
            installed = site_packages(prefix) / source.relative_to((ROOT / package).parent)
            if source.suffix in (".py", ".sql", ".toml", ".html", ".css", ".js", ".json", ".svg"):
                assert installed.read_bytes() == source.read_bytes()
            if source.suffix == ".py":
                compiled = installed.parent / "__pycache__"
                assert list(compiled.glob(f"{source.stem}.cpython-*.pyc")), source


@pytest.fixture
def serving(
    prefix: Path, variables: dict[str, str], tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    """The installed program, serving from a folder that has nothing to do with it."""
    log = tmp_path / "log"
    with log.open("w") as err:
        process = subprocess.Popen(
            [prefix / ".venv" / "bin" / "proxyd", "serve"],
            cwd=tmp_path,
            env=variables | environment(f"sqlite:///{tmp_path}/proxyd.db", **variables),
            stderr=err,
            text=True,
        )
    yield process
    process.kill()
    process.wait()


def test_it_serves_without_its_source(serving: subprocess.Popen[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    until_true(
        lambda: READY.search(log.read_text()) is not None or serving.poll() is not None, "ready"
    )
    assert READY.search(log.read_text()), log.read_text()
    serving.terminate()
    assert serving.wait(timeout=60) == 0


def test_the_program_for_devices_comes_with_it(prefix: Path, variables: dict[str, str]) -> None:
    program = prefix / ".venv" / "bin" / "proxyctl"
    done = subprocess.run(
        [program, "--version"], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout == "proxyctl 0.2.0.dev0\n"


def test_no_index_may_have_it(prefix: Path) -> None:
    (metadata,) = site_packages(prefix).glob("proxyd-*.dist-info/METADATA")
    assert "\nClassifier: Private :: Do Not Upload\n" in metadata.read_text()


def test_its_licence_is_installed_with_it(prefix: Path) -> None:
    (metadata,) = site_packages(prefix).glob("proxyd-*.dist-info/METADATA")
    assert "\nLicense-Expression: Apache-2.0\n" in metadata.read_text()
    installed = metadata.parent / "licenses" / "LICENSE"
    assert installed.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_unit_starts_the_installed_program_at_the_documented_place() -> None:
    default = re.search(r"^PREFIX \?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert default is not None
    unit = (ROOT / "systemd" / "proxyd.service").read_text()
    assert f"\nExecStart={default[1]}/.venv/bin/proxyd serve" in unit
    assert (
        "\nmake -C /opt/proxyd install " in (ROOT / "docs" / "how-to" / "operations.md").read_text()
    )
