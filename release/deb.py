"""Build the Debian package of proxyd: python3 -m release.deb TARGET [--version VERSION].

The package has a Python environment of its own in /usr/lib/proxyd, made by the Python of this
machine, which must be Debian's. The libraries have the versions of `constraints.txt`. Two builds of
one commit are equal to the byte: all times are those of the commit.
"""

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = "/usr/bin/python3"
HOME = "usr/lib/proxyd"
UNITS = "usr/lib/systemd/system"
DOCUMENTS = "usr/share/doc/proxyd"
# Of the installation by `make install`, in the units.
INSTALLED = "/opt/proxyd/.venv/bin/proxyd"
DOCUMENTED = "file:///opt/proxyd/docs/"
# Lines of the example of the settings, and the ones of the package.
SETTINGS = {
    r'^url = "sqlite:///var/proxyd.db" ': 'url = "sqlite:////var/lib/proxyd/proxyd.db" ',
    r'^host = "127.0.0.1"        (?=# the address the proxy)': 'host = "0.0.0.0"          ',
    r"^passwordless_ports = \[0\]": "passwordless_ports = [] ",
}


class BuildError(Exception):
    """The package cannot be built; the message has the reason."""


def build(target: Path, version: str | None = None) -> Path:
    """Build the package, and return its path.

    Args:
        target: the folder of the package.
        version: the version of the package; by default the one of the program.

    Raises:
        BuildError: this machine's Python is not Debian's, or a program is missing.
        CalledProcessError: a step failed; its output has the reason.
    """
    for program in ("dpkg-deb", "git"):
        if shutil.which(program) is None:
            raise BuildError(f"{program} is missing: apt-get install dpkg git")
    if sys.executable != PYTHON:
        raise BuildError(
            f"run it with {PYTHON}: apt-get install python3 python3-venv python3-dev gcc"
        )
    number = version or _debian(_program_version())
    moment = commit_time()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="proxyd-deb-") as folder:
        stage = Path(folder) / "stage"
        stage.mkdir(mode=0o755)
        source = Path(folder) / "source"
        _copy_sources(source)
        _install(source, Path(folder) / "installer", stage / HOME)
        _copy_files(stage)
        _write_control(stage, number)
        _compile(source, stage / HOME, moment)
        _date(stage, moment)
        package = target / f"proxyd_{number}_{architecture()}.deb"
        call(
            *("dpkg-deb", "--root-owner-group", "--build", str(stage), str(package)),
            SOURCE_DATE_EPOCH=str(moment),
        )
    return package


