"""The commands as programs, on the oldest Python that devices may have and on that of the tests."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.pythons import NEWEST, OLDEST, pythons
from support.base.waiting import until
from support.daemons import forked_client
from support.daemons.process import ROOT
from support.exits.api import exit_api
from support.exits.daemon import ExitDaemon
from support.targets import targets

from proxyctl import files
from proxyctl.exit.base import names
from proxyctl.protocol.frames import DialOutcome, ServiceLimits, Sorry

LOOPBACK = (ip_address("127.0.0.1"),)
IN_VAIN = 2


class Device:
    """Runs commands in a folder of its own."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python = python
        self.folder = folder
        self.running: list[asyncio.subprocess.Process] = []

    def words(self, command: str, *words: str) -> list[str]:
        return ["exit", command, *words, "--folder", str(self.folder)]

    def line(self, command: str, *words: str) -> list[str]:
        return [self.python, "-m", "proxyctl", *self.words(command, *words)]

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "client"), "HOME": "/nonexistent"}

    async def say(self, command: str, *words: str, typed: str = "") -> tuple[int, str]:
        """Run a command to its end; return its status and all that it printed."""
        done = await asyncio.to_thread(
            forked_client.run,
            self.words(command, *words),
            {**self.environment(), "PROXYCTL_TOKEN": "a worker token"},
            typed=typed,
            are_mixed=True,
            python=self.python,
        )
        return done.returncode, done.stdout

    async def run(self, *words: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self.line("run", *words),
            env=self.environment(),
            stderr=subprocess.PIPE,
        )
        self.running.append(process)
        return process

    async def agree(self, daemon: ExitDaemon, *words: str) -> str:
        with exit_api(port=daemon.port, certificate_sha256=daemon.pin) as api:
            status, printed = await self.say("consent", "--api", api.url, *words, typed="yes\n")
        assert status == 0, printed
        return printed


@pytest.fixture(params=brief(pythons()), ids=lambda path: Path(path).name)
async def device(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Device]:
    made = Device(request.param, tmp_path / "device")
    yield made
    for process in made.running:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[ExitDaemon]:
    made = ExitDaemon(tmp_path)
    async with made.serving():
        yield made


async def test_the_life_of_an_exit(device: Device, daemon: ExitDaemon) -> None:
    await device.agree(daemon, "--bytes-per-day", "1GB", "--hours", "00:00-23:59")
    process = await device.run("--allow", "127.0.0.0/8")
    await daemon.attached()
    await daemon.park(2)
    async with targets.echo() as target:
        dialled, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        assert dialled.outcome is DialOutcome.CONNECTED
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert await device.say("pause") == (0, "Paused.\n")
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert await device.say("resume") == (0, "Resumed.\n")

    def paused() -> object:
        return (files.read(device.folder / names.STATE) or {}).get("paused")

    await until(lambda: paused() == "")
    assert daemon.control is not None
    daemon.control.send(ServiceLimits(0, 0, 0, (), "paused in the account"))
    await until(lambda: paused() == "paused in the account")
    assert "resting: paused in the account" in (await device.say("status"))[1]
    daemon.control.send(ServiceLimits(0, 0, 0, ()))
    await until(lambda: paused() == "")
    status, printed = await device.say("status")
    assert status == 0
    assert f"running as process {process.pid}: attached to 127.0.0.1" in printed
    with exit_api() as api:
        stored = files.read(device.folder / names.CONSENT) or {}
        files.write(device.folder / names.CONSENT, {**stored, "api": api.url})
        status, printed = await device.say("revoke")
        assert (status, api.revoked) == (0, ["a worker token"]), printed
    _, errors = await process.communicate()
    assert process.returncode == 0
    assert b"STRANGERS MAY REACH 127.0.0.0/8" in errors
    assert b"the consent of this device was withdrawn" in errors
    assert b"a worker token" not in errors
    assert b"Traceback" not in errors
    status, printed = await device.say("status")
    assert status == 1
    assert f"127.0.0.1:{target.port}" in printed
    assert (await device.say("run"))[0] == IN_VAIN


@pytest.mark.parametrize(
    "device", brief(pythons(OLDEST, NEWEST)), indirect=True, ids=lambda path: Path(path).name
)
async def test_every_byte_arrives_as_it_was_sent(device: Device, daemon: ExitDaemon) -> None:
    data = targets.pattern(10_000_000)
    await device.agree(daemon)
    await device.run("--allow", "127.0.0.0/8")
    await daemon.attached()
    await daemon.park(3)

    async def echoed(port: int) -> bytes:
        _, (reader, writer) = await daemon.dial(LOOPBACK, port)

        async def send() -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        received = bytearray()
        while block := await reader.read(65_536):
            received += block
            await asyncio.sleep(0)  # slowly: buffers on the way fill, and are emptied
        await sending
        writer.close()
        return bytes(received)

    async with targets.echo() as target:
        results = await asyncio.gather(*(echoed(target.port) for _ in range(3)))
    assert [result == data for result in results] == [True] * 3


# Modules that `run` does not need, by the memory that they take, largest first.
SPARED = ("urllib.request", "email", "http.client", "tempfile", "secrets", "shutil", "ctypes")


