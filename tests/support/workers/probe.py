"""Runs inside a sandbox and tries to get out: prints a JSON line for each attempt, then "done".

It needs only Python 3 and its standard library, and prints the kernel's answer: "ok" when the
attempt went through, else the name of the error. `battery.py` knows the permitted answers of each
of them.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import socket
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
IS_X86 = platform.machine() == "x86_64"
NUMBERS = {
    name: numbers[0 if IS_X86 else 1]
    for name, numbers in {
        "ptrace": (101, 117),
        "init_module": (175, 105),
        "keyctl": (250, 219),
        "unshare": (272, 97),
        "perf_event_open": (298, 241),
        "name_to_handle_at": (303, 264),
        "open_by_handle_at": (304, 265),
        "setns": (308, 268),
        "process_vm_readv": (310, 270),
        "kcmp": (312, 272),
        "bpf": (321, 280),
        "userfaultfd": (323, 282),
        "io_uring_setup": (425, 425),
        "open_tree": (428, 428),
        "fsopen": (430, 430),
        "clone3": (435, 435),
        "pidfd_getfd": (438, 438),
        "mount_setattr": (442, 442),
        "mount": (165, 40),
        "umount2": (166, 39),
        "pivot_root": (155, 41),
        "chroot": (161, 51),
        "sethostname": (170, 161),
        "kexec_load": (246, 104),
        "reboot": (169, 142),
        "swapon": (167, 224),
        "settimeofday": (164, 170),
        "syslog": (103, 116),
        "quotactl": (179, 60),
        "add_key": (248, 217),
        "personality": (135, 92),
        "vmsplice": (278, 75),
        "fanotify_init": (300, 262),
    }.items()
}
if IS_X86:
    NUMBERS.update(iopl=172, modify_ldt=154)
CLONE = 56 if IS_X86 else 220
CLONE_NEWUSER = 0x10000000
SIGCHLD = 17


def say(name, outcome, detail=""):
    print(json.dumps({"name": name, "outcome": outcome, "detail": str(detail)}), flush=True)


def attempt(name, function, *arguments):
    """Run one attempt. If it succeeded, report its result."""
    try:
        value = function(*arguments)
    except OSError as error:
        say(name, errno.errorcode.get(error.errno, str(error.errno)), error)
    except RuntimeError as error:
        say(name, str(error))
    except Exception as error:
        say(name, type(error).__name__, error)
    else:
        say(name, "ok", value)


def syscall(number, *arguments):
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(each) for each in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def calls():
    for name in NUMBERS:
        arguments = {
            "unshare": (CLONE_NEWUSER,),
            "personality": (0x0400000,),  # READ_IMPLIES_EXEC
            "ptrace": (16, os.getppid(), 0, 0),  # PTRACE_ATTACH
            "userfaultfd": (1,),  # UFFD_USER_MODE_ONLY needs no privilege
            "keyctl": (0, -3, 1),
            "io_uring_setup": (4, ctypes.addressof(ctypes.create_string_buffer(256))),
        }.get(name, (0, 0, 0, 0, 0))
        attempt("syscall " + name, syscall, NUMBERS[name], *arguments)
    attempt("clone new user", clone, CLONE_NEWUSER | SIGCHLD)
    attempt("clone new net, high bits set", clone, 0x40000000 | SIGCHLD | 1 << 40)
    attempt("fork", clone, SIGCHLD)
    attempt("TIOCSTI", terminal, 0x5412)
    attempt("TIOCSTI, high bits set", terminal, 0x5412 | 1 << 32)
    attempt("mknod of a disk", os.mknod, "/work/disk", 0o600 | 0o060000, os.makedev(254, 0))
    attempt("mkfifo", os.mkfifo, "/work/fifo-" + os.urandom(4).hex())  # it may run here again
    if IS_X86:
        attempt("syscall x32", in_child, syscall, 0x40000000 + 39)


def in_child(function, *arguments):
    """Call a function in a child, because a filter may end the process; raise its error here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            function(*arguments)
        except OSError as error:
            code = error.errno
        os.write(writer, b"%d" % code)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        code = file.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        raise RuntimeError(signal.Signals(os.WTERMSIG(status)).name)
    if int(code):
        raise OSError(int(code), os.strerror(int(code)))


