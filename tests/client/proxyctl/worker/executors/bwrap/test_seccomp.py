"""proxyctl.worker.executors.bwrap.seccomp: the program, run here instruction by instruction."""

import errno
import platform
import struct

import pytest
from support.base.cases import cases

from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.bwrap import seccomp
from proxyctl.worker.executors.bwrap.seccomp import AllowList
from proxyctl.worker.executors.bwrap.syscalls import ARCHITECTURES, CHECKED, NEWEST, NUMBERS

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
ALLOW = 0x7FFF0000
STEPS_MAX = 4096  # the kernel's limit


def verdict(
    machine: str,
    number: int,
    *arguments: int,
    architecture: int | None = None,
    calls: AllowList | None = None,
) -> int:
    """Run a program on one call. Return 0 if the call is allowed, else the error."""
    code = seccomp.program_of(calls, machine) if calls else seccomp.program(machine)
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    assert len(steps) <= STEPS_MAX
    wide = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    audit = AUDIT[machine] if architecture is None else architecture
    call = struct.pack("=IIQ6Q", number, audit, 0, *wide)
    accumulator, at = 0, 0
    while True:
        operation, on_true, on_false, value = steps[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", call, value)
        elif operation == 0x05:
            at += value
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x06:
            return 0 if value == ALLOW else value & 0xFFFF
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: accumulator & value != 0,
            }[operation]
            at += on_true if holds else on_false


@cases("machine", ARCHITECTURES)
def test_each_number_is_judged_as_the_table_says(machine: str) -> None:
    """The numbers in the table are allowed, and no other one, also of another architecture."""
    allowed = set(seccomp.numbers_of(NUMBERS, machine).values())
    checked = set(seccomp.numbers_of(CHECKED, machine).values())
    assert len(allowed) > 200
    for number in range(NEWEST + 50):
        if number not in checked:
            known = errno.EPERM if number <= NEWEST else errno.ENOSYS
            assert verdict(machine, number) == (0 if number in allowed else known), number
    assert "io_setup" not in seccomp.numbers_of(NUMBERS, machine)  # few are available on a machine
    read = seccomp.numbers_of(NUMBERS, machine)["read"]
    assert verdict(machine, read, architecture=I386) == errno.EPERM
    if machine == "x86_64":
        assert verdict(machine, 0x40000000 | read) == errno.EPERM


@cases("machine", ARCHITECTURES)
def test_arguments_are_judged_by_their_low_half(machine: str) -> None:
    """High bits that the kernel ignores change nothing."""
    number = seccomp.numbers_of(CHECKED, machine)
    high = 1 << 32
    for bits in (0x10000000, 0x00020000, 0x40000000, 0x02000000):
        assert verdict(machine, number["clone"], bits | 17) == errno.EPERM
        assert verdict(machine, number["clone"], bits | 17 | high) == errno.EPERM
    assert verdict(machine, number["clone"], 0x3D0F00) == 0  # a thread
    assert verdict(machine, number["clone3"]) == errno.ENOSYS
    for request in (0x5412, 0x541C, 0x5412 | high):
        assert verdict(machine, number["ioctl"], 0, request) == errno.EPERM
    assert verdict(machine, number["ioctl"], 0, 0x5413) == 0
    for family in (1, 2, 10, 2 | high):
        assert verdict(machine, number["socket"], family) == 0
    for family in (0, 17, 38, 40, 17 | high):
        assert verdict(machine, number["socket"], family) == errno.EAFNOSUPPORT
    for family in (16, 16 | high):  # netlink
        assert verdict(machine, number["socket"], family) == errno.EOPNOTSUPP
    assert verdict(machine, number["personality"], 0) == 0
    assert verdict(machine, number["personality"], 0x0400000) == errno.EPERM


@cases("machine", ARCHITECTURES)
def test_a_list_allows_its_calls_by_their_arguments_and_no_others(machine: str) -> None:
    calls = AllowList(
        names=("read", "open"),  # aarch64 has no open
        by_value=(("fcntl", 1, (1, 3)),),
        unless_bits=(("openat", 2, 3),),
        unknown=("openat2",),
    )
    numbers = seccomp.numbers_of(NUMBERS, machine)
    high = 1 << 32
    cases = {
        "read": {(): 0, (9, 9, 9): 0},
        "fcntl": {(0, 1): 0, (0, 3): 0, (0, 1 | high): 0, (0, 2): errno.EPERM, (0, 8): errno.EPERM},
        "openat": {
            (0, 0, 0): 0, (0, 0, 1): 0, (0, 0, 0o102): 0, (0, 0, 2 | high): 0,
            (0, 0, 3): errno.EPERM, (0, 0, 0o1003): errno.EPERM, (0, 0, 3 | high): errno.EPERM,
        },
        "openat2": {(): errno.ENOSYS},
        "write": {(): errno.EPERM},
    }  # fmt: skip
    for name, verdicts in cases.items():
        for arguments, expected in verdicts.items():
            judged = verdict(machine, numbers[name], *arguments, calls=calls)
            assert judged == expected, (name, arguments)
    others = set(range(NEWEST)) - {numbers[name] for name in cases} - {numbers.get("open", -1)}
    assert {verdict(machine, number, calls=calls) for number in others} == {errno.EPERM}
    assert verdict(machine, NEWEST + 1, calls=calls) == errno.ENOSYS
    assert verdict(machine, numbers["read"], architecture=I386, calls=calls) == errno.EPERM


def test_engines_get_the_same_filter() -> None:
    """The JSON form allows the same calls; where it judges an argument, it does so bit by bit."""
    profile = seccomp.engine_profile()
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    plain = {
        name
        for rule in profile["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule
        for name in rule["names"]
    }
    assert plain == {line.split()[0] for line in NUMBERS.split("\n") if line}
    masks = [
        (rule["args"][0]["value"], rule["args"][0]["valueTwo"])
        for rule in profile["syscalls"]
        if rule["names"] == ["ioctl"]
    ]

    def is_allowed(request: int) -> bool:
        return any(request & mask == value for mask, value in masks)

    for request in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x541C | 1 << 63):
        assert not is_allowed(request)
    assert all(is_allowed(each) for each in range(0x10000) if each not in (0x5412, 0x541C))
    assert all(is_allowed(1 << bit) for bit in range(32))


def test_another_processor_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a table there is no filter, and so no job."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(TaskError, match="riscv64") as refusal:
        seccomp.architecture()
    assert refusal.value.kind == "refused"
