"""proxyctl as one file: complete, the same every time, and in need of nothing but Python.

The file for the owners of clusters is held to the same; it also has the plug-in of `clusters/`.
"""

import ast
import gc
import json
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
CLUSTERS = ROOT / "clusters"
PACKAGES = {"proxyctl": CLIENT, "proxyctl_clusters": CLUSTERS}
# The sources of each file, beside the program itself.
PLUGINS: dict[str, list[Path]] = {"proxyctl": [], "proxyctl-clusters": [CLUSTERS]}
SOURCES = sorted(
    source for package, folder in PACKAGES.items() for source in (folder / package).rglob("*.py")
)
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
           if name.partition(".")[0] in ("proxyctl", "proxyctl_clusters"))
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


def built(target: Path, plugins: Sequence[Path], sources: Path = CLIENT) -> Path:
    done = run([sys.executable, sources / "build.py", target, *plugins])
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both files, by their name."""
    folder = tmp_path_factory.mktemp("dist") / "new"
    return {name: built(folder / f"{name}.pyz", plugins) for name, plugins in PLUGINS.items()}


@pytest.fixture(params=PLUGINS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def archive(archives: dict[str, Path], name: str) -> Path:
    return archives[name]


def test_it_has_every_source_as_it_is_and_nothing_else(archive: Path, name: str) -> None:
    with zipfile.ZipFile(archive) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    contents.pop("__main__.py")
    for each in [each for each in contents if ".dist-info/" in each]:
        assert name == "proxyctl-clusters"
        contents.pop(each)
    packages = ["proxyctl"] if name == "proxyctl" else list(PACKAGES)
    assert contents == {
        each.relative_to(PACKAGES[package]).as_posix(): each.read_bytes()
        for package in packages
        for each in (PACKAGES[package] / package).rglob("*")
        if each.is_file() and each.suffix != ".pyc"
    }


def test_the_same_sources_give_the_same_bytes(archive: Path, name: str, tmp_path: Path) -> None:
    copied = shutil.copytree(CLIENT, tmp_path / "elsewhere")
    plugins = [shutil.copytree(each, tmp_path / "beside" / each.name) for each in PLUGINS[name]]
    for path in tmp_path.rglob("*"):
        os.utime(path, (10**9, 10**9))
        path.chmod(0o700)
    assert built(tmp_path / "again.pyz", plugins, copied).read_bytes() == archive.read_bytes()
    assert list(tmp_path.glob("*.unfinished")) == []


@pytest.mark.parametrize(
    ("made", "file"), [("client", "proxyctl.pyz"), ("clusters", "proxyctl-clusters.pyz")]
)
def test_make_prints_the_files_that_it_has_built(made: str, file: str, tmp_path: Path) -> None:
    for folder in (CLIENT, CLUSTERS):
        shutil.copytree(folder, tmp_path / folder.name)
    shutil.copy(ROOT / "Makefile", tmp_path)
    make = ["make", "--no-print-directory", made, f"PYTHON={sys.executable}"]
    done = run(make, tmp_path)
    assert done.returncode == 0, done.stderr
    target = tmp_path / "dist" / file
    assert done.stdout.startswith(f"dist/{file}: {target.stat().st_size} bytes, SHA-256 ")
    started = run([target, "--version"], tmp_path)
    assert (started.stdout, started.stderr) == (f"proxyctl {__version__}\n", "")


# The file for clusters has all modules of the other one, unchanged.
@pytest.mark.parametrize("name", brief(["proxyctl-clusters", "proxyctl"]))
def test_it_runs_here_without_any_package(archive: Path, tmp_path: Path) -> None:
    assert run([sys.executable, "-I", "-S", archive, "--version"]).stdout.startswith("proxyctl ")
    done = run([sys.executable, "-I", "-S", "-W", "error", "-c", IMPORTING, archive], tmp_path)
    assert done.stdout == "all imported\n", done.stderr


@pytest.mark.parametrize("name", brief(["proxyctl-clusters", "proxyctl"]))
@pytest.mark.parametrize("version", brief([OLDEST, (3, 14), (3, 10), (3, 12), (3, 13)]), ids=str)
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


@pytest.mark.parametrize("name", brief(["proxyctl-clusters", "proxyctl"]))
@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 8)], ids=str)
def test_a_python_that_is_too_old_is_refused(archive: Path, version: tuple[int, int]) -> None:
    found = pythons(version)
    if not found:
        pytest.skip(f"no Python {version[0]}.{version[1]} here")
    for python in found:
        done = run([python, archive, "--version"])
        assert done.returncode == 1
        assert done.stderr.startswith("proxyctl needs Python 3.9 or later; this is ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "found", brief([[sys.executable], pythons(OLDEST)]), ids=["here", "oldest"]
)
def test_only_the_file_for_clusters_lends_one(
    archives: dict[str, Path], tmp_path: Path, found: list[str]
) -> None:
    """The other file names the missing distribution, although it does not know its options."""
    words = ("worker", "setup", "--folder", tmp_path, "--executor", "slurm", "--kube-nodes", "a=b")
    for python in found:
        without = run([python, "-I", "-S", archives["proxyctl"], *words])
        assert without.returncode == 2
        assert without.stderr.endswith(
            "error: argument --executor: the executor slurm is a part of proxyctl-clusters, which"
            f" is not installed here; install proxyctl-clusters {__version__} beside proxyctl, or"
            " run proxyctl-clusters.pyz of that version in its place\n"
        )
        lent = run(
            [python, "-I", "-S", archives["proxyctl-clusters"], *words, "--api", "http://localhost"]
        )
        assert (lent.returncode, lent.stderr.split(":")[:2]) == (1, ["proxyctl", " Slurm"])
        record = {"api": "http://localhost", "token": "t", "agreed_at": "today"}
        sandbox = {"executor": "kubernetes", "kube_image": "python"}
        (tmp_path / "worker.json").write_text(json.dumps({**record, "sandbox": sandbox}))
        (tmp_path / "worker.json").chmod(0o600)
        ran = run([python, "-I", "-S", archives["proxyctl"], "worker", "run", "--folder", tmp_path])
        assert ran.returncode == 2
        assert "/worker.json: sandbox.executor: the executor kubernetes is a part of" in ran.stderr
        assert "kube_image" not in ran.stderr
        (tmp_path / "worker.json").unlink()


# Packages that sensors use where they are installed.
EXTRAS = {
    "client/proxyctl/worker/sensors/host.py": {"psutil"},
    "client/proxyctl/worker/sensors/nvidia.py": {"pynvml"},
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
def test_a_module_is_read_by_the_oldest_python_and_imports_only_its_library(source: Path) -> None:
    # A run of the collector in the middle of it can make Python 3.11 lose count of its own depth.
    gc.disable()
    try:
        tree = ast.parse(source.read_text(), feature_version=OLDEST)
    finally:
        gc.enable()
    place = source.relative_to(ROOT).as_posix()
    extras = EXTRAS.get(place, set())
    own = {"proxyctl", place.split("/")[1]}  # a plug-in imports both
    assert imported(tree) <= sys.stdlib_module_names | own | extras
    lines = source.read_text().splitlines()
    is_empty = not any(isinstance(each, ast.stmt) for each in tree.body[1:])
    assert is_empty or "from __future__ import annotations" in lines or source.stem == "__init__"


@pytest.mark.long
@pytest.mark.parametrize(("package", "folder"), PACKAGES.items(), ids=PACKAGES)
def test_its_wheel_has_one_package_and_needs_none(
    package: str, folder: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(folder, tmp_path / folder.name)
    offline = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = run([sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", tmp_path, copied])
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob(f"{package}-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        [metadata] = [opened.read(each).decode() for each in names if each.endswith("/METADATA")]
    assert {each.partition("/")[0].partition("-")[0] for each in names} == {package}
    assert "\nRequires-Python: >=3.9\n" in metadata
    assert "Requires-Dist" not in metadata
