"""Tasks that a device does, and how a wrong answer is seen."""

import pytest

from proxyctl.protocol.benchmarks import (
    LINKS,
    STEP_BYTES,
    Chains,
    Walk,
    block,
    chain,
    is_link,
    is_step,
    walk,
)

CHAINS = Chains(b"seed", chains=3, rounds=7)
WALK = Walk(b"seed", blocks=5, block_bytes=4_096, start=b"begin here, then", steps=40)
BLOCKS = [block(WALK.seed, number, WALK.block_bytes) for number in range(WALK.blocks)]


def read(number: int, offset: int, size: int) -> bytes:
    return BLOCKS[number][offset : offset + size]


def test_every_link_of_an_honest_chain_is_right_and_no_other() -> None:
    links = [each for number in range(CHAINS.chains) for each in chain(CHAINS, number)]
    assert len(links) == CHAINS.chains * LINKS
    assert CHAINS.hashes == len(links) * CHAINS.rounds
    assert all(is_link(CHAINS, links, spot) for spot in range(len(links)))
    assert len(set(links)) == len(links)
    wrong = [*links[:20], bytes(32), *links[21:]]
    assert [spot for spot in range(len(links)) if not is_link(CHAINS, wrong, spot)] == [20, 21]
    lazy = Chains(CHAINS.seed, CHAINS.chains, CHAINS.rounds - 1)  # a round less
    less = [each for number in range(3) for each in chain(lazy, number)]
    assert not any(is_link(CHAINS, less, spot) for spot in range(len(links)))


def test_every_step_of_an_honest_walk_is_right_and_no_other() -> None:
    steps = walk(WALK, read)
    assert len(steps) == WALK.steps
    assert all(is_step(WALK, steps, spot) for spot in range(WALK.steps))
    wrong = [*steps[:9], bytes(STEP_BYTES), *steps[10:]]
    assert [spot for spot in range(WALK.steps) if not is_step(WALK, wrong, spot)] == [9, 10]


def test_a_walk_without_all_blocks_fails() -> None:
    def read_less(number: int, offset: int, size: int) -> bytes:
        return read(number, offset, size) if number else bytes(size)

    steps = walk(WALK, read_less)
    assert not all(is_step(WALK, steps, spot) for spot in range(WALK.steps))


@pytest.mark.parametrize("number", range(3))
def test_a_block_begins_as_a_shorter_one_does(number: int) -> None:
    assert block(b"seed", number, 100) == block(b"seed", number, 1_000)[:100]
