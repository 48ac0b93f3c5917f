"""The names of proxyctl that the plug-in for clusters imports, and the ways to install both."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from support.daemons.process import ROOT

import proxyctl
import proxyctl_clusters
from proxyctl.worker.base import plugins

SOURCES = sorted((ROOT / "clusters").rglob("*.py"))


def imported_by(source: Path) -> set[tuple[str, str]]:
    """Return the names that a module takes of proxyctl, each with the file that has it."""
    tree = ast.parse(source.read_text())
    found, modules = set(), {}
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Import) or "proxyctl" not in ast.dump(node), source
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "proxyctl":
            folder = ROOT / "client" / str(node.module).replace(".", "/")
            for each in node.names:
                file = folder / f"{each.name}.py"
                if file.exists():
                    modules[each.asname or each.name] = file
                else:
                    found.add((f"{folder.relative_to(ROOT)}.py", each.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None:
                found.add((str(module.relative_to(ROOT)), node.attr))
    return found


def test_the_architecture_lists_all_that_the_plug_in_imports() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.partition("\n## The plug-in for clusters\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(client/[\w/]+\.py)` \| (.+) \|$", section, re.MULTILINE)
    listed = {(file, name) for file, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == set().union(*map(imported_by, SOURCES))


def test_both_are_of_one_version() -> None:
    assert proxyctl_clusters.__version__ == proxyctl.__version__


def test_each_executor_that_needs_a_plug_in_has_one_in_the_environment_of_the_tests() -> None:
    """`make setup` installs it."""
    found = {
        each.name: distribution.metadata["Name"]
        for distribution in metadata.distributions()
        for each in distribution.entry_points
        if each.group == plugins.GROUP
    }
    assert found == plugins.DISTRIBUTIONS
    assert {plugins.problem(each) for each in found} == {""}


@pytest.mark.long
def test_both_documented_ways_to_install_it_lead_to_its_options(tmp_path: Path) -> None:
    """Without an index: pip finds only the packages that build a distribution."""
    text = (ROOT / "docs" / "how-to" / "clusters.md").read_text()
    section = text.partition("\n## A whole cluster\n")[2].partition("\n## ")[0]
    commands = [each.strip() for each in section.splitlines() if each.startswith("    ")]
    assert "make clusters" in commands
    assert "cluster/bin/python -m pip install ./client ./clusters" in commands
    for name in ("client", "clusters"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "Makefile", tmp_path)
    packages, programs = tmp_path / "packages", tmp_path / "programs"
    packages.mkdir()
    programs.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).glob("setuptools*"):
        (packages / path.name).symlink_to(path)
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python3").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment = {
        **kept,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way of saying that it is switched off
        "PYTHONPATH": str(packages),
    }
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  --kube-runtime KUBE_RUNTIME\n") == 2
