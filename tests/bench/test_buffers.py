"""The default limits are there while something is measured, and not a moment longer."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemons import process

from bench import buffers
from bench.buffers import DEFAULTS, BuffersError

TUNED = dict.fromkeys(DEFAULTS, "4194304") | {
    "net/ipv4/tcp_rmem": "4096\t131072\t33554432",
    "net/ipv4/tcp_wmem": "4096\t16384\t4194304",
}


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Return a folder with the limits of a machine that allows more."""
    for name, text in TUNED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    return tmp_path


def test_they_are_set_and_put_back(system: Path) -> None:
    before = buffers.present(system)
    assert not buffers.are_default(system)
    with buffers.default(system):
        assert buffers.present(system) == DEFAULTS
        assert buffers.are_default(system)
        assert buffers.described(system) == "`rmem_max` is 212,992, `wmem_max` 212,992 bytes."
    assert buffers.present(system) == before


def test_they_are_put_back_after_a_failure(system: Path) -> None:
    before = buffers.present(system)
    with pytest.raises(ZeroDivisionError), buffers.default(system):
        raise ZeroDivisionError
    assert buffers.present(system) == before


def test_a_limit_that_cannot_be_set_is_named_and_the_others_are_put_back(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = buffers.present(system)
    write = Path.write_text

    def refuse(path: Path, text: str) -> int:
        if path.name == "tcp_rmem" and text == DEFAULTS["net/ipv4/tcp_rmem"]:
            raise PermissionError(f"cannot write {path.name}")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(BuffersError, match="cannot write tcp_rmem; root alone"):
        with buffers.default(system):
            pytest.fail("measured")
    assert buffers.present(system) == before


MEASURING = """
import multiprocessing, sys, time
from pathlib import Path
from bench import buffers

def sleep():
    # In short pieces: Python handles a signal that comes just before a sleep begins after it.
    for _ in range(1_200):
        time.sleep(0.05)

def begin():
    print("begun", flush=True)
    sleep()

folder = Path(sys.argv[1])
with buffers.default(folder):
    child = multiprocessing.get_context("fork").Process(target=begin)
    child.start()
    sys.stdin.readline()
    child.terminate()
    child.join()
    print(child.exitcode, buffers.are_default(folder), flush=True)
    sleep()
"""


@pytest.mark.parametrize("number", buffers.ENDING)
def test_they_are_put_back_when_it_is_ended_by_a_signal(
    system: Path, number: signal.Signals
) -> None:
    """And not when a process of it is, while it goes on."""
    before = buffers.present(system)
    with subprocess.Popen(
        [sys.executable, "-c", MEASURING, str(system)],
        cwd=process.ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as measuring:
        assert measuring.stdin is not None
        assert measuring.stdout is not None
        assert measuring.stderr is not None
        try:
            assert measuring.stdout.readline() == "begun\n"
            measuring.stdin.write("\n")
            measuring.stdin.flush()
            assert measuring.stdout.readline() == f"{-signal.SIGTERM} True\n"
            measuring.send_signal(number)
            assert measuring.wait(30) == 128 + number
        finally:
            measuring.kill()
        assert buffers.command(before) in measuring.stderr.read()
    assert buffers.present(system) == before


def test_a_signal_has_its_earlier_handler_after_the_limits_are_put_back(system: Path) -> None:
    handlers = [signal.getsignal(number) for number in buffers.ENDING]
    with buffers.default(system):
        assert all(signal.getsignal(number) not in handlers for number in buffers.ENDING)
    assert [signal.getsignal(number) for number in buffers.ENDING] == handlers


def test_a_command_puts_them_back_by_hand() -> None:
    limits = {"net/core/rmem_max": "4194304", "net/ipv4/tcp_rmem": "4096 131072 33554432"}
    assert buffers.command(limits) == (
        "sysctl -w net.core.rmem_max='4194304' net.ipv4.tcp_rmem='4096 131072 33554432'"
    )


def test_the_limits_of_this_machine_can_be_read() -> None:
    assert set(buffers.present()) == set(DEFAULTS)
    assert "bytes" in buffers.described()
