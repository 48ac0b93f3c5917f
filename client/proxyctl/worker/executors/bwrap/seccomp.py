"""The filter of system calls that every job runs under, as a program for the kernel.

One table (`syscalls.py`) gives two forms: classic BPF, made here instruction by instruction, for
sandboxes that we start ourselves; and the JSON that container engines read.
"""

from __future__ import annotations

import errno
import itertools
import platform
import struct
from functools import cache
from typing import Any, Final, NamedTuple

from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.bwrap.syscalls import ARCHITECTURES, CHECKED, NEWEST, NUMBERS

_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_* of linux/audit.h

# struct seccomp_data: the number, the architecture, then the arguments, of 64 bits each.
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16
_ARGUMENT_BYTES: Final = 8

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_JUMP_IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_JUMP_MAX: Final = 255  # instructions; an offset has 8 bits

_ALLOW: Final = 0x7FFF0000  # SECCOMP_RET_ALLOW
_REFUSE: Final = 0x00050000  # SECCOMP_RET_ERRNO, with the error in the low bits

_NEW_NAMESPACES: Final = (
    0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
)
_TIOCSTI: Final = 0x5412  # types into a terminal, as if its user had
_TIOCLINUX: Final = 0x541C  # pastes into the console
_FAMILIES: Final = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
# Refused as where a system has no such sockets: ZeroMQ, and with it each kernel of a notebook, ends
# itself with any other error when it looks for the names of interfaces.
_NETLINK: Final = 16
# Linux as usual; addresses that are not random, as debuggers and old programs want them.
_PERSONALITIES: Final = (0x0, 0x0040000, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)

Instruction = bytes


class _Rule(NamedTuple):
    """The code for the numbers from this one on."""

    start: int
    code: list[Instruction]


def architecture() -> str:
    """Return the name of the processor here.

    Raises:
        TaskError: there is no table for it, so no job of others may run.
    """
    name = platform.machine()
    if name not in ARCHITECTURES:
        known = " or ".join(ARCHITECTURES)
        raise TaskError("refused", f"jobs run on {known} only; this processor is called {name!r}")
    return name


def numbers_of(table: str, machine: str) -> dict[str, int]:
    """Return the numbers of a table's system calls on one architecture, without those it lacks."""
    column = 1 + ARCHITECTURES.index(machine)
    rows = (line.split() for line in table.split("\n") if line)
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


@cache
def program(machine: str) -> bytes:
    """Return the filter as an array of `struct sock_filter`.

    Args:
        machine: one of `ARCHITECTURES`. A call from another one (32-bit code, x32) is refused.
    """
    return _assembled(_codes(machine), machine)


class AllowList(NamedTuple):
    """System calls that a process may make; all names are of the tables of `syscalls.py`.

    Attributes:
        names: calls with any arguments; an architecture may lack some.
        by_value: calls by the value of one argument: name, number of the argument from 0, values.
        unless_bits: calls unless all these bits of one argument are set: name, number, bits.
        unknown: calls that fail as on a kernel without them.
    """

    names: tuple[str, ...]
    by_value: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
    unless_bits: tuple[tuple[str, int, int], ...] = ()
    unknown: tuple[str, ...] = ()


@cache
def program_of(calls: AllowList, machine: str) -> bytes:
    """Return a filter that allows only these system calls.

    Args:
        calls: the allowed ones; of arguments the low 32 bits are judged.
        machine: one of `ARCHITECTURES`; a call from another one is refused.
    """
    numbers = {**numbers_of(NUMBERS, machine), **numbers_of(CHECKED, machine)}
    allow = _instruction(_RETURN, _ALLOW)
    codes = {numbers[each]: [allow] for each in calls.names if each in numbers}
    for name, argument, values in calls.by_value:
        codes[numbers[name]] = _by_value(argument, values, errno.EPERM, is_allowed=True)
    for name, argument, bits in calls.unless_bits:
        if name in numbers:
            codes[numbers[name]] = [
                _load_argument(argument),
                _instruction(_AND, bits),
                _instruction(_JUMP_IF_EQUAL, bits, 0, 1),
                _refusal(errno.EPERM),
                allow,
            ]
    codes.update({numbers[name]: [_refusal(errno.ENOSYS)] for name in calls.unknown})
    return _assembled(codes, machine)


def engine_profile() -> dict[str, Any]:
    """Return the same filter in the JSON form that podman, docker and runc read."""
    names = sorted({line.split()[0] for line in NUMBERS.split("\n") if line})
    low = 0xFFFFFFFF  # the kernel reads these arguments as numbers of 32 bits
    allow = "SCMP_ACT_ALLOW"
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [
            {"names": names, "action": allow},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
            {"names": ["clone"], "action": allow, "args": [_masked(0, _NEW_NAMESPACES, 0)]},
            *(
                {"names": ["socket"], "action": allow, "args": [_masked(0, low, family)]}
                for family in _FAMILIES
            ),
            {
                "names": ["socket"],
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": errno.EOPNOTSUPP,
                "args": [_masked(0, low, _NETLINK)],
            },
            *(
                {"names": ["personality"], "action": allow, "args": [_masked(0, low, value)]}
                for value in _PERSONALITIES
            ),
            *(
                {"names": ["ioctl"], "action": allow, "args": [_masked(1, mask, value)]}
                for mask, value in _neither(_TIOCSTI, _TIOCLINUX)
            ),
        ],
    }


