"""Slots: a limit in total, a limit per caller, and a bounded queue whose callers take turns."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from support.base.cases import cases
from support.base.waiting import until

from market.base.errors import Code, MarketError
from market.base.slots import Busy, SlotBounds, Slots


class Work:
    """Holder of slots by name, until each is released."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._leave: dict[str, asyncio.Event] = {}
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, *callers: str, **wish: Any) -> None:
        self._leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, callers, wish))
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._leave[name].set()
        await self.tasks.pop(name)
        await asyncio.sleep(0)

    async def end_all(self) -> None:
        for leave in self._leave.values():
            leave.set()
        await asyncio.gather(*self.tasks.values())

    async def _hold(self, name: str, callers: tuple[str, ...], wish: dict[str, Any]) -> None:
        async with self._slots.slot(*callers, **wish):
            self.order.append(name)
            await self._leave[name].wait()


def is_idle(slots: Slots) -> bool:
    """Return whether no slot is held, no claim waits, and all counts are zero."""
    counts = (slots._in_use_of, slots._sizes_of, slots._queue_of)
    held = slots._in_use or slots._in_use_unknown
    return not (held or slots._queue or slots._waiting or any(counts))


async def test_waiting_holders_are_served_in_the_order_they_came_in() -> None:
    slots = Slots(SlotBounds(total=2, queue=10))
    work = Work(slots)
    for name in "abcdef":
        await work.begin(name, "ann")
    assert work.order == ["a", "b"]
    await work.end("b")
    assert work.order == ["a", "b", "c"]
    await work.end_all()
    assert work.order == list("abcdef")
    assert is_idle(slots)


async def test_a_holder_with_enough_is_passed_over_and_keeps_the_place_in_the_queue() -> None:
    work = Work(Slots(SlotBounds(total=3, per_caller=2, queue=10)))
    for name, caller in (("a1", "ann"), ("a2", "ann"), ("a3", "ann"), ("b1", "ben")):
        await work.begin(name, caller)
    assert work.order == ["a1", "a2", "b1"]
    await work.begin("b2", "ben")
    await work.end("a1")
    assert work.order == ["a1", "a2", "b1", "a3"]
    await work.end_all()


async def test_a_newcomer_does_not_take_the_slot_of_a_waiting_holder() -> None:
    slots = Slots(SlotBounds(total=1, queue=10))
    work = Work(slots)
    async with slots.slot("ann"):
        await work.begin("second", "ben")
    # `second` has the slot now, and has not run yet.
    await work.begin("third", "cid")
    assert work.order == ["second"]
    await work.end_all()
    assert work.order == ["second", "third"]
    assert is_idle(slots)


async def test_a_free_slot_costs_no_turn_of_the_loop() -> None:
    slots = Slots(SlotBounds(total=1, queue=1))
    others_ran: list[bool] = []
    asyncio.get_running_loop().call_soon(others_ran.append, True)
    async with slots.slot("ann", deadline=0):
        assert not others_ran


async def test_a_caller_may_be_counted_by_its_network_and_by_its_name() -> None:
    work = Work(Slots(SlotBounds(total=9, per_caller=2, queue=10)))
    await work.begin("1", "192.0.2.1", "ann")
    await work.begin("2", "192.0.2.2", "ann")
    await work.begin("3", "192.0.2.3", "ann")
    await work.begin("4", "192.0.2.1", "ben")
    await work.begin("5", "192.0.2.1", "cid")
    assert work.order == ["1", "2", "4"]
    await work.end_all()


async def test_reserved_slots_are_for_known_users() -> None:
    work = Work(Slots(SlotBounds(total=3, reserved=1, queue=10)))
    for name in "abc":
        await work.begin(name, name, is_known=False)
    assert work.order == ["a", "b"]
    await work.begin("d", "d")
    assert work.order == ["a", "b", "d"]
    await work.end("a")
    assert work.order == ["a", "b", "d", "c"]
    await work.end_all()


async def test_a_size_of_any_kind_is_let_in_once_and_then_up_to_the_sum() -> None:
    slots = Slots(SlotBounds(total=9, size_per_caller=10, queue=10))
    work = Work(slots)
    await work.begin("huge", "ann", size=50)
    await work.begin("small", "ann", size=1)
    await work.begin("other", "ben", size=6)
    await work.begin("fits", "ben", size=4)
    await work.begin("none", "ben", size=1)
    assert work.order == ["huge", "other", "fits"]
    await work.end_all()
    assert is_idle(slots)


async def test_a_site_has_its_share() -> None:
    work = Work(Slots(SlotBounds(total=100, per_caller=1, queue=100)))
    for subnet in range(10):
        await work.begin(str(subnet), f"2001:db8:1:{subnet:x}::/64")
    assert len(work.order) == 4
    await work.end_all()


async def test_waiting_callers_take_turns_by_site() -> None:
    slots = Slots(SlotBounds(total=1, queue=100))
    work = Work(slots)
    await work.begin("first", "192.0.2.1")
    for subnet in range(3):
        await work.begin(f"site {subnet}", f"2001:db8:1:{subnet:x}00::/64", "ann")
    for number in range(2):
        await work.begin(f"other {number}", "192.0.2.2", "ann")
    await work.begin("nameless")
    await work.end("first")
    for name in ("site 0", "other 0", "nameless", "site 1", "other 1"):
        await work.end(name)
    await work.end_all()
    assert work.order[1:] == ["site 0", "other 0", "nameless", "site 1", "other 1", "site 2"]
    assert is_idle(slots)


