"""A machine in QEMU, whose control groups are all of the second version, for one program of a test.

python -m support.machines.guest FOLDER    fetch a kernel of Debian into a folder, unless one is
there

It starts without a disk: a memory file system with this machine's Python, bubblewrap and busybox,
the sources, and a program that its first process runs. The output of the program is returned.
"""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.daemons.process import ROOT

NEEDS = ("qemu-system-x86_64", "busybox", "bwrap", "ldd")
PYTHON = "/usr/bin/python3"
KERNEL = "linux-image-cloud-amd64"
BEGIN, END = "guest: begin", "guest: end"
SECONDS = 300  # without hardware to help, and beside other work
MEGABYTES = 1024
TOOLS = ("/usr/bin/bwrap", "/usr/bin/setpriv", "/usr/bin/unshare", "/usr/bin/env", "/bin/sh")
# Large parts of the library that no test here needs.
LEFT_OUT = ("test", "idlelib", "lib2to3", "ensurepip", "pydoc_data", "tkinter", "__pycache__")

# First process: a file system in memory that is not the kernel's own first one (no sandbox can be
# made from that one); then the program, and the end of the machine, after a failure also.
INIT = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /new
/bin/busybox mount -t devtmpfs none /dev
if ! /bin/busybox test -e /inside; then
    /bin/busybox mount -t tmpfs -o size=80% none /new
    for each in bin lib lib64 usr etc client tests init program.py; do
        /bin/busybox test -e /$each && /bin/busybox cp -a /$each /new/
    done
    /bin/busybox mkdir -p /new/proc /new/sys /new/dev /new/tmp /new/mnt /new/root
    /bin/busybox touch /new/inside
    exec /bin/busybox switch_root /new /init
fi
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t cgroup2 none /sys/fs/cgroup
/bin/busybox ip link set lo up
echo "{BEGIN}"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/client:/tests PATH=/usr/bin:/bin {PYTHON} /program.py 2>&1
echo "{END}"
/bin/busybox poweroff -f
"""


def lacking(kernel: str | None) -> str:
    """Return why there can be no such machine here; nothing when there can."""
    missing = [name for name in NEEDS if shutil.which(name) is None]
    if missing:
        return f"missing: {', '.join(missing)}"
    if kernel is None or not Path(kernel).exists():
        return "no kernel; `make vm` fetches one"
    return ""


def run(kernel: Path, folder: Path, program: str) -> str:
    """Run a Python program as the work of a machine, and return its output."""
    tree = folder / "tree"
    _fill(tree, program)
    image = folder / "initramfs"
    with image.open("wb") as file:
        packed = subprocess.run(
            ("sh", "-c", "find . | busybox cpio -o -H newc 2>/dev/null"),
            cwd=tree,
            stdout=subprocess.PIPE,
            check=True,
        )
        file.write(gzip.compress(packed.stdout, 1))
    shutil.rmtree(tree)
    told = subprocess.run(
        (
            *("qemu-system-x86_64", "-accel", "tcg", "-m", str(MEGABYTES), "-nographic"),
            *("-no-reboot", "-nic", "none", "-kernel", str(kernel), "-initrd", str(image)),
            *("-append", "console=ttyS0 quiet panic=-1"),
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        check=True,
    ).stdout.decode(errors="replace")
    assert END in told, told[-3000:]
    return told.partition(BEGIN)[2].partition(END)[0].replace("\r\n", "\n")


def _fill(tree: Path, program: str) -> None:
    for name in ("bin", "etc", "usr/bin", "usr/lib", "lib64"):
        (tree / name).mkdir(parents=True)
    (tree / "lib").symlink_to("usr/lib")
    python = Path(PYTHON).resolve()
    shutil.copy(shutil.which("busybox") or "", tree / "bin" / "busybox")
    for each in (str(python), *TOOLS):
        _copy(Path(each), tree)
    (tree / "usr/bin/python3").symlink_to(python.name)
    for name in ("true", "cat", "mount", "mkdir", "sleep"):
        (tree / "bin" / name).symlink_to("busybox")
        if not (tree / "usr/bin" / name).exists():
            (tree / "usr/bin" / name).symlink_to("/bin/busybox")
    library = python.name  # "python3.11"
    shutil.copytree(
        f"/usr/lib/{library}", tree / "usr/lib" / library, ignore=shutil.ignore_patterns(*LEFT_OUT)
    )
    for each in (tree / "usr/lib" / library / "lib-dynload").glob("*.so"):
        _libraries(each, tree)
    for name in ("client", "tests/support"):
        shutil.copytree(
            ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    (tree / "program.py").write_text(program)


def _copy(path: Path, tree: Path) -> None:
    target = tree / str(path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(path.resolve(), target)
    _libraries(path, tree)


def _libraries(path: Path, tree: Path) -> None:
    shown = subprocess.run(("ldd", str(path)), capture_output=True, text=True, check=False).stdout
    for word in shown.split():
        if word.startswith("/") and not (tree / word.lstrip("/")).exists():
            target = tree / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(word).resolve(), target)


def fetch(folder: Path) -> Path:
    """Return the kernel of a folder, fetched and unpacked unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    kernels = sorted((folder / "boot").glob("vmlinuz-*"))
    if kernels:
        return kernels[-1]
    shown = subprocess.run(
        ("apt-cache", "depends", KERNEL), capture_output=True, text=True, check=True
    ).stdout
    package = next(
        line.split()[-1] for line in shown.splitlines() if "Depends: linux-image-" in line
    )
    subprocess.run(("apt-get", "download", package), cwd=folder, check=True)
    (archive,) = folder.glob("*.deb")
    subprocess.run(("dpkg", "-x", str(archive), str(folder)), check=True)
    archive.unlink()
    return max((folder / "boot").glob("vmlinuz-*"))


if __name__ == "__main__":
    os.umask(0o022)
    sys.stdout.write(f"{fetch(Path(sys.argv[1]).resolve())}\n")