@pytest.mark.long
async def test_it_needs_little_memory_while_it_waits(device: Device, daemon: ExitDaemon) -> None:
    # A start that compiles its modules keeps a megabyte of the memory of the compiler. Only the
    # first start of a checkout compiles them.
    compiling = [device.python, "-m", "compileall", "-q", str(ROOT / "client" / "proxyctl")]
    subprocess.run(compiling, check=True)
    await device.agree(daemon)
    process = await device.run()
    await daemon.attached()
    await daemon.park(16)
    rows = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    kibibytes = {row.split(":")[0]: int(row.split()[1]) for row in rows if row.startswith("Rss")}
    assert kibibytes["RssAnon"] * 1024 < 16_000_000  # the rest are pages of files, which are shared
    loaded = f"sorted({set(SPARED)} & set(sys.modules))"
    script = f"import proxyctl.exit.commands.commands, sys; print({loaded})"
    done = subprocess.run(
        [device.python, "-c", script],
        env=device.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done


async def test_consent_names_the_next_command_unless_a_script_asks(
    device: Device, daemon: ExitDaemon
) -> None:
    assert "proxyctl exit run --folder" in await device.agree(daemon)
    again = await device.agree(daemon, "--unless-agreed")
    assert "Agreed" in again
    assert "proxyctl exit run" not in again


async def test_it_does_not_run_without_consent(device: Device, daemon: ExitDaemon) -> None:
    status, printed = await device.say("run")
    assert status == IN_VAIN
    assert "no user of this device has agreed yet; run: proxyctl exit consent" in printed
    with exit_api(port=daemon.port) as api:
        status, printed = await device.say("consent", "--api", api.url, typed="no\n")
    assert status == 1
    assert "nothing was agreed to" in printed
    assert (await device.say("run"))[0] == IN_VAIN
    assert daemon.accepted == 0


async def test_it_ends_when_the_terms_have_changed(device: Device, daemon: ExitDaemon) -> None:
    await device.agree(daemon)
    daemon.reply = Sorry("terms_changed", "There are new terms.", 5)
    status, printed = await device.say("run")
    assert status == IN_VAIN
    assert printed.count("There are new terms; the terms have changed") == 1
    assert "run: proxyctl exit consent" in printed


async def test_a_reader_that_has_seen_enough_is_no_mishap(device: Device) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    process = await asyncio.create_subprocess_exec(
        *device.line("status"), env=device.environment(), stdout=writes, stderr=subprocess.PIPE
    )
    os.close(writes)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (1, b"")


async def test_it_runs_once(device: Device, daemon: ExitDaemon) -> None:
    await device.agree(daemon)
    process = await device.run()
    await daemon.attached()
    status, printed = await device.say("run")
    assert status == 1
    assert f"this exit runs already, as process {process.pid}" in printed
    process.kill()  # the files of a dead process do not stop the next one
    await process.communicate()
    await device.run()
    await daemon.attached(2)


@pytest.mark.parametrize("number", brief([signal.SIGTERM, signal.SIGINT]))
async def test_a_signal_ends_it_in_order(
    device: Device, daemon: ExitDaemon, number: signal.Signals
) -> None:
    await device.agree(daemon)
    process = await device.run()
    await daemon.attached()
    process.send_signal(number)
    _, errors = await process.communicate()
    assert process.returncode == 0
    assert errors.rstrip().endswith(b"ended: stopped")
    assert not (device.folder / names.STATE).exists()


@pytest.mark.long
async def test_a_pin_on_the_command_line_counts(device: Device, daemon: ExitDaemon) -> None:
    await device.agree(daemon)
    process = await device.run("--pin", "00" * 32)
    assert process.stderr is not None
    line = await process.stderr.readline()
    assert b"another certificate" in line
    assert daemon.hellos == []
    status, printed = await device.say("run", "--pin", "00")
    assert status == IN_VAIN
    assert "64 hexadecimal digits" in printed


async def test_a_pause_without_an_agent_waits_for_one(device: Device, daemon: ExitDaemon) -> None:
    await device.agree(daemon)
    assert "the next one begins paused" in (await device.say("pause"))[1]
    await device.run()
    await daemon.attached()
    assert daemon.hellos[0].paused == "paused by the owner of this device"


async def test_limits_are_kept_unless_they_are_named(device: Device, daemon: ExitDaemon) -> None:
    await device.agree(daemon, "--bytes-per-day", "1.5GB", "--port", "443", "--on-metered")
    await device.agree(daemon, "--connections", "4")
    limits = (files.read(device.folder / names.CONSENT) or {})["limits"]
    assert limits["bytes_per_day"] == 1_500_000_000
    assert (limits["ports"], limits["on_metered"], limits["connections"]) == ([443], True, 4)
    status, printed = await device.say("consent", "--api", "http://127.0.0.1:1", "--hours", "9-17")
    assert status == 1
    assert "limits.hours: must be like 22:00-07:00" in printed
    assert (await device.say("consent", "--api", "x", "--bytes-per-day", "much"))[0] == 2


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--port", "25"), "no exit ever uses the port 25"),
        (("--port", "http"), "'http' is no port"),
        (("--hours", "07:00-07:00"), "begins and ends at the same time"),
    ],
)
async def test_a_limit_without_effect_is_refused(
    device: Device, option: tuple[str, str], words: str
) -> None:
    status, printed = await device.say("consent", "--api", "http://127.0.0.1:1", *option)
    assert status == 2
    assert words in printed


def test_the_agent_imports_only_the_standard_library() -> None:
    script = (
        f"import sys; sys.path.append({str(ROOT / 'client')!r}); "
        "before = set(sys.modules); import proxyctl.__main__; "
        "print(' '.join({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.append({str(ROOT / 'client')!r}); {script}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) <= {*sys.stdlib_module_names, "proxyctl"}
