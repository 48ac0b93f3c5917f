"""proxyctl.worker.executors.bwrap.bwrap: the battery, started by root and by an ordinary user."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.base.cases import cases
from support.base.waiting import until_true
from support.workers import battery, launching
from support.workers.around import outside
from support.workers.battery import BOMBS, EXPECTED, OWN_SECRET, SECRET, Outcome, Result
from support.workers.launching import start

from proxyctl.worker.executors.base import family
from proxyctl.worker.executors.base.base import INPUTS, STATUS, WORK, Bounds, TaskError
from proxyctl.worker.executors.bwrap import bwrap
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor
from proxyctl.worker.executors.limits.base import GROUP, scope_of
from proxyctl.worker.executors.limits.cgroup1 import Cgroup1, find_parents
from proxyctl.worker.executors.limits.choose import choose
from proxyctl.worker.executors.limits.unbounded import Unbounded

UID = 61_001  # an ordinary user without a name


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    """A folder that an ordinary user can reach, as that of tests is not."""
    folder = Path(tempfile.mkdtemp(prefix="proxyctl-jobs-"))
    folder.chmod(0o711)
    yield folder
    battery.remove(folder)


@pytest.fixture(scope="module")
def scope(top: Path) -> str:
    """An agent of these tests only, apart from other users' jobs on this machine."""
    return scope_of(top)


@pytest.fixture(scope="module")
def executor(scope: str) -> Iterator[BwrapExecutor]:
    """The executor of the user that runs the tests."""
    limits, findings = choose(scope=scope)
    battery.require("" if limits else "; ".join(each.actual for each in findings))
    assert limits is not None
    made = BwrapExecutor(limits, scope=scope)
    battery.require(battery.lacking(made))
    yield made
    made.close()


