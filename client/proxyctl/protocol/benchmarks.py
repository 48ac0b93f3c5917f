"""Tasks by which a device shows what it has, and how whoever set them sees that they were done.

Processors: chains of hashes, each link of which needs the one before, so that a chain is as fast as
one core, and as many chains at once as a machine has cores. All links are handed in, and a few are
computed again.

Memory: blocks made from a seed, then a walk through them in which each step says where the next
one goes. Whoever has the blocks walks in an instant. Whoever has not makes half a block and more
for each step, one after the other, and is late. All steps are handed in, and a few are made again.

Nobody who cheats with a program of their own is found: SHAKE-128 goes on from a state of 200 bytes,
and whoever keeps one for every 64 KB of a block needs no block.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LINKS: Final = 16  # of a chain: as many places at which it may be looked into
STEP_BYTES: Final = 16  # nobody guesses that
_WORD_BYTES: Final = 64  # read at each step


@dataclass(frozen=True)
class Chains:
    """So many chains at once, each link of so many rounds of PBKDF2 with SHA-256."""

    seed: bytes
    chains: int
    rounds: int

    @property
    def hashes(self) -> int:
        """How many rounds all of them are."""
        return self.chains * LINKS * self.rounds


@dataclass(frozen=True)
class Walk:
    """Blocks of so many bytes, made from `seed`; and so many steps through them from `start`."""

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
    """Return what a chain begins with."""
    return hashlib.sha256(task.seed + number.to_bytes(4, "big")).digest()


def link(task: Chains, value: bytes) -> bytes:
    """Return the link that follows."""
    return hashlib.pbkdf2_hmac("sha256", value, task.seed, task.rounds)


def is_link(task: Chains, links: Sequence[bytes], spot: int) -> bool:
    """Say whether one of the links of all chains, one chain after the other, is right."""
    number, at = divmod(spot, LINKS)
    before = links[spot - 1] if at else first(task, number)
    return link(task, before) == links[spot]


def block(seed: bytes, number: int, size: int) -> bytes:
    """Return a block; `hashlib` gives no part of it without what stands before it."""
    return hashlib.shake_128(seed + number.to_bytes(8, "big")).digest(size)


def walk(task: Walk, read: Callable[[int, int, int], bytes]) -> list[bytes]:
    """Return the steps of a walk.

    Args:
        task: which.
        read: returns so many bytes of a block from an offset on, in the order block, offset, size.
    """
    steps, value = [], task.start
    for _ in range(task.steps):
        value = _step(value, read(*_place(task, value), _WORD_BYTES))
        steps.append(value)
    return steps


def is_step(task: Walk, steps: Sequence[bytes], spot: int) -> bool:
    """Say whether one of the steps is right; it makes the block that this leads to."""
    before = steps[spot - 1] if spot else task.start
    number, offset = _place(task, before)
    # What follows in the block is not needed.
    made = block(task.seed, number, offset + _WORD_BYTES)
    return _step(before, made[offset:]) == steps[spot]


def _place(task: Walk, value: bytes) -> tuple[int, int]:
    """Return the block that a step leads to, and the offset there: in its second half."""
    number = int.from_bytes(value[:8], "big") % task.blocks
    half = task.block_bytes // 2
    return number, half + int.from_bytes(value[8:], "big") % (half - _WORD_BYTES)


def _step(value: bytes, word: bytes) -> bytes:
    return hashlib.sha256(value + word).digest()[:STEP_BYTES]
