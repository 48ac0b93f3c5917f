"""The bytes that are in memory for clients are bounded for each network and in all."""

import pytest

from api.http.limits import ApiLimits
from api.http.memory import Memory
from market.base.errors import Code, MarketError

FIRST, SECOND, THIRD = "192.0.2.1", "192.0.2.2", "192.0.2.3"


@pytest.fixture
def memory() -> Memory:
    return Memory(ApiLimits(memory=1_000, memory_per_network=400))


def is_refused(memory: Memory, network: str, size: int) -> bool:
    """Take `size` bytes. Return whether that was refused; a refusal must not change the count."""
    held = memory.total
    try:
        memory.take(network, size)
    except MarketError as error:
        code = error.code
    else:
        return False
    assert (code, memory.total) == (Code.TOO_BUSY, held)
    return True


def test_a_network_has_its_bound_and_another_one_its_own(memory: Memory) -> None:
    assert not is_refused(memory, FIRST, 400)
    assert is_refused(memory, FIRST, 1)
    assert not is_refused(memory, SECOND, 400)


def test_all_together_have_theirs(memory: Memory) -> None:
    assert not is_refused(memory, FIRST, 400)
    assert not is_refused(memory, SECOND, 400)
    assert is_refused(memory, THIRD, 201)
    assert not is_refused(memory, THIRD, 200)
    assert memory.total == 1_000


def test_returned_memory_can_be_taken_again(memory: Memory) -> None:
    memory.take(FIRST, 400)
    memory.give(FIRST, 150)
    assert is_refused(memory, FIRST, 151)
    assert not is_refused(memory, FIRST, 150)
    memory.give(FIRST, 400)
    assert memory.total == 0


def test_a_check_takes_nothing(memory: Memory) -> None:
    memory.check(FIRST, 400)
    assert memory.total == 0
    with pytest.raises(MarketError):
        memory.check(FIRST, 401)


def test_other_limits_hold_at_once(memory: Memory) -> None:
    memory.take(FIRST, 400)
    memory.limits = ApiLimits(memory=1_000, memory_per_network=500)
    assert not is_refused(memory, FIRST, 100)
    assert is_refused(memory, FIRST, 1)