def _install(source: Path, installer: Path, home: Path) -> None:
    """Make the environment with the program and its libraries."""
    call(PYTHON, "-m", "venv", str(installer))
    call(PYTHON, "-m", "venv", "--without-pip", str(home))
    pip = (str(installer / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
    call(
        *(*pip, "--python", str(home / "bin/python3"), "install", "--no-compile", str(source)),
        PIP_CONSTRAINT=str(ROOT / "constraints.txt"),
    )
    site = _site(home)
    for each in site.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            (each / name).unlink(missing_ok=True)
    shutil.rmtree(home / "include", ignore_errors=True)
    for each in (home / "bin").iterdir():
        if not each.name.startswith("python"):
            each.unlink()
    (home / "pyvenv.cfg").write_text(
        "home = /usr/bin\n"
        "include-system-site-packages = false\n"
        f"version = {sys.version.split()[0]}\n"
    )
    program = home / "bin/proxyd"
    program.write_text(
        f"#!/{HOME}/bin/python3\n"
        "import sys\n\nfrom proxyd.__main__ import main\n\nsys.exit(main())\n"
    )
    program.chmod(0o755)


def _copy_sources(target: Path) -> None:
    """Copy the files that the repository has, without the ones that were built here."""
    listed = output("git", "-C", str(ROOT), "ls-files", "-z")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _copy_files(stage: Path) -> None:
    """Copy the units, the settings, the documents and the launcher."""
    units = stage / UNITS
    units.mkdir(parents=True)
    for each in sorted((ROOT / "systemd").glob("proxyd*")):
        text = each.read_text().replace(INSTALLED, "/usr/bin/proxyd")
        (units / each.name).write_text(text.replace(DOCUMENTED, f"file:///{DOCUMENTS}/"))
    settings = (ROOT / "config/proxyd.example.toml").read_text()
    for line, ours in SETTINGS.items():
        settings, number = re.subn(line, ours, settings, flags=re.MULTILINE)
        if number != 1:
            raise BuildError(f"config/proxyd.example.toml has {number} lines {line!r}")
    (stage / "etc/proxyd/secrets").mkdir(parents=True)
    (stage / "etc/proxyd/secrets").chmod(0o700)
    (stage / "etc/proxyd/proxyd.toml").write_text(settings)
    documents = stage / DOCUMENTS
    shutil.copytree(ROOT / "docs", documents, ignore=shutil.ignore_patterns("*.py", "*.sh"))
    shutil.copy2(ROOT / "LICENSE", documents / "copyright")
    with gzip.GzipFile(documents / "changelog.gz", "wb", mtime=0) as file:
        file.write((ROOT / "CHANGELOG.md").read_bytes())
    (stage / "usr/bin").mkdir()
    (stage / "usr/bin/proxyd").symlink_to(f"../lib/{Path(HOME).name}/bin/proxyd")


def _write_control(stage: Path, version: str) -> None:
    control = stage / "DEBIAN"
    control.mkdir()
    for each in (ROOT / "release/debian").iterdir():
        shutil.copy2(each, control / each.name)
    major, minor = sys.version_info[:2]
    size = sum(each.lstat().st_size for each in stage.rglob("*") if each.is_file()) // 1024
    values = {
        "VERSION": version,
        "ARCHITECTURE": architecture(),
        "SIZE": str(size),
        "PYTHON": f"{major}.{minor}",
        "NEXT_PYTHON": f"{major}.{minor + 1}",
    }
    text = (control / "control").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (control / "control").write_text(text)
    (control / "conffiles").write_text("/etc/proxyd/proxyd.toml\n")


def _compile(source: Path, home: Path, moment: int) -> None:
    """Compile the data path if there is a C compiler, and every module to byte code."""
    site = _site(home)
    _date(site, moment)
    # Without debugging information, which names the folder of the compilation.
    call(
        *(str(home / "bin/python3"), "-m", "proxyd.compiled.builder", "--installed", str(site)),
        folder=source,
        CFLAGS="-g0",
    )
    for folder in site.glob("proxyd/compiled/cpython-*"):
        # The log has the folder and the order of the compilation.
        for name in ("lock", "log"):
            (folder / name).unlink(missing_ok=True)
        record = folder / "MANIFEST"
        dated = re.sub(
            r"(?m)^(file \S+ \d+) \d+ ", rf"\g<1> {moment}000000000 ", record.read_text()
        )
        record.write_text(dated)
    stage = home.parents[HOME.count("/")]
    call(
        *(PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"),
        *("-s", str(stage), "-p", "/", str(site)),
        PYTHONHASHSEED="0",
    )


def _date(folder: Path, moment: int) -> None:
    for each in (folder, *folder.rglob("*")):
        os.utime(each, (moment, moment), follow_symlinks=False)


def _site(home: Path) -> Path:
    return home / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def _program_version() -> str:
    text = (ROOT / "proxyd/__init__.py").read_text()
    [version] = re.findall(r'(?m)^__version__ = "(.+)"', text)
    return str(version)


def _debian(version: str) -> str:
    """Return a version of Python as one of Debian, which sorts `~` before the end of a version."""
    return re.sub(r"\.?(dev|a|b|rc)", r"~\1", version)


def commit_time() -> int:
    """Return the time of the commit, in UTC seconds: the time of all files."""
    return int(output("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))


def architecture() -> str:
    """Return the processor architecture, as Debian names it."""
    return output("dpkg", "--print-architecture")


def output(*command: str) -> str:
    """Run a program, and return its output.

    Raises:
        CalledProcessError: it failed.
    """
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def call(*command: str, folder: Path = ROOT, **environment: str) -> None:
    """Run a program whose output is shown.

    Raises:
        CalledProcessError: it failed.
    """
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, **environment})


def main() -> int:
    """Build the package that the command line describes, and print its path."""
    parser = argparse.ArgumentParser(prog="make deb", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("target", type=Path, help="the folder of the package")
    parser.add_argument("--version", help="the version of the package; by default the program's")
    options = parser.parse_args()
    try:
        print(build(options.target, options.version))
    except BuildError as failure:
        print(f"make deb: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
