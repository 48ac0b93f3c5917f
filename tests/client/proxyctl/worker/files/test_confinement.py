"""A confined process reaches its folder alone, even if all of its code is a stranger's."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.base.pythons import CLIENT, NEWEST, OLDEST, pythons

from proxyctl.worker.files.confinement import MEMORY_BYTES

ORDINARY_UID = 61_234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# Attempts of a stranger with control over the process, one in each line.
ATTEMPTS = """
open("/etc/passwd").read()
open("/etc/passwd-", "w")
open({outside!r}).read()
open({outside!r}, "r+b")
open("../outside").read()
other_than_the_folder(os.open("..", os.O_RDONLY, dir_fd=folder))
os.open("../outside", os.O_RDONLY, dir_fd=folder)
os.open("link", os.O_RDONLY, dir_fd=folder)
open("/proc/self/status").read()
open("/proc/%d/mem" % parent, "r+b")
os.unlink({outside!r})
os.rename({outside!r}, "taken")
os.link({outside!r}, "taken")
os.readlink({outside!r})
os.chmod({outside!r}, 0o777)
os.truncate({outside!r}, 0)
os.open({outside!r}, os.O_WRONLY | os.O_TRUNC)
os.open({outside!r}, os.O_ACCMODE)
os.open({outside!r}, os.O_ACCMODE | os.O_TRUNC)
os.open(os.path.dirname({outside!r}), os.O_ACCMODE | os.O_TMPFILE)
os.open("mine", os.O_ACCMODE)
os.fchmod(folder, 0o777)
os.utime({outside!r})
os.setxattr({outside!r}, b"user.x", b"x")
os.setxattr({outside!r}, b"user.x", b"x", follow_symlinks=False)
os.mkdir({outside!r} + ".d")
os.symlink("x", {outside!r} + ".link")
os.chdir("/")
os.mkfifo("pipe")
os.mknod("device", 0o20666, os.makedev(1, 1))
os.chown("mine", 0, 0)
socket.socket(socket.AF_INET)
socket.socket(socket.AF_UNIX)
socket.socketpair()
os.fork()
os.execv("/bin/sh", ["sh"])
os.kill(parent, 0)
os.kill(os.getpid(), 0)
fcntl.fcntl(1, fcntl.F_SETOWN, parent)
fcntl.fcntl(1, fcntl.F_SETSIG, 9)
resource.prlimit(parent, resource.RLIMIT_CPU, (0, 0))
resource.prlimit(parent, resource.RLIMIT_NOFILE, (4, 4))
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
os.setpriority(os.PRIO_PROCESS, parent, 19)
os.setpriority(os.PRIO_USER, os.getuid(), 19)
os.sched_setaffinity(parent, {{0}})
os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0))
os.setuid(0)
os.setresuid(0, 0, 0)
os.setgroups([0])
os.chroot("/")
checked(library.unshare(0x10000000))
checked(library.mount(b"none", b"/", b"tmpfs", 0, None))
checked(library.ptrace(16, parent, 0, 0))
checked(library.prctl(22, 0, 0, 0, 0))
checked(library.prctl(1, 0, 0, 0, 0))
checked(library.shmget(0, 4096, 0o1600))
checked(library.inotify_init())
checked(library.syscall(298, 0, 0, -1, -1, 0))
bytearray({memory})
""".strip().split("\n")

PROGRAM = """
import ctypes, fcntl, json, os, resource, socket, sys
sys.path.insert(0, sys.argv[1])
from proxyctl.worker.files import confinement
request = json.loads(sys.argv[2])
library = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
def other_than_the_folder(descriptor):
    if os.path.sameopenfile(descriptor, folder):
        raise OSError("the root directory is its own parent")
def refused(*_):
    raise PermissionError(1, "not here")
def said(words):
    os.write(1, json.dumps(words).encode())
    os._exit(0)
if request["uid"]:
    os.setgroups([])
    os.setgid(request["uid"])
    os.setuid(request["uid"])
    library.prctl(4, 1, 0, 0, 0)
def state():
    return [resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CPU),
            os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0)),
            os.sched_getscheduler(0)]
