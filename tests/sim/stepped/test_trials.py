"""Units of two nodes in the order of a seed: each meeting ends as one order without a meeting."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from support.database import postgres
from support.market.jobs import device_of

from storage.engines.store import Transaction
from tests.sim.stepped.lockers import lockers
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.site import SIDES, Site
from tests.sim.stepped.trials import Trials
from tests.sim.stepped.units import PAIRS, TOPICS, Meeting, Pair, Three
from tests.sim.stepped.world import World

SEEDS = (1,)
# Each failed once, with the reason beside it.
FAILED = {
    Pair("accounts", "ends a login", "gets the key of a program"): (
        "a program that was denied meanwhile got `expired_token`, not `access_denied`"
    ),
    Pair(
        "accounts", "asks for a key before the approval", "asks for a key before the approval"
    ): "two requests at the same time were told to wait, and none to slow down",
    Pair("accounts", "gets the key of a program", "closes the account"): (
        "a deadlock: one locked the user before the account, the other one after it"
    ),
    Pair("accounts", "approves a program", "denies a program"): (
        "a deadlock: a denial locked the request, and then its user by the reference to it"
    ),
    Pair("webhooks", "records that the endpoint is gone", "disables an endpoint"): (
        "a deadlock: a failure locked the endpoint, and then its user by the reference to it"
    ),
    Pair("copies", "completes a copy", "erases a worker who was paid"): (
        "a deadlock: an erasure locked the accounts of a worker before the reputations"
    ),
}
FAILED_SEEDS = (0, 1, 2)


@pytest.fixture
async def site(postgres_server: str, postgres_template: str) -> AsyncIterator[Site]:
    """Two nodes on a database of their own."""
    async with (
        postgres.database(postgres_server, "stepped", template=postgres_template) as url,
        Site.open(url) as opened,
    ):
        yield opened


@pytest.fixture
async def devices(site: Site) -> Trials:
    """Two devices, and nothing else."""
    world, here = World(), site.market(SIDES[0])
    owner = await here.person()
    for name in ("idle", "second idle"):
        world.devices[name] = await device_of(here, owner)
    here.passwords.close()
    await site.keep()
    return Trials(site, world)


async def failures(trials: Trials, meetings: "Sequence[Meeting]", seeds: "tuple[int, ...]") -> str:
    run = [await trials.run(each, seed) for each in meetings for seed in seeds]
    return "\n".join(trial.report() for trial in run if trial.failures)


def neighbours() -> Iterator[Meeting]:
    """Yield meetings in which each action meets its neighbours in the list of its topic.

    Three at once: pairs would take twice the time, most of it for the rows of the start.
    """
    for topic, actions in TOPICS.items():
        names = list(actions)
        for at in range(0, len(names), 3):
            met = names[at : at + 3]
            yield Three(topic, *met) if len(met) == 3 else Pair(topic, met[0], met[-1])


@pytest.mark.early
@pytest.mark.timeout(600)  # six seconds of a core, which a busy machine has in minutes
async def test_each_unit_meets_others_as_if_one_came_after_the_other(site: Site) -> None:
    trials = await Trials.of(site)
    failed = await failures(trials, tuple(neighbours()), SEEDS)
    failed += await failures(trials, tuple(FAILED), FAILED_SEEDS)
    assert not failed, failed
    # A function that is missing here needs an action in `tests/sim/stepped/topics`.
    assert lockers() - trials.lockers == set()
    assert trials.late == set(), "the house comes before a user's account, and it before the user"


@pytest.mark.long
@pytest.mark.early
@pytest.mark.timeout(1_800)
async def test_each_unit_meets_every_other_one_as_if_one_came_first(site: Site) -> None:
    failed = await failures(await Trials.of(site), PAIRS, (2, 3))
    assert not failed, failed


# --- what the trials find -------------------------------------------------------------------------


def topic(monkeypatch: pytest.MonkeyPatch, name: str, *actions: Action) -> Pair:
    """Return a pair of two actions of a topic that is no unit's."""
    first, second = "first", "second"
    monkeypatch.setitem(TOPICS, name, dict(zip((first, second), actions, strict=True)))
    return Pair(name, first, second)


# One database for all three: its tables take longer than the trials.
async def test_trials_find_lost_updates_and_deadlocks_and_locks_prevent_both(
    devices: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finds_a_lost_update_whose_order_can_be_repeated(devices, monkeypatch)
    await a_lock_holds_the_other_unit_until_the_commit(devices, monkeypatch)
    await finds_a_deadlock_of_rows_that_are_locked_in_two_orders(devices, monkeypatch)


async def finds_a_lost_update_whose_order_can_be_repeated(
    devices: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add(tx: Transaction, device_id: str) -> None:
        size = await tx.one(
            int, "SELECT COALESCE(cpu_cores, 0) FROM devices WHERE id = :id", id=device_id
        )
        assert size is not None
        await tx.run("UPDATE devices SET cpu_cores = :s WHERE id = :id", s=size + 1, id=device_id)

    async def act(side: Side) -> Any:
        await side.market.store.write(add, side.world.devices["idle"].id)

    pair = topic(monkeypatch, "lost update", act, act)
    run = {seed: await devices.run(pair, seed) for seed in range(6)}
    failed = {seed: trial for seed, trial in run.items() if trial.failures}
    assert failed
    assert any("cpu_cores" in each for trial in failed.values() for each in trial.failures)
    for seed, trial in run.items():
        again = await devices.run(pair, seed)
        assert (again.lines, again.failures) == (trial.lines, trial.failures)


async def a_lock_holds_the_other_unit_until_the_commit(
    devices: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add(tx: Transaction, device_id: str) -> None:
        await tx.lock("devices", [device_id])
        await tx.run(
            "UPDATE devices SET cpu_cores = COALESCE(cpu_cores, 0) + 1 WHERE id = :id", id=device_id
        )

    async def act(side: Side) -> Any:
        await side.market.store.write(add, side.world.devices["idle"].id)

    pair = topic(monkeypatch, "lock", act, act)
    run = [await devices.run(pair, seed) for seed in range(6)]
    assert not any(trial.failures for trial in run)
    waiting = next(trial for trial in run if trial.waits)
    [at] = [n for n, line in enumerate(waiting.lines) if line.endswith("waits for a lock")]
    waits, other = waiting.lines[at][0], "ba"["ab".index(waiting.lines[at][0])]
    rest = [line for line in waiting.lines[at + 1 :] if line.startswith((waits, other))]
    assert rest.index(f"{other} commit") < rest.index(f"{waits} commit")


async def finds_a_deadlock_of_rows_that_are_locked_in_two_orders(
    devices: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lock(tx: Transaction, *device_ids: str) -> None:
        for each in device_ids:
            await tx.lock("devices", [each])

    async def forwards(side: Side) -> Any:
        ids = sorted(device.id for device in side.world.devices.values())[:2]
        await side.market.store.write(lock, *ids)

    async def backwards(side: Side) -> Any:
        ids = sorted(device.id for device in side.world.devices.values())[:2]
        await side.market.store.write(lock, *reversed(ids))

    pair = topic(monkeypatch, "deadlock", forwards, backwards)
    run = [await devices.run(pair, seed) for seed in range(8)]
    met = [trial for trial in run if trial.deadlocks]
    assert met
    # The store runs the unit again that gave way.
    assert {tuple(trial.failures) for trial in met} == {
        ("a deadlock: rows are locked in two orders",)
    }
    assert any(line.endswith("again") for line in met[0].lines)
