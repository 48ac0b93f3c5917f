"""Build the container image of proxyd: python3 -m release.image TARGET [--version VERSION].

The image has a Debian and the content of the Debian package. The Debian is made once, from the
packages that the mirror then has; `--new-base` makes it again. Two builds of one commit on one
Debian are equal to the byte.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from release import base, deb, image_archive
from release.deb import ROOT, BuildError

BASE = ROOT / "build/image/base"
PACKAGES = ("ca-certificates", "python3")
SECURITY = "http://deb.debian.org/debian-security"
NAME = "localhost/proxyd"
USER = 10001
PASSWD = f"proxyd:x:{USER}:{USER}::/var/lib/proxyd:/usr/sbin/nologin\n"
GROUP = f"proxyd:x:{USER}:\n"
# Of a Debian in a folder: caches, logs, names of this machine, and pages for people.
LEFT_OUT = re.compile(
    r"(dev|proc|sys|run|tmp|var/tmp|var/log|var/cache|var/lib/apt/lists|debootstrap)/.+"
    r"|etc/(machine-id|resolv\.conf|hostname|(passwd|group|shadow|gshadow|subuid|subgid)-)"
    r"|usr/share/(man|info|locale|lintian|doc-base)/.+"
    r"|usr/share/doc/.+(?<!/copyright)"
    r"|.*/__pycache__(/.*)?"
)
KEPT = re.compile(r"usr/share/doc/[^/]+|usr/lib/python3(\.\d+)?(/.*)?")
LOOPBACK = r'^host = "127.0.0.1"        (?=# the address the HTTP API)'


def build(target: Path, package: Path | None = None, version: str | None = None) -> Path:
    """Build the image, and return the path of its archive (`podman load` reads it).

    Args:
        target: the folder of the archive.
        package: the Debian package; by default it is built.
        version: the version of the image; by default the one of the program.

    Raises:
        BuildError: a program is missing, or the user is not root.
        CalledProcessError: a step failed; its output has the reason.
    """
    missing = [name for name in ("debootstrap", "podman") if shutil.which(name) is None]
    if missing:
        raise BuildError(f"missing: {', '.join(missing)}; apt-get install debootstrap podman")
    if os.geteuid() != 0:
        raise BuildError("only root can make the Debian of the image")
    moment = deb.commit_time()
    _make_base()
    with tempfile.TemporaryDirectory(prefix="proxyd-image-") as name:
        context = Path(name)
        if package is None:
            package = deb.build(context / "package", version)
        number = package.name.split("_")[1]
        archive = target / f"proxyd_{number}_{deb.architecture()}.image.tar"
        shutil.copy2(package, context / "proxyd.deb")
        _write_base(context / "base.tar", moment)
        (context / "proxyd.toml").write_text(_settings(package))
        shutil.copy2(ROOT / "release/Containerfile", context / "Containerfile")
        # A tag has no `~`, which versions of Debian have.
        tag = f"{NAME}:{number.replace('~', '-')}"
        deb.call(
            *("podman", "build", "--quiet", "--pull=never", "--no-cache", "--network=none"),
            *("--format=docker", "--squash-all", f"--timestamp={moment}", f"--tag={tag}"),
            str(context),
        )
        target.mkdir(parents=True, exist_ok=True)
        archive.unlink(missing_ok=True)
        deb.call("podman", "save", "--quiet", f"--output={archive}", tag)
        image_archive.settle(archive)
    return archive


def _make_base() -> None:
    """Make the Debian with its security updates, and compile Python's own modules."""
    if BASE.exists():
        return
    draft = BASE.with_name("base.draft")
    shutil.rmtree(draft, ignore_errors=True)
    base.make(draft, PACKAGES)
    with (draft / "etc/apt/sources.list").open("a") as file:
        file.write(f"deb {SECURITY} {base.SUITE}-security main\n")
    for command in ("update", "upgrade", "clean"):
        options = ("--quiet", "--quiet", "--yes", "-o", "APT::Sandbox::User=root")
        deb.call(
            *("chroot", str(draft), "apt-get", *options, command),
            DEBIAN_FRONTEND="noninteractive",
        )
    for name, line in (("passwd", PASSWD), ("group", GROUP)):
        with (draft / "etc" / name).open("a") as file:
            file.write(line)
    shown = ("dpkg-query", f"--root={draft}", "--show", "--showformat=${Package} ${Version}\\n")
    (draft / "usr/share/doc/base-packages").write_text(deb.output(*shown) + "\n")
    # By the content of the sources: the builder of the image changes the times of all files.
    _compile_modules(draft)
    draft.rename(BASE)


def _compile_modules(root: Path) -> None:
    for each in sorted(root.glob("usr/lib/python3*")):
        for cache in each.rglob("__pycache__"):
            shutil.rmtree(cache)
        deb.call(
            *("chroot", str(root), "python3", "-m", "compileall", "-q"),
            *("--invalidation-mode", "unchecked-hash", f"/{each.relative_to(root)}"),
            PYTHONHASHSEED="0",
        )


def _write_base(target: Path, moment: int) -> None:
    """Write the Debian as an archive with files in the order of their names."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in _kept_files(BASE):
            member = archive.gettarinfo(str(path), str(path.relative_to(BASE)))
            member.mtime = moment
            member.uname = member.gname = ""
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)


def _kept_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if KEPT.fullmatch(name) or not LEFT_OUT.fullmatch(name):
            yield path


def _settings(package: Path) -> str:
    """Return the settings of the package, for a daemon whose ports the operator publishes."""
    listed = ("dpkg-deb", "--fsys-tarfile", str(package))
    tree = subprocess.run(listed, check=True, capture_output=True).stdout
    only = ("tar", "--extract", "--to-stdout", "./etc/proxyd/proxyd.toml")
    text = subprocess.run(only, input=tree, check=True, capture_output=True).stdout.decode()
    text, number = re.subn(LOOPBACK, 'host = "0.0.0.0"          ', text, flags=re.MULTILINE)
    if number != 1:
        raise BuildError(f"config/proxyd.example.toml has {number} lines {LOOPBACK!r}")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the image that the command line describes, and print the path of its archive."""
    parser = argparse.ArgumentParser(
        prog="make image", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("target", type=Path, help="the folder of the archive")
    parser.add_argument("--version", help="the version of the image; by default the program's")
    parser.add_argument(
        "--new-base", action="store_true", help="fetch the newest packages of Debian first"
    )
    options = parser.parse_args(arguments)
    if options.new_base:
        shutil.rmtree(BASE, ignore_errors=True)
    try:
        print(build(options.target, version=options.version))
    except BuildError as failure:
        print(f"make image: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