def clone(flags):
    pid = syscall(CLONE, flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "a child"


def terminal(number):
    main, other = os.openpty()
    result = LIBC.ioctl(other, ctypes.c_ulong(number), b"x")
    code = ctypes.get_errno()
    os.close(main)
    os.close(other)
    if result == -1:
        raise OSError(code, os.strerror(code))


def read(path):
    with open(path, "rb") as file:
        return file.read(64)


def listing(path):
    return sorted(os.listdir(path))


def write(path):
    with open(path, "wb") as file:
        file.write(b"x")
    os.unlink(path)


def files():
    for path in (
        "/etc/shadow",
        "/root",
        "/home",
        "/var",
        "/run",
        "/sys/kernel",
        "/sys/fs/cgroup",
        "/proc/kcore",
        "/proc/kmsg",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/vda",
        "/dev/sda",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/net/tun",
        "/proc/1/root/root",
    ):
        attempt("read " + path, listing if os.path.isdir(path) else read, path)
    for folder in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/inputs", "/proc", "/sys"):
        attempt("write " + folder, write, os.path.join(folder, "written"))
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/proc/sys/vm/overcommit_memory",
        "/sys/kernel/uevent_helper",
    ):
        attempt("open for writing " + path, lambda path: os.close(os.open(path, os.O_WRONLY)), path)
    for path in ("/work", "/tmp", "/dev/shm"):
        attempt("write " + path, write, os.path.join(path, "written"))
    for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock"):
        attempt("connect " + path, unix, path)
    say("kind of stdout", kind(1), os.readlink("/proc/self/fd/1"))
    say("kind of stderr", kind(2), os.readlink("/proc/self/fd/2"))
    own = {int(each) for each in os.listdir("/proc/self/fd")}
    say("descriptors", ",".join(str(each) for each in sorted(own) if is_open(each)))


def open_socket(family, kind):
    socket.socket(family, kind).close()


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def kind(number):
    return os.readlink(f"/proc/self/fd/{number}").split(":")[0]


def unix(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)


def connect(host, port):
    with socket.socket() as sock:
        sock.settimeout(2)
        sock.connect((host, port))


def network(targets, abstract):
    for name, family, kind in (
        ("netlink", 16, socket.SOCK_RAW),
        ("packet", 17, socket.SOCK_RAW),
        ("alg", 38, socket.SOCK_SEQPACKET),
        ("vsock", 40, socket.SOCK_STREAM),
        ("raw", socket.AF_INET, socket.SOCK_RAW),
    ):
        attempt("socket " + name, open_socket, family, kind)
    for name, host, port in targets:
        attempt(f"connect {name}", connect, host, int(port))
    if abstract:
        attempt("connect abstract", unix, "\0" + abstract)
    attempt("connect metadata", connect, "169.254.169.254", 80)
    attempt("connect LAN", connect, "10.0.0.1", 80)
    attempt("connect internet", connect, "1.1.1.1", 443)
    open_ports = 0
    for port in (22, 53, 80, 111, 443, 2375, 2376, 3306, 5432, 6379, 8080, 8443):
        try:
            connect("127.0.0.1", port)
        except OSError:
            continue
        open_ports += 1
    say("open ports of the host", open_ports)
    with open("/proc/net/unix") as file:
        names = [line.split()[-1] for line in file if line.split()[-1].startswith("@")]
    say("abstract sockets", len(names), names)


def others():
    pids = sorted(int(each) for each in os.listdir("/proc") if each.isdigit())
    say("processes", len(pids), pids)
    environment = b""
    for pid in pids:
        if pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment += file.read()
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                environment += b"\0" + file.read() + b"\0"
        except OSError:
            continue
    told = environment.replace(b"\0", b"\n").decode(errors="replace")
    say("environments and command lines", "read", told)
    if os.getpid() == 1:
        say("kill process 1", "ok", "it would be this one")
    else:
        attempt("kill process 1", os.kill, 1, signal.SIGKILL)
    attempt("kill what is outside", os.kill, int(sys.argv[1]), 0)
    # Also of process 1: the same user in there can write its memory.
    for pid, who in (("self", "status"), ("1", "status of process 1")):
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"):
            say(f"{who} {name}", fields.get(name, "").strip())
    say("user", os.getuid(), os.getgid())
    say("groups", ",".join(map(str, os.getgroups())))
    say("core", resource.getrlimit(resource.RLIMIT_CORE)[1])
    say("hostname", platform.node())


def bombs():
    attempt("a file of 1 TB", sparse)


def sparse():
    with open("/work/sparse", "wb") as file:
        file.truncate(1 << 40)
    os.unlink("/work/sparse")


def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    calls()
    files()
    network([each.split("=") for each in sys.argv[3:]], sys.argv[2])
    others()
    bombs()
    print(json.dumps({"name": "done", "outcome": "ok", "detail": ""}), flush=True)


if __name__ == "__main__":
    main()
