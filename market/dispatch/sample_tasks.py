"""Tasks of samples: small scripts whose result is computed here, without running them.

Each is drawn anew: its computation, its numbers, its variables and the title of its job.
"""

import hashlib
from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct

from proxyctl.protocol.jobspec import Payload

ALGORITHMS: Final = ("sha256", "sha1", "blake2s", "sha512")
NAMES: Final = (
    *"abcdefhkmnpqruvwxyz",
    *("acc", "cur", "data", "item", "n_", "out", "res", "s_", "state", "tmp", "total", "val"),
)
KINDS: Final = ("batch", "chunk", "experiment", "part", "run", "shard", "sweep", "task", "trial")
ABOUT: Final = ("", "", "eval", "mc", "prep", "sim", "stats", "test", "walk")
TIMEOUTS: Final = (0, 600, 900, 1_200, 1_800, 3_600)


class SampleSizes(Struct, frozen=True):
    """The length of samples: each has a number of steps between these two.

    Python, or bash, needs half a second to a second for them, and this process less than that. No
    step is a long call of the interpreter's own, because other threads of the daemon would wait.
    """

    hashes: tuple[int, int] = (200_000, 400_000)
    steps: tuple[int, int] = (400_000, 800_000)
    numbers: tuple[int, int] = (4_000, 8_000)
    shell_steps: tuple[int, int] = (80_000, 160_000)


USUAL_SIZES = SampleSizes()


class Task(Struct, frozen=True):
    """Work of a sample, its title, and the right result."""

    title: str
    payload: Payload
    answer: str


def make(
    choose: Random,
    sizes: SampleSizes = USUAL_SIZES,
    templates: "tuple[Template, ...] | None" = None,
) -> Task:
    """Return a task.

    Args:
        choose: the source of chance, which no device may foresee.
        sizes: the length of samples.
        templates: the kinds of tasks; None for all.
    """
    script, interpreter, answer = choose.choice(templates or TEMPLATES)(choose, sizes)
    payload = Payload(
        script=script,
        interpreter="bash" if interpreter == "bash" else "python3",
        timeout_s=choose.choice(TIMEOUTS),
    )
    words = (choose.choice(ABOUT), choose.choice(KINDS), str(choose.randrange(1, 400)))
    title = choose.choice((" ", "-", "_")).join(word for word in words if word)
    return Task(title, payload, answer)


def _hash_chain(choose: Random, sizes: SampleSizes) -> tuple[str, str, str]:
    x, i = choose.sample(NAMES, 2)
    seed, algorithm = choose.randbytes(12).hex(), choose.choice(ALGORITHMS)
    rounds = choose.randrange(*sizes.hashes)
    script = (
        f'import hashlib\n\n{x} = b"{seed}"\nfor {i} in range({rounds}):\n'
        f"    {x} = hashlib.{algorithm}({x}).digest()\nprint({x}.hex())\n"
    )
    digest, step = seed.encode(), getattr(hashlib, algorithm)
    for _ in range(rounds):
        digest = step(digest).digest()
    return script, "python3", digest.hex()


def _numbers(choose: Random) -> tuple[int, int, int, int]:
    """Return a start, a factor, a summand and a modulus whose products fit into 63 bits."""
    modulus = choose.randrange(1 << 29, 1 << 30) | 1
    return (
        choose.randrange(modulus),
        choose.randrange(3, 1 << 30),
        choose.randrange(1, 999),
        modulus,
    )


def _folded(start: int, factor: int, summand: int, modulus: int, steps: int) -> int:
    value, total = start, 0
    for _ in range(steps):
        value = (value * factor + summand) % modulus
        total ^= value
    return total


def _sequence(choose: Random, sizes: SampleSizes) -> tuple[str, str, str]:
    x, t, i = choose.sample(NAMES, 3)
    start, factor, summand, modulus = _numbers(choose)
    steps = choose.randrange(*sizes.steps)
    script = (
        f"{x}, {t} = {start}, 0\nfor {i} in range({steps}):\n"
        f"    {x} = ({x} * {factor} + {summand}) % {modulus}\n    {t} ^= {x}\nprint({t})\n"
    )
    return script, "python3", str(_folded(start, factor, summand, modulus, steps))


def _walks(choose: Random, sizes: SampleSizes) -> tuple[str, str, str]:
    t, i, x, n = choose.sample(NAMES, 4)
    *_, factor, summand, modulus = _numbers(choose)
    low = choose.randrange(10_000, 1_000_000)
    high = low + choose.randrange(*sizes.numbers)
    script = (
        f"{t} = 0\nfor {i} in range({low}, {high}):\n    {x}, {n} = {i}, {summand}\n"
        f"    while {x} != 1:\n        {x} = {x} * 3 + 1 if {x} % 2 else {x} // 2\n"
        f"        {n} += 1\n    {t} = ({t} * {factor} + {n}) % {modulus}\nprint({t})\n"
    )
    total = 0
    for number in range(low, high):
        value, steps = number, summand
        while value != 1:
            value = value * 3 + 1 if value % 2 else value // 2
            steps += 1
        total = (total * factor + steps) % modulus
    return script, "python3", str(total)


def _shell(choose: Random, sizes: SampleSizes) -> tuple[str, str, str]:
    x, t, i = choose.sample(NAMES, 3)
    start, factor, summand, modulus = _numbers(choose)
    steps = choose.randrange(*sizes.shell_steps)
    script = (
        f"{x}={start}\n{t}=0\nfor (({i} = 0; {i} < {steps}; {i}++)); do\n"
        f"  (({x} = ({x} * {factor} + {summand}) % {modulus}, {t} ^= {x}))\ndone\necho ${t}\n"
    )
    return script, "bash", str(_folded(start, factor, summand, modulus, steps))


# Makes a script, its interpreter, and the answer.
Template = Callable[[Random, SampleSizes], tuple[str, str, str]]
TEMPLATES: Final[tuple[Template, ...]] = (_hash_chain, _sequence, _walks, _shell)