@cases(("has_running", "served"), [(False, 3), (True, 2)])
async def test_the_waiting_holders_are_bounded(has_running: bool, served: int) -> None:
    slots = Slots(SlotBounds(total=1, queue=2, queue_has_running=has_running))
    work = Work(slots)
    for name in "abcd":
        await work.begin(name, "ann")
    refused = [task for task in work.tasks.values() if task.done()]
    assert len(refused) == 4 - served
    for task in refused:
        with pytest.raises(MarketError) as caught:
            await task
        assert caught.value.code is Code.TOO_BUSY
    work.tasks = {name: task for name, task in work.tasks.items() if not task.done()}
    await work.end_all()
    assert is_idle(slots)


async def test_one_caller_does_not_fill_the_queue() -> None:
    slots = Slots(SlotBounds(total=1, queue=10, queue_per_caller=2))
    work = Work(slots)
    for name in "abc":
        await work.begin(name, "ann")
    with pytest.raises(MarketError):
        async with slots.slot("ann"):
            pass
    await work.begin("d", "ben")
    await work.end_all()
    assert sorted(work.order) == list("abcd")


async def test_two_sites_do_not_fill_the_queue() -> None:
    """A newcomer takes the place of the newest claim of the longest turn."""
    slots = Slots(SlotBounds(total=1, queue=4))
    work = Work(slots)
    await work.begin("first", "ann")
    for number in range(3):
        await work.begin(f"large {number}", "2001:db8:1::/64")
    await work.begin("small", "2001:db8:2::/64")
    displaced = work.tasks.pop("large 2")
    await work.begin("new", "ben")
    with pytest.raises(MarketError) as caught:
        await displaced
    assert caught.value.code is Code.TOO_BUSY
    with pytest.raises(MarketError):  # its turn would be as long as the longest one
        async with slots.slot("ben"):
            pass
    await work.end("first")
    for name in ("large 0", "small", "new", "large 1"):
        await work.end(name)
    assert work.order == ["first", "large 0", "small", "new", "large 1"]
    await work.end_all()
    assert is_idle(slots)


@cases("is_displaced_first", [True, False])
async def test_a_displaced_claim_that_is_given_up_leaves_nothing(is_displaced_first: bool) -> None:
    slots = Slots(SlotBounds(total=1, queue=2))
    work = Work(slots)
    await work.begin("first", "ann")
    for number in range(2):
        await work.begin(f"large {number}", "ben")
    leaving = work.tasks.pop("large 1")
    new = asyncio.create_task(slots.slot("zoe").__aenter__())
    if is_displaced_first:
        await asyncio.sleep(0)
        leaving.cancel()
    else:
        leaving.cancel()
        await asyncio.sleep(0)
    with pytest.raises((asyncio.CancelledError, MarketError)):
        await leaving
    new.cancel()
    with pytest.raises(asyncio.CancelledError):
        await new
    await work.end("first")
    await work.end_all()
    assert is_idle(slots)


async def test_the_reason_of_a_refusal_is_for_the_owner_to_say() -> None:
    reasons: list[Busy] = []

    def refusal(reason: Busy) -> Exception:
        reasons.append(reason)
        return LookupError(reason.name)

    slots = Slots(SlotBounds(total=1, queue=1), refusal)
    now = asyncio.get_running_loop().time()
    async with slots.slot("ann"):
        with pytest.raises(LookupError):
            async with slots.slot("ann", deadline=now + 0.01):
                pass
        waiting = asyncio.create_task(slots.slot("ann").__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(LookupError):
            async with slots.slot("ann"):
                pass
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    assert reasons == [Busy.TIMED_OUT, Busy.QUEUE_FULL]
    assert is_idle(slots)


async def test_a_slot_given_to_a_holder_that_has_just_left_goes_to_the_next() -> None:
    slots = Slots(SlotBounds(total=1, queue=10))
    work = Work(slots)
    async with slots.slot("ann"):
        await work.begin("leaving", "ann")
        await work.begin("next", "ann")
    leaving = work.tasks.pop("leaving")
    leaving.cancel()  # it has the slot now, and has not run yet
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await until(lambda: work.order == ["next"])
    await work.end_all()
    assert is_idle(slots)


@cases("seed", range(20))
async def test_no_bound_is_ever_broken_and_nothing_is_left(seed: int) -> None:
    picked = random.Random(seed)
    slots = Slots(SlotBounds(total=4, per_caller=2, reserved=1, size_per_caller=8, queue=20))
    running: list[str] = []

    async def hold(caller: str, size: int, deadline: float) -> None:
        async with slots.slot(caller, size=size, is_known=size % 2 == 0, deadline=deadline):
            running.append(caller)
            assert len(running) <= 4
            assert running.count(caller) <= 2
            try:
                await asyncio.sleep(picked.random() / 200)
            finally:
                running.remove(caller)

    now = asyncio.get_running_loop().time()
    tasks = []
    for _ in range(30):
        wish = (picked.choice("abcd"), picked.randrange(9), now + picked.random() / 30)
        tasks.append(asyncio.create_task(hold(*wish)))
        if picked.random() < 0.3:
            await asyncio.sleep(picked.random() / 500)
            picked.choice(tasks).cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    expected = (MarketError, asyncio.CancelledError)
    assert all(outcome is None or isinstance(outcome, expected) for outcome in outcomes)
    assert is_idle(slots)