@pytest.fixture
def folder(top: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of an attempt."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name).strip("-")
    return top / name[:80]


def cgroup1_of(stack: ExitStack, uid: int) -> Callable[[], Cgroup1]:
    """Give control groups to an ordinary user, as an administrator does."""
    parents = {name: path.with_name(f"{GROUP}-{uid}") for name, path in find_parents().items()}
    for path in parents.values():
        path.mkdir(exist_ok=True)
        os.chown(path, uid, uid)
        stack.callback(path.rmdir)
    return lambda: Cgroup1(parents)


@pytest.fixture(scope="module", params=["the user of the tests", "an ordinary user"])
def outcomes(
    request: pytest.FixtureRequest, executor: BwrapExecutor, top: Path
) -> dict[str, Outcome]:
    """Outcomes of the probe, from one run for each way to start it."""
    with outside() as around, ExitStack() as stack:
        if request.param == "the user of the tests":
            return battery.probe(executor, top / "probe-own", **around)
        if os.geteuid() != 0:
            pytest.skip("only root can become an ordinary user")
        if not find_parents():
            battery.require("no control groups of the first version to give to a user")
        make = cgroup1_of(stack, UID)
        folder = top / "probe-user"
        folder.mkdir()
        os.chown(folder, UID, UID)

        def by_user() -> dict[str, Any]:
            reported = battery.probe(BwrapExecutor(make()), folder, **around)
            return {name: asdict(each) for name, each in reported.items()}

        return {name: Outcome(**each) for name, each in battery.as_user(UID, by_user).items()}


@cases("line", EXPECTED)
def test_nothing_gets_through(line: str, outcomes: dict[str, Outcome]) -> None:
    """Each line of the battery is refused as it must be."""
    battery.judge(line, outcomes)


def test_every_line_of_the_probe_is_judged(outcomes: dict[str, Outcome]) -> None:
    """Every reported line has an expectation."""
    assert set(outcomes) <= set(EXPECTED)


def test_the_agents_secret_is_nowhere_in_proc(outcomes: dict[str, Outcome]) -> None:
    """Neither the environment of process 1 nor its arguments contain the agent's secret."""
    told = outcomes["environments and command lines"].detail
    assert SECRET not in told
    # Not even its own secrets, nor the agent's folders, are in a command line for others to read.
    assert OWN_SECRET not in told
    assert "/work/" in told
    assert "proxyctl-jobs-" not in told


def test_a_secret_of_a_job_is_in_no_command_line_outside(
    executor: BwrapExecutor, folder: Path
) -> None:
    """Other users of the machine see command lines; they do not see the job's secrets."""
    job = battery.python_task(folder, BOMBS["polite"])
    started = battery.launch(executor, job)
    try:
        until_true(lambda: b"ready" in started.out)
        lines = b"".join(command_lines())
        assert job.attempt_id.encode() in lines
        assert OWN_SECRET.encode() not in lines
    finally:
        executor.clean(job.attempt_id)
        started.wait()


def command_lines() -> Iterator[bytes]:
    """Return the command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue


def run(executor: BwrapExecutor, folder: Path, program: str, **changes: Any) -> Result:
    """Run a program of Python to its end."""
    return battery.run(executor, battery.python_task(folder, program, **changes))


def test_a_job_has_its_variables_inputs_and_results(executor: BwrapExecutor, folder: Path) -> None:
    """Its inputs are there, and its results stay."""
    (folder / INPUTS).mkdir(parents=True)
    (folder / INPUTS / "data").write_text("given")
    program = """
import os, sys
print(os.environ["OWN"], os.environ["HOME"], os.getcwd(), open("/inputs/data").read())
open("/work/result", "w").write("made")
sys.exit(7)
"""
    result = run(executor, folder, program)
    assert (result.status, result.err) == (7, "")
    assert result.out.split() == [OWN_SECRET, "/work", "/work", "given"]
    assert (folder / WORK / "result").read_text() == "made"
    assert result.ending.cpu_seconds is None or result.ending.cpu_seconds > 0
    assert not result.ending.is_out_of_memory


def test_a_sandbox_that_cannot_be_started_is_told_from_a_job_that_fails(
    executor: BwrapExecutor, folder: Path
) -> None:
    task = battery.python_task(folder, "raise SystemExit(1)")
    try:
        assert start(task, executor.prepare(task)).wait() == 1
        assert b"exit-code" in (folder / STATUS).read_bytes()
        launch = executor.prepare(task)
        files = {10: b"--ro-bind\0/no/such/place\0/x\0" + launch.files[10]}
        started = start(task, replace(launch, files={**launch.files, **files}))
        assert started.wait() == 1
        assert b"/no/such/place" in started.err
        assert b"exit-code" not in (folder / STATUS).read_bytes()
    finally:
        executor.clean(task.attempt_id)


def test_a_job_of_root_is_an_unprivileged_user_of_this_machine(
    executor: BwrapExecutor, folder: Path
) -> None:
    """Files of a job that root has started belong to a user that only that attempt has."""
    if os.geteuid() != 0:
        pytest.skip("only for root")
    run(executor, folder, "open('/work/result', 'w').write('made')")
    owner = (folder / WORK / "result").stat().st_uid
    assert owner == bwrap.uid_of(folder.name)
    assert owner >= bwrap.FIRST_UID


def test_an_unpacked_image_is_the_jobs_root(
    executor: BwrapExecutor, folder: Path, top: Path
) -> None:
    """Its programs to read, in the place of the host's, and the same walls."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed")
    root = top / "image"
    for name in ("bin", "etc", "tmp", "proc", "work"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "etc" / "os-release").write_text("image\n")
    (root / "sh").symlink_to("bin/busybox")
    script = "cat /etc/os-release; id -u; ls /; echo x > /bin/x; echo y > /work/y; ls /usr"
    command = ("/bin/busybox", "sh", "-c", script)
    job = battery.task(folder, *command, image="an-image", root=root)
    result = battery.run(executor, job)
    shown = result.out.split()
    assert shown[:3] == ["image", "65534", "bin"], result
    assert {"bin", "etc", "inputs", "work", "tmp", "proc", "dev"} <= set(shown)
    assert "Read-only" in result.err
    assert (folder / WORK / "y").read_text() == "y\n"


def test_files_that_an_administrator_has_configured_are_not_there(
    executor: BwrapExecutor, folder: Path
) -> None:
    """Programs such as npm keep tokens for all users of the device in /usr/local/etc."""
    if not Path("/usr/local/etc").is_dir():
        pytest.skip("this machine has no such folder")
    program = """
import os
print(os.listdir("/usr/local/etc"))
open("/usr/local/etc/x", "w")
"""
    result = run(executor, folder, program)
    assert result.out == "[]\n"
    assert "Read-only file system" in result.err


def test_two_jobs_do_not_see_each_other(executor: BwrapExecutor, top: Path) -> None:
    """Neither processes nor files nor sockets of another job are there."""
    other = battery.python_task(
        top / "other",
        """
import socket, time
open("/tmp/secret", "w").write("x"); open("/dev/shm/secret", "w").write("x")
open("/work/secret", "w").write("x")
one = socket.socket(); one.bind(("127.0.0.1", 8888)); one.listen()
two = socket.socket(socket.AF_UNIX); two.bind("\\0job"); two.listen()
print("ready", flush=True)
time.sleep(600)
""",
    )
    started = battery.launch(executor, other)
    try:
        until_true(lambda: b"ready" in started.out, lambda: str(started.err))
        program = """
import os, socket
for path in ("/tmp/secret", "/dev/shm/secret", "/work/secret", "/work/../other"):
    assert not os.path.exists(path), path
for family, address in ((socket.AF_INET, ("127.0.0.1", 8888)), (socket.AF_UNIX, "\\0job")):
    try:
        socket.socket(family).connect(address)
    except ConnectionRefusedError:
        print("refused")
print(len([each for each in os.listdir("/proc") if each.isdigit()]))
"""
        result = run(executor, top / "one", program)
        assert result.out.split() == ["refused", "refused", "2"], result
        assert executor.running() >= {"other"}
    finally:
        executor.clean("other")
        started.wait()
    assert "other" not in executor.running()


LISTENING = """
import socket
server = socket.create_server(("127.0.0.1", 8080))
while True:
    server.accept()[0].sendall(b"hi")
"""


def test_a_port_of_a_job_is_reached_from_outside(executor: BwrapExecutor, folder: Path) -> None:
    job = battery.python_task(folder, LISTENING, ports=(8080,))
    started = battery.launch(executor, job)
    assert launching.reached(lambda: executor.connect(job.attempt_id, 8080)) == b"hi"
    executor.clean(job.attempt_id)
    started.wait()
    with pytest.raises(ProcessLookupError):
        executor.connect(job.attempt_id, 8080)


def test_a_fork_bomb_ends_at_its_bound(executor: BwrapExecutor, folder: Path) -> None:
    """It makes no more processes than its limit, and all of them end together."""
    job = battery.python_task(folder, BOMBS["fork"])
    started = battery.launch(executor, job)
    until_true(lambda: b"forks" in started.out, lambda: str(started.err))
    assert int(started.out.split()[1]) < job.bounds.processes
    executor.stop(job.attempt_id, 0)
    assert job.attempt_id not in executor.running()
    executor.clean(job.attempt_id)
    started.wait()


@pytest.mark.parametrize("bomb", ["memory", "tmpfs"])
def test_a_memory_bomb_is_killed_and_reported(
    executor: BwrapExecutor, folder: Path, bomb: str
) -> None:
    """Its memory ends at its bound, temporary files counted, and other jobs keep theirs."""
    result = run(executor, folder, BOMBS[bomb])
    assert result.status != 0
    assert result.ending.is_out_of_memory, result
    if result.ending.max_memory_bytes is not None:
        assert result.ending.max_memory_bytes <= battery.BOUNDS.memory_bytes


def test_processor_time_is_bounded(executor: BwrapExecutor, folder: Path) -> None:
    """A job with a fifth of a core gets no more of it, however many processes it has."""
    program = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        break
end = time.monotonic() + 2
while time.monotonic() < end:
    pass
"""
    bounds = replace(battery.BOUNDS, cores=0.2)
    result = run(executor, folder, program, bounds=bounds)
    assert result.ending.cpu_seconds is not None
    assert result.ending.cpu_seconds < 1.2  # 2 s of four processes would be 4 on two cores


def test_a_job_is_asked_to_end_first(executor: BwrapExecutor, folder: Path) -> None:
    """Within the time of grace it ends by itself, with its own status."""
    job = battery.python_task(folder, BOMBS["polite"])
    started = battery.launch(executor, job)
    until_true(lambda: b"ready" in started.out)
    executor.stop(job.attempt_id, 20)
    assert started.wait() == 3
    assert b"asked to end" in started.out
    executor.clean(job.attempt_id)


def test_the_program_inside_can_be_signalled_by_itself(
    executor: BwrapExecutor, folder: Path
) -> None:
    """The supervisor does so at the end of the job's time: it knows only the program."""
    job = battery.python_task(folder, BOMBS["polite"])
    started = battery.launch(executor, job)
    until_true(lambda: b"ready" in started.out)
    family.ask(started.pid)
    assert started.wait() == 3
    executor.clean(job.attempt_id)


def test_a_deaf_job_ends_with_all_its_descendants(executor: BwrapExecutor, folder: Path) -> None:
    """SIGTERM ignored and a grandchild in a session of its own: nothing is left."""
    job = battery.python_task(folder, BOMBS["deaf"])
    started = battery.launch(executor, job)
    until_true(lambda: b"ready" in started.out and b"grandchild" in started.out)
    assert executor.running() >= {job.attempt_id}
    executor.stop(job.attempt_id, 0.05)
    started.wait()
    assert job.attempt_id not in executor.running()
    executor.clean(job.attempt_id)


def test_another_executor_finds_running_attempts(
    executor: BwrapExecutor, folder: Path, scope: str
) -> None:
    """An agent that was started anew knows nothing, and finds and ends it by its name."""
    job = battery.python_task(folder, BOMBS["deaf"])
    started = battery.launch(executor, job)
    until_true(lambda: b"ready" in started.out)
    for limits in (choose(scope=scope)[0], Unbounded()):
        assert limits is not None
        assert job.attempt_id in BwrapExecutor(limits, scope=scope).running()
    BwrapExecutor(Unbounded(), scope=scope).stop(job.attempt_id, 0)
    started.wait()
    executor.clean(job.attempt_id)
    assert job.attempt_id not in executor.running()


def test_an_agent_leaves_the_jobs_of_another_alone(executor: BwrapExecutor, folder: Path) -> None:
    """Two agents of one user know nothing of each other's attempts, even of the same name."""
    job = battery.python_task(folder, BOMBS["deaf"])
    started = battery.launch(executor, job)
    until_true(lambda: b"ready" in started.out)
    another = scope_of(folder)
    for limits in (choose(scope=another)[0], Unbounded()):
        assert limits is not None
        other = BwrapExecutor(limits, scope=another)
        assert other.running() == set()
        other.stop(job.attempt_id, 0)
        other.clean(job.attempt_id)
    assert not started.has_ended()
    executor.clean(job.attempt_id)
    started.wait()


def test_a_job_cannot_pass_for_another(executor: BwrapExecutor, folder: Path, scope: str) -> None:
    """A process that names itself as another attempt's sandbox is not taken for it."""
    program = f"""
import os
os.execv("/usr/bin/python3", [
    "bwrap", "-c", "import time; print('ready', flush=True); time.sleep(600)",
    "--args", "10", "--setenv", "PROXYD_AGENT", "{scope}", "--setenv", "PROXYD_ATTEMPT", "victim-1",
])
"""
    job = battery.python_task(folder, program)
    started = battery.launch(executor, job)
    try:
        until_true(lambda: b"ready" in started.out, lambda: str(started.err))
        assert "victim-1" not in executor.running()
        assert "victim-1" not in BwrapExecutor(Unbounded(), scope=scope).running()
    finally:
        executor.clean(job.attempt_id)
        started.wait()


def test_another_user_cannot_pass_for_a_job(executor: BwrapExecutor, scope: str) -> None:
    """The executor does not believe a command line that another user has made up."""
    if os.geteuid() != 0:
        pytest.skip("only root can start something as another user")
    words = ("PROXYD_AGENT", scope, "PROXYD_ATTEMPT", "victim-2")
    program = "print('ready', flush=True); import time; time.sleep(600)"
    with subprocess.Popen(
        ("setpriv", "--reuid", str(UID), "--clear-groups", battery.PYTHON, "-c", program, *words),
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert "victim-2" not in executor.running()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"image": "busybox:1"}, "refused"),
        ({"network": "egress"}, "refused"),
        ({"network": "host"}, "refused"),
        ({"command": ()}, "job"),
        ({"command": ("",)}, "job"),
        ({"command": ("a\0b",)}, "job"),
        ({"env": {"A=B": "c"}}, "job"),
        ({"env": {"PROXYD_ATTEMPT": "c"}}, "job"),
        ({"attempt_id": "../escape"}, "refused"),
        ({"gpus": ("GPU-none",)}, "host"),
        ({"bounds": Bounds(1.0, 1 << 20, 1 << 20, 64, 60)}, "refused"),
        ({"bounds": Bounds(1.0, 64 << 20, 1 << 20, 2, 60)}, "refused"),
    ],
)
def test_a_job_that_cannot_be_walled_in_is_refused(
    executor: BwrapExecutor, folder: Path, changes: dict[str, Any], kind: str
) -> None:
    """It is a refusal, never a job with fewer walls; and nothing stays behind."""
    before = executor.running()
    with pytest.raises(TaskError) as refusal:
        executor.prepare(battery.task(folder, "/bin/true", **changes))
    assert refusal.value.kind == kind
    assert executor.running() == before


