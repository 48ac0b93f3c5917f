"""Tasks that prove the performance of a device, and the check of their results.

Processors: chains of hashes. Each link needs the one before, so a chain is as fast as one core. The
number of parallel chains is the number of cores. All links are handed in, and a few are computed
again.

Memory: blocks made from a seed, then a walk through them in which each step says where the next one
goes. A device that has the blocks walks without delay. A device without them makes half a block and
more for each step, one step after the other, and is late. All steps are handed in, and a few are
made again.

The tasks do not detect a program that is written to cheat: SHAKE-128 continues from a state of 200
bytes, so a program that keeps one state for every 64 KB of a block needs no block.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LINKS: Final = 16  # of a chain: the places at which it may be checked
STEP_BYTES: Final = 16  # too many to guess
_WORD_BYTES: Final = 64  # read at each step


@dataclass(frozen=True)
class Chains:
    """Task with parallel chains of hashes; each link has rounds of PBKDF2 with SHA-256."""

    seed: bytes
    chains: int
    rounds: int

    @property
    def hashes(self) -> int:
        """The number of all rounds together."""
        return self.chains * LINKS * self.rounds


@dataclass(frozen=True)
class Walk:
    """Task with a walk: blocks that are made from `seed`, and steps from `start`."""

    seed: bytes
    blocks: int
    block_bytes: int
    start: bytes
    steps: int


def chain(task: Chains, number: int) -> list[bytes]:
    """Return the links of a chain; it takes one core all the while, and no lock of Python's."""
    links, value = [], first(task, number)
    for _ in range(LINKS):
        value = link(task, value)
        links.append(value)
    return links


def first(task: Chains, number: int) -> bytes:
    """Return the first value of a chain."""
    return hashlib.sha256(task.seed + number.to_bytes(4, "big")).digest()


def link(task: Chains, value: bytes) -> bytes:
    """Return the link that follows."""
    return hashlib.pbkdf2_hmac("sha256", value, task.seed, task.rounds)


def is_link(task: Chains, links: Sequence[bytes], spot: int) -> bool:
    """Return whether one of the links of all chains, one chain after the other, is right."""
    number, at = divmod(spot, LINKS)
    before = links[spot - 1] if at else first(task, number)
    return link(task, before) == links[spot]


def block(seed: bytes, number: int, size: int) -> bytes:
    """Return a block; `hashlib` computes no part of it without the part before it."""
    return hashlib.shake_128(seed + number.to_bytes(8, "big")).digest(size)


def walk(task: Walk, read: Callable[[int, int, int], bytes]) -> list[bytes]:
    """Return the steps of a walk.

    Args:
        task: which.
        read: returns bytes of a block; its arguments are the block, the offset and the size.
    """
    steps, value = [], task.start
    for _ in range(task.steps):
        value = _step(value, read(*_place(task, value), _WORD_BYTES))
        steps.append(value)
    return steps


def is_step(task: Walk, steps: Sequence[bytes], spot: int) -> bool:
    """Return whether one of the steps is right; it makes the block that this leads to."""
    before = steps[spot - 1] if spot else task.start
    number, offset = _place(task, before)
    # The rest of the block is not needed.
    made = block(task.seed, number, offset + _WORD_BYTES)
    return _step(before, made[offset:]) == steps[spot]


def _place(task: Walk, value: bytes) -> tuple[int, int]:
    """Return the block that a step leads to, and the offset there: in its second half."""
    number = int.from_bytes(value[:8], "big") % task.blocks
    half = task.block_bytes // 2
    return number, half + int.from_bytes(value[8:], "big") % (half - _WORD_BYTES)


def _step(value: bytes, word: bytes) -> bytes:
    return hashlib.sha256(value + word).digest()[:STEP_BYTES]