before = state()
if os.fork():
    status = os.wait()[1]
    assert status == 0, status
    assert state() == before, (before, state())
    sys.exit()
parent = os.getppid()
if "root" not in request["walls"]:
    os.chroot = refused
    confinement._leave_network = lambda: True
if "landlock" not in request["walls"]:
    confinement._landlock_rules = lambda *_: (None, 0)
for version in (1, 2):
    if "landlock-%d" % version in request["walls"]:
        confinement._landlock_version = lambda: version
folder = os.open(request["folder"], os.O_RDONLY)
bounds = confinement.Bounds(file_bytes=1000, cpu_seconds=60)
try:
    walls = confinement.confine(folder, parent, bounds, request["user"])
except confinement.ConfinementError as error:
    said({"error": str(error)})
results = {}
for attempt in request["attempts"]:
    try:
        exec(attempt)
        results[attempt] = "succeeded"
    except (OSError, MemoryError, ValueError) as error:
        results[attempt] = type(error).__name__
for name in ("mine", "new"):
    with open(name, "w") as file:
        file.write(name)
results["large"] = "succeeded"
try:
    with open("large", "wb", 0) as file:
        file.write(bytes(1000))
        file.write(b"x")
except OSError as error:
    results["large"] = os.strerror(error.errno)
said({"walls": vars(walls), "results": results})
"""


def confined(
    top: Path, walls: str, *, uid: int = 0, python: str = sys.executable
) -> dict[str, Any]:
    """Run all attempts in a process with only these walls. Return their results."""
    folder, outside = top / "folder", top / "outside"
    folder.mkdir()
    outside.write_bytes(b"mine")
    outside.chmod(0o600)
    (folder / "link").symlink_to(outside)
    (folder / "mine").write_bytes(b"")
    for path in (folder, folder / "mine"):
        os.chown(path, uid or ORDINARY_UID, uid or ORDINARY_UID)
    os.chown(outside, uid, uid)  # by its rights the process may do everything with it
    os.chown(top, uid, uid)
    before = outside.stat()
    request = {
        "folder": str(folder),
        "walls": walls,
        "uid": uid,
        "user": ORDINARY_UID,
        "attempts": [each.format(outside=str(outside), memory=MEMORY_BYTES) for each in ATTEMPTS],
    }
    done = subprocess.run(
        [python, "-I", "-c", PROGRAM, CLIENT, json.dumps(request)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert outside.read_bytes() == b"mine"
    after = outside.stat()
    assert (after.st_mode, after.st_ctime_ns) == (before.st_mode, before.st_ctime_ns)
    assert sorted(each.name for each in top.iterdir()) == ["folder", "outside"]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def successes(said: dict[str, Any]) -> list[str]:
    return [each for each, result in said["results"].items() if result == "succeeded"]


@needs_root
@pytest.mark.parametrize("uid", [0, ORDINARY_UID], ids=["root", "ordinary"])
@pytest.mark.parametrize("walls", ["root landlock", "root", "landlock", "landlock-1", "landlock-2"])
def test_a_confined_process_reaches_only_its_folder(public: Path, walls: str, uid: int) -> None:
    said = confined(public, walls, uid=uid)
    assert said["walls"]["root"] == said["walls"]["network"] == ("root" in walls)
    assert bool(said["walls"]["landlock"]) == ("landlock" in walls)
    assert said["walls"]["user"] == ORDINARY_UID
    assert said["results"].pop("large") == "File too large"
    assert successes(said) == []
    assert (public / "folder" / "new").read_bytes() == b"new"


@needs_root
@pytest.mark.parametrize("python", pythons(OLDEST, NEWEST))
def test_every_python_is_confined(public: Path, python: str) -> None:
    assert successes(confined(public, "root landlock", python=python)) == []


@needs_root
@pytest.mark.parametrize("uid", [0, ORDINARY_UID], ids=["root", "ordinary"])
def test_a_process_is_not_started_without_a_wall(public: Path, uid: int) -> None:
    said = confined(public, "", uid=uid)
    assert said["error"] == "this device has neither Landlock nor user namespaces"