def _assembled(codes: dict[int, list[Instruction]], machine: str) -> bytes:
    """Return a program that runs the code of each number, and refuses all other numbers."""
    code = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_JUMP_IF_EQUAL, _AUDIT[machine], 1, 0),
        _refusal(errno.EPERM),
        _instruction(_LOAD, _NUMBER_AT),
        *_search(_rules(codes, machine)),
    ]
    return b"".join(code)


def _codes(machine: str) -> dict[int, list[Instruction]]:
    """Return the code of each number that a job may call, or may call by its arguments."""
    numbers = numbers_of(CHECKED, machine)
    codes: dict[int, list[Instruction]] = {
        number: [_instruction(_RETURN, _ALLOW)] for number in numbers_of(NUMBERS, machine).values()
    }
    codes[numbers["clone"]] = _unless_any_bit(0, _NEW_NAMESPACES)
    codes[numbers["clone3"]] = [_refusal(errno.ENOSYS)]  # its flags lie where no filter can look
    codes[numbers["ioctl"]] = _by_value(1, (_TIOCSTI, _TIOCLINUX), errno.EPERM, is_allowed=False)
    codes[numbers["socket"]] = _sockets()
    codes[numbers["personality"]] = _by_value(0, _PERSONALITIES, errno.EPERM, is_allowed=True)
    return codes


def _rules(codes: dict[int, list[Instruction]], machine: str) -> list[_Rule]:
    """Return the code of every number, once for each range of numbers with the same code."""
    refuse = [_refusal(errno.EPERM)]
    rules: list[_Rule] = []
    for number in range(NEWEST + 1):
        code = codes.get(number, refuse)
        if not rules or rules[-1].code != code:
            rules.append(_Rule(number, code))
    rules.append(_Rule(NEWEST + 1, [_refusal(errno.ENOSYS)]))
    if machine == "x86_64":
        rules.append(_Rule(0x40000000, refuse))  # x32: other numbers for the same calls
    return rules


def _search(rules: list[_Rule]) -> list[Instruction]:
    """Return code that finds the rule of the number in the accumulator, by halves."""
    if len(rules) == 1:
        return rules[0].code
    half = len(rules) // 2
    below, above = _search(rules[:half]), _search(rules[half:])
    if len(below) > _JUMP_MAX:
        # The condition the other way round, over a jump that may be long (BPF_JMP | BPF_JA).
        long_jump = struct.pack("=HBBI", 0x05, 0, 0, len(below))
        return [_instruction(_JUMP_IF_AT_LEAST, rules[half].start, 0, 1), long_jump, *below, *above]
    return [_instruction(_JUMP_IF_AT_LEAST, rules[half].start, len(below), 0), *below, *above]


def _unless_any_bit(argument: int, bits: int) -> list[Instruction]:
    return [
        _load_argument(argument),
        _instruction(_JUMP_IF_ANY_BIT, bits, 0, 1),
        _refusal(errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]


def _sockets() -> list[Instruction]:
    """Return code that allows some families of sockets, and refuses one with its own error."""
    compare = [
        _instruction(_JUMP_IF_EQUAL, family, len(_FAMILIES) - index + 2, 0)
        for index, family in enumerate(_FAMILIES)
    ]
    return [
        _load_argument(0),
        *compare,
        _instruction(_JUMP_IF_EQUAL, _NETLINK, 0, 1),
        _refusal(errno.EOPNOTSUPP),
        _refusal(errno.EAFNOSUPPORT),
        _instruction(_RETURN, _ALLOW),
    ]


def _by_value(
    argument: int, values: tuple[int, ...], error: int, *, is_allowed: bool
) -> list[Instruction]:
    """Return code that allows these values and no others, or all others and not these."""
    allow, refuse = _instruction(_RETURN, _ALLOW), _refusal(error)
    on_match, otherwise = (allow, refuse) if is_allowed else (refuse, allow)
    compare = [
        _instruction(_JUMP_IF_EQUAL, value, len(values) - index, 0)
        for index, value in enumerate(values)
    ]
    return [_load_argument(argument), *compare, otherwise, on_match]


def _load_argument(argument: int) -> Instruction:
    """Load the low 32 bits of an argument (both architectures have them first).

    The kernel looks at no others of the arguments that are judged here, so that setting a high bit
    must not change the verdict.
    """
    return _instruction(_LOAD, _ARGUMENTS_AT + _ARGUMENT_BYTES * argument)


def _refusal(error: int) -> Instruction:
    return _instruction(_RETURN, _REFUSE | error)


def _instruction(code: int, value: int, on_true: int = 0, on_false: int = 0) -> Instruction:
    return struct.pack("=HBBI", code, on_true, on_false, value)


def _masked(argument: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _neither(first: int, second: int) -> list[tuple[int, int]]:
    """Return (mask, value) pairs; a number of 32 bits that is neither of two fits one of them.

    The rules of engines can only allow, and cannot compare one argument twice as "not equal".
    """
    differing = first ^ second
    # Where both have the same bit, a number with the other bit is neither.
    alike = (1 << place for place in range(32) if not differing >> place & 1)
    pairs = [(bit, ~first & bit) for bit in alike]
    bits = [1 << place for place in range(32) if differing >> place & 1]
    for chosen in itertools.product((0, 1), repeat=len(bits)):
        value = sum(bit for bit, is_set in zip(bits, chosen) if is_set)
        if value not in (first & differing, second & differing):
            pairs.append((differing, value))
    return pairs
