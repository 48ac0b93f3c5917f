"""proxyctl.worker.task.allowance: what may go through ports of jobs, whatever becomes of the
agent."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from proxyctl.worker.task.allowance import STEP_BYTES, Allowance

DAY = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2027, 3, 4, 12, tzinfo=UTC)
        self.seconds = 0.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(
    folder: Path, clock: Clock, *, day: int = DAY, per_second: float = 0, name: str = "ports.json"
) -> Allowance:
    return Allowance(folder / name, day, per_second, lambda: clock.now, lambda: clock.seconds)


def spend(allowance: Allowance) -> int:
    """Take all that may be taken, a read at a time; return how much that was."""
    spent = 0
    while most := allowance.left():
        size = min(most, 60_000)
        allowance.take(size)
        spent += size
    return spent


def test_the_bytes_of_a_day_are_bounded_and_the_next_day_has_them_again(
    tmp_path: Path, clock: Clock
) -> None:
    allowance = made(tmp_path, clock)
    assert not allowance.is_spent
    assert spend(allowance) == DAY
    assert allowance.is_spent
    clock.now += timedelta(hours=13)
    assert not allowance.is_spent
    assert spend(allowance) == DAY


def test_with_nothing_allowed_nothing_goes_through(tmp_path: Path, clock: Clock) -> None:
    allowance = made(tmp_path, clock, day=0)
    assert allowance.is_spent
    assert spend(allowance) == 0


@pytest.mark.parametrize("taken", [0, 1, 15_624, 15_625, 300_000, DAY])
def test_bytes_that_an_agent_has_spent_are_spent_for_the_next_one(
    tmp_path: Path, clock: Clock, taken: int
) -> None:
    for is_killed in (True, False):
        name = f"{is_killed}.json"
        allowance = made(tmp_path, clock, name=name)
        left = taken
        while left:
            size = min(left, allowance.left())
            allowance.take(size)
            left -= size
        if not is_killed:
            allowance.close()
        again = spend(made(tmp_path, clock, name=name))
        # A killed one loses the step that it was in, and never gains one.
        assert again == DAY - taken or (is_killed and 0 <= DAY - taken - again <= DAY // 64)


def test_a_large_allowance_is_not_written_down_byte_by_byte(tmp_path: Path, clock: Clock) -> None:
    allowance = made(tmp_path, clock, day=1 << 50)
    allowance.left()
    before = (tmp_path / "ports.json").stat().st_ino
    allowance.take(STEP_BYTES - 1)
    assert allowance.left() == 1
    assert (tmp_path / "ports.json").stat().st_ino == before
    allowance.take(1)
    assert allowance.left() == STEP_BYTES


def test_bytes_that_cannot_be_written_down_do_not_go_through(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "ports.json").mkdir()
    allowance = made(tmp_path, clock)
    assert allowance.left() == 0
    assert not allowance.is_spent
    (tmp_path / "ports.json").rmdir()
    assert allowance.left() == 0  # whoever knocks does not have it tried again each time
    clock.seconds += 10
    assert spend(allowance) == DAY


def test_a_connection_on_a_spent_day_writes_nothing(tmp_path: Path, clock: Clock) -> None:
    allowance = made(tmp_path, clock)
    spend(allowance)
    (tmp_path / "ports.json").unlink()
    assert allowance.left() == 0
    assert not (tmp_path / "ports.json").exists()


def test_a_file_that_says_nothing_begins_a_day(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "ports.json").write_text("{")
    assert spend(made(tmp_path, clock)) == DAY


def test_it_goes_no_faster_than_the_owner_allows(tmp_path: Path, clock: Clock) -> None:
    allowance = made(tmp_path, clock, day=1 << 40, per_second=1_000)
    sent = 0
    while clock.seconds < 100:
        sent += 700
        clock.seconds += allowance.take(700)
    assert sent <= 100 * 1_000 + 500 + 700