def test_no_limits_no_job(folder: Path) -> None:
    """Where the kernel holds no limits nothing is started."""
    executor = BwrapExecutor(Cgroup1({}))
    assert not all(each.is_met for each in executor.check())
    with pytest.raises(TaskError) as refusal:
        executor.prepare(battery.task(folder, "/bin/true"))
    assert refusal.value.kind == "refused"


def test_a_missing_bubblewrap_has_a_remedy() -> None:
    """The check gives the remedy."""
    findings = BwrapExecutor(Unbounded(), program="/nowhere/bwrap").check()
    unmet = [each for each in findings if not each.is_met]
    assert [each.id for each in unmet] == ["bubblewrap"]
    assert "apt-get install" in unmet[0].remedy


def test_a_masked_proc_is_found_out(executor: BwrapExecutor, tmp_path: Path) -> None:
    """In a container, or a unit that hides parts of /proc, the check says so."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can mask a part of /proc")
    script = tmp_path / "check.py"
    script.write_text(
        "import json, os, sys\n"
        f"sys.path.insert(0, {str(Path('client').resolve())!r})\n"
        "from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor\n"
        "from proxyctl.worker.executors.limits.unbounded import Unbounded\n"
        f"os.setresuid({UID}, {UID}, {UID})\n"
        "rows = BwrapExecutor(Unbounded()).check()\n"
        "print(json.dumps([(each.id, each.is_met, each.remedy) for each in rows]))\n"
    )
    mask = f'mount --bind /dev/null /proc/version && exec "{battery.PYTHON}" "{script}"'
    shown = subprocess.run(
        ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", mask),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rows = {name: (is_met, remedy) for name, is_met, remedy in json.loads(shown.stdout)}
    assert not rows["user-namespaces"][0]
    assert "/proc" in rows["user-namespaces"][1]


def test_the_children_of_all_threads_of_a_process_are_its_children() -> None:
    program = (
        "import subprocess, threading\n"
        "def start():\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    print(child.pid, flush=True)\n"
        "    child.wait()\n"
        "threading.Thread(target=start).start()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert family.family((parent.pid,)) == [parent.pid, child]
        finally:
            os.kill(child, signal.SIGKILL)
