"""Programs that misbehave until they are stopped, and one that ends at a signal."""

# Python programs that misbehave without an end: the test states the expected result.
BOMBS = {
    "fork": """
import os, time
made = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        made += 1
    except OSError:
        print("forks", made, flush=True)
        time.sleep(600)
""",
    "memory": """
kept = []
while True:
    kept.append(bytearray(8 << 20))
""",
    "tmpfs": """
import time
with open("/dev/shm/bomb", "wb") as first, open("/tmp/bomb", "wb") as second:
    for file in (first, second):
        try:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        except OSError as error:
            print("full", error.errno, flush=True)
kept = []
while True:
    kept.append(bytearray(8 << 20))
""",
    "disk": """
import time
number = 0
while True:
    with open(f"/work/{number}", "wb") as file:
        file.write(bytes(8 << 20))
    number += 1
    time.sleep(0.05)
""",
    "hidden disk": """
import os, time
os.mkdir("/work/hidden")
for number in range(20):
    with open(f"/work/hidden/{number}", "wb") as file:
        file.write(bytes(8 << 20))
os.chmod("/work/hidden", 0)
time.sleep(600)
""",
    "removed disk": """
import os, time
held = []
for number in range(20):
    held.append(open(f"/work/{number}", "wb", buffering=0))
    os.unlink(f"/work/{number}")
    held[-1].write(bytes(8 << 20))
time.sleep(600)
""",
    "mapped disk": """
import ctypes, os, time
mmap = ctypes.CDLL(None).mmap
mmap.restype, mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_long] * 5]
for number in range(20):
    with open(f"/work/{number}", "wb+", buffering=0) as file:
        os.unlink(f"/work/{number}")
        file.write(bytes(8 << 20))
        mmap(None, 8 << 20, 1, 1, file.fileno(), 0)
time.sleep(600)
""",
    "disk in flight": """
import os, socket, time
pair = socket.socketpair()
for number in range(10):
    with open(f"/work/{number}", "wb", buffering=0) as file:
        os.unlink(f"/work/{number}")
        file.write(bytes(8 << 20))
        socket.send_fds(pair[0], [b"x"], [file.fileno()])
print("hidden", flush=True)
time.sleep(600)
""",
    "deep": """
import os, time
os.chdir("/work")
for _ in range(2000):
    os.mkdir("d")
    os.chdir("d")
time.sleep(600)
""",
    "deaf": """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("grandchild", flush=True)
        time.sleep(600)
    os._exit(0)
print("ready", flush=True)
time.sleep(600)
""",
    "polite": """
import os, signal, sys, time
def end(*_):
    os.write(1, b"asked to end\\n")  # print may be at work just now
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
""",
}
