"""proxyctl.worker.base.plugins: a plug-in that is found, and the words for one that is not."""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxyctl import __version__
from proxyctl.worker.base import plugins
from proxyctl.worker.base.plugins import PluginError
from proxyctl.worker.commands import commands

REMEDY = (
    f"; install proxyctl-clusters {__version__} beside proxyctl, or run proxyctl-clusters.pyz of"
    " that version in its place"
)
SOURCE = """
from proxyctl.worker.base.plugins import Plugin, Setting

def make(folder, sandbox):
    raise NotImplementedError

SETTING = Setting("colour", str, "of the cluster")
PLUGIN = Plugin({version!r}, make, make, True, False, (SETTING,))
OTHER = object()
"""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """A process looks for a plug-in once."""
    plugins.find.cache_clear()
    yield
    plugins.find.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a distribution, and no other one."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(
        value: str,
        *,
        name: str = "slurm",
        version: str = __version__,
        distribution: str = "proxyctl_clusters",
        installed: str = __version__,
    ) -> None:
        place = tmp_path / f"{distribution}-{installed}.dist-info"
        place.mkdir()
        fields = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {installed}\n"
        (place / "METADATA").write_text(fields)
        (place / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {value}\n")
        module = value.partition(":")[0]
        if module.startswith("coloured"):
            (tmp_path / f"{module}.py").write_text(SOURCE.format(version=version))

    return install


def test_a_plug_in_is_found_by_its_entry_point(install: Callable[..., None]) -> None:
    install("coloured_one:PLUGIN")
    found = plugins.find("slurm")
    assert (found.made_for, found.runs_images) == (__version__, True)
    assert plugins.settings() == {"colour": found.settings[0]}
    assert plugins.problem("slurm") == ""
    assert not plugins.needs_private_folder("slurm")


def test_a_built_in_executor_needs_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert [plugins.problem(each) for each in ("bwrap", "auto", None, [])] == [""] * 4
    assert plugins.needs_private_folder("podman")
    assert plugins.settings() == {}


@pytest.mark.parametrize("name", plugins.DISTRIBUTIONS)
def test_one_that_is_missing_is_named(name: str, install: Callable[..., None]) -> None:
    install("coloured_one:PLUGIN", name="another")
    with pytest.raises(PluginError) as caught:
        plugins.find(name)
    assert str(caught.value) == (
        f"the executor {name} is a part of proxyctl-clusters, which is not installed here{REMEDY}"
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nowhere_at_all:PLUGIN", "which cannot be loaded (No module named 'nowhere_at_all')"),
        ("coloured_two:NONE", "which cannot be loaded (module 'coloured_two' has no attribute"),
        ("coloured_two:OTHER", "whose entry point coloured_two:OTHER is no plug-in"),
    ],
)
def test_one_that_is_broken_is_no_plug_in(
    value: str, words: str, install: Callable[..., None]
) -> None:
    install(value)
    problem = plugins.problem("slurm")
    assert f"proxyctl-clusters, {words}" in problem
    assert problem.endswith(REMEDY)


def test_no_other_distribution_has_its_code_run(
    install: Callable[..., None], tmp_path: Path
) -> None:
    install("hostile:PLUGIN", distribution="hostile")
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    for text in (b"no section", b"[a]\nno equals sign\n", b"\xff"):
        broken = tmp_path / f"broken{len(text)}-1.dist-info"
        broken.mkdir()
        (broken / "entry_points.txt").write_bytes(text)
    assert "which is not installed here" in plugins.problem("slurm")
    assert plugins.settings() == {}
    assert not (tmp_path / "ran").exists()


def test_one_of_another_version_is_not_even_imported(
    install: Callable[..., None], tmp_path: Path
) -> None:
    install("coloured_older:PLUGIN", installed="0.1.0")
    (tmp_path / "coloured_older.py").write_text("raise TypeError('a field of today')")
    assert f"which is here for proxyctl 0.1.0, and this is {__version__};" in plugins.problem(
        "slurm"
    )


def test_one_that_raises_anything_is_named(install: Callable[..., None], tmp_path: Path) -> None:
    install("coloured_broken:PLUGIN")
    (tmp_path / "coloured_broken.py").write_text("raise TypeError('an odd mistake')")
    assert "which cannot be loaded (an odd mistake)" in plugins.problem("slurm")


def test_one_for_another_version_is_refused(install: Callable[..., None]) -> None:
    install("coloured_old:PLUGIN", version="0.1.0")
    assert f"which is here for proxyctl 0.1.0, and this is {__version__};" in plugins.problem(
        "slurm"
    )


def test_no_command_but_setup_loads_plug_ins(install: Callable[..., None]) -> None:
    install("coloured_lazy:PLUGIN")
    parser = argparse.ArgumentParser()
    commands.add_commands(parser.add_subparsers())
    for each in ("status", "jobs", "run", "check", "drain"):
        parser.parse_args(["worker", each])
    assert plugins.find.cache_info().misses == 0
    arguments = parser.parse_args(["worker", "setup", "--colour", "blue"])
    assert vars(arguments)["sandbox.colour"] == "blue"
