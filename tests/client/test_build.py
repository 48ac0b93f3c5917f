"""proxyctl as one file: complete, the same every time, and in need of nothing but Python."""

import ast
import gc
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.daemons.process import ROOT

from proxyctl import __version__

CLIENT = ROOT / "client"
SOURCES = sorted((CLIENT / "proxyctl").rglob("*.py"))
OLDEST = (3, 9)

# Imports every module of an archive; without a site, so that nothing else is there.
IMPORTING = """
import importlib, sys, zipfile
archive = sys.argv[1]
sys.path.insert(0, archive)
files = [each for each in zipfile.ZipFile(archive).namelist() if each.endswith(".py")]
for name in (each[:-3].replace("/", ".") for each in files):
    if name != "__main__":
        importlib.import_module(name.replace(".__init__", ""))
assert "proxyctl.protocol.frames" in sys.modules
assert all(archive in (module.__file__ or archive) for name, module in sys.modules.items()
           if name.partition(".")[0] == "proxyctl")
print("all imported")
"""


def pythons(version: tuple[int, int]) -> list[str]:
    """Return the interpreters of a version that this machine has, where they usually are."""
    name = "python{}.{}".format(*version)
    usual = [Path.home() / ".pyenv" / "versions", Path("/opt"), Path("/usr/local")]
    found = [shutil.which(name), *(each for root in usual for each in root.glob(f"*/bin/{name}"))]
    return [str(each) for each in found if each is not None and runs([str(each), "-c", ""])]


def runs(command: Sequence[str]) -> bool:
    return run(command).returncode == 0


def run(command: Sequence[str | Path], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def built(target: Path, sources: Path = CLIENT) -> Path:
    done = run([sys.executable, sources / "build.py", target])
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("dist") / "new" / "proxyctl.pyz")


def test_it_has_every_source_as_it_is_and_nothing_else(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    contents.pop("__main__.py")
    files = [each for each in (CLIENT / "proxyctl").rglob("*") if each.is_file()]
    assert contents == {
        each.relative_to(CLIENT).as_posix(): each.read_bytes()
        for each in files
        if each.suffix != ".pyc"
    }


def test_the_same_sources_give_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(CLIENT, tmp_path / "elsewhere")
    for path in copied.rglob("*"):
        os.utime(path, (10**9, 10**9))
        path.chmod(0o700)
    assert built(tmp_path / "again.pyz", copied).read_bytes() == archive.read_bytes()
    assert list(tmp_path.glob("*.unfinished")) == []


def test_make_client_says_what_it_is(tmp_path: Path) -> None:
    shutil.copytree(CLIENT, tmp_path / "client")
    shutil.copy(ROOT / "Makefile", tmp_path)
    make = ["make", "--no-print-directory", "client", f"PYTHON={sys.executable}"]
    done = run(make, tmp_path)
    assert done.returncode == 0, done.stderr
    target = tmp_path / "dist" / "proxyctl.pyz"
    assert done.stdout.startswith(f"dist/proxyctl.pyz: {target.stat().st_size} bytes, SHA-256 ")
    started = run([target, "--version"], tmp_path)
    assert (started.stdout, started.stderr) == (f"proxyctl {__version__}\n", "")


def test_it_runs_here_without_any_package(archive: Path, tmp_path: Path) -> None:
    assert run([sys.executable, "-I", "-S", archive, "--version"]).stdout.startswith("proxyctl ")
    done = run([sys.executable, "-I", "-S", "-W", "error", "-c", IMPORTING, archive], tmp_path)
    assert done.stdout == "all imported\n", done.stderr


@pytest.mark.parametrize("version", brief([OLDEST, (3, 14), (3, 10), (3, 12), (3, 13)], 2), ids=str)
def test_it_runs_on_every_python_from_the_oldest_on(
    archive: Path, tmp_path: Path, version: tuple[int, int]
) -> None:
    found = pythons(version)
    if not found:
        pytest.skip(f"no Python {version[0]}.{version[1]} here")
    for python in found:
        assert run([python, "-I", "-S", archive, "--version"]).stdout == f"proxyctl {__version__}\n"
        done = run([python, "-I", "-S", "-W", "error", "-c", IMPORTING, archive], tmp_path)
        assert done.stdout == "all imported\n", done.stderr


@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 8)], ids=str)
def test_a_python_that_is_too_old_is_told_so(archive: Path, version: tuple[int, int]) -> None:
    found = pythons(version)
    if not found:
        pytest.skip(f"no Python {version[0]}.{version[1]} here")
    for python in found:
        done = run([python, archive, "--version"])
        assert done.returncode == 1
        assert done.stderr.startswith("proxyctl needs Python 3.9 or later; this is ")
        assert len(done.stderr.splitlines()) == 1


# What sensors read by where it is, and go without where it is not.
EXTRAS = {
    "proxyctl/worker/sensors/host.py": {"psutil"},
    "proxyctl/worker/sensors/nvidia.py": {"pynvml"},
}


def imported(tree: ast.AST) -> set[str]:
    """Return the packages that a module imports anywhere, also within functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add((node.module or "").partition(".")[0])
    return names


@cases("source", SOURCES)
def test_a_module_is_read_by_the_oldest_python_and_imports_its_library_alone(source: Path) -> None:
    # What the collector runs in the middle of it can make Python 3.11 lose count of its own depth.
    gc.disable()
    try:
        tree = ast.parse(source.read_text(), feature_version=OLDEST)
    finally:
        gc.enable()
    extras = EXTRAS.get(source.relative_to(CLIENT).as_posix(), set())
    assert imported(tree) <= sys.stdlib_module_names | {"proxyctl"} | extras
    lines = source.read_text().splitlines()
    is_empty = not any(isinstance(each, ast.stmt) for each in tree.body[1:])
    assert is_empty or "from __future__ import annotations" in lines or source.stem == "__init__"


def test_its_wheel_has_one_package_and_needs_none(tmp_path: Path) -> None:
    copied = shutil.copytree(CLIENT, tmp_path / "client")
    offline = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = run([sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", tmp_path, copied])
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("proxyctl-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        [metadata] = [opened.read(each).decode() for each in names if each.endswith("/METADATA")]
    assert {each.partition("/")[0].partition("-")[0] for each in names} == {"proxyctl"}
    assert "\nRequires-Python: >=3.9\n" in metadata
    assert "Requires-Dist" not in metadata
