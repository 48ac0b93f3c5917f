"""Rollouts as plans: for any events, and for an executor that stops at any step."""

import random

from support.base.cases import cases

from market.deploys.steps import Goal, Replica, Start, Step, Stop, Strategy, Wait, plan

NOW = 1_000


def goal(revision: int, count: int) -> Goal:
    return Goal(revision, frozenset(range(1, count + 1)))


def replicas(revision: int, count: int, *, ready_at: int | None = 0) -> list[Replica]:
    return [Replica(f"{revision}-{n}", n, revision, ready_at) for n in range(1, count + 1)]


def test_a_deploy_as_wanted_needs_no_step() -> None:
    assert plan(goal(1, 3), replicas(1, 3), Strategy(), NOW) == []
    assert plan(goal(1, 0), [], Strategy(), NOW) == []


def test_one_is_replaced_after_the_other_by_default() -> None:
    there = replicas(1, 3)
    assert plan(goal(2, 3), there, Strategy(), NOW) == [Stop("1-1"), Start(1)]
    there = [Replica("2-1", 1, 2), *there[1:]]
    assert plan(goal(2, 3), there, Strategy(), NOW) == [Wait()]
    there = [Replica("2-1", 1, 2, NOW), *there[1:]]
    assert plan(goal(2, 3), there, Strategy(), NOW) == [Stop("1-2"), Start(2)]


def test_with_a_surge_the_new_one_comes_first() -> None:
    strategy = Strategy(max_surge=1, max_unavailable=0)
    there = replicas(1, 2)
    assert plan(goal(2, 2), there, strategy, NOW) == [Start(1)]
    there += [Replica("2-1", 1, 2)]
    assert plan(goal(2, 2), there, strategy, NOW) == [Wait()]
    there[-1] = Replica("2-1", 1, 2, NOW)
    assert plan(goal(2, 2), there, strategy, NOW) == [Stop("1-1"), Start(2)]


def test_an_unavailable_replica_is_replaced_at_once() -> None:
    there = replicas(1, 3, ready_at=None)
    assert plan(goal(2, 3), there, Strategy(), NOW) == [
        *(Stop(f"1-{n}") for n in (1, 2, 3)),
        *(Start(n) for n in (1, 2, 3)),
    ]


def test_a_replica_counts_once_it_was_ready_for_long_enough() -> None:
    strategy = Strategy(min_ready_s=30)
    there = [Replica("2-1", 1, 2, NOW - 29), *replicas(1, 3)[1:]]
    assert plan(goal(2, 3), there, strategy, NOW) == [Wait(NOW + 1)]
    assert plan(goal(2, 3), there, strategy, NOW + 1) == [Stop("1-2"), Start(2)]


@cases(("before", "after"), [(3, 0), (3, 1), (0, 3), (1, 3)])
def test_numbers_come_and_go_at_the_end(before: int, after: int) -> None:
    expected: list[Step] = [Stop(f"1-{n}") for n in range(after + 1, before + 1)]
    expected += [Start(n) for n in range(before + 1, after + 1)]
    assert plan(goal(1, after), replicas(1, before), Strategy(max_unavailable=9), NOW) == expected


def test_numbers_that_are_done_are_not_started_again() -> None:
    wanted = Goal(1, frozenset({2, 3}))
    assert plan(wanted, replicas(1, 3)[1:], Strategy(), NOW) == []
    assert plan(wanted, [], Strategy(), NOW) == [Start(2), Start(3)]


def test_a_failed_revision_is_left_and_the_working_one_stays() -> None:
    wanted = Goal(2, frozenset({1, 2, 3}), failed=frozenset({1}))
    assert plan(wanted, replicas(1, 3)[1:], Strategy(), NOW) == [Wait()]
    assert plan(wanted, replicas(1, 3)[1:], Strategy(max_unavailable=2), NOW) == [
        Stop("1-2"),
        Start(2),
    ]
    assert plan(wanted, replicas(2, 3)[1:], Strategy(), NOW) == []


class World:
    """Replicas that come and go as they like, and a rollout that may stop after any step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.strategy = Strategy(
            max_surge=self.random.randint(0, 3),
            max_unavailable=self.random.randint(1, 4),
            min_ready_s=self.random.choice((0, 5)),
        )
        if self.strategy.max_surge and self.random.random() < 0.3:
            self.strategy = Strategy(self.strategy.max_surge, 0, self.strategy.min_ready_s)
        self.now, self.made = NOW, 0
        self.goal = goal(1, self.random.randint(0, 6))
        self.replicas: dict[str, Replica] = {}

    def steps(self) -> list[Step]:
        there = list(self.replicas.values())
        self.random.shuffle(there)
        return plan(self.goal, there, self.strategy, self.now)

    def available(self) -> int:
        there = self.replicas.values()
        return sum(each.is_available(self.strategy, self.now) for each in there)

    def do(self, step: Step) -> None:
        """Carry a step out, and see that nothing was promised otherwise."""
        before, most = len(self.replicas), len(self.goal.numbers) + self.strategy.max_surge
        if isinstance(step, Start):
            self.made += 1
            job_id = f"job {self.made}"
            self.replicas[job_id] = Replica(job_id, step.number, self.goal.revision)
            assert len(self.replicas) <= most
        elif isinstance(step, Stop):
            floor = len(self.goal.numbers) - self.strategy.max_unavailable
            available = self.available()
            del self.replicas[step.job_id]
            assert self.available() == available or self.available() >= floor
            assert len(self.replicas) < before

    def change(self) -> None:
        """Let something happen that no plan knew of."""
        there = list(self.replicas.values())
        what = self.random.random()
        if what < 0.1:
            self.goal = goal(self.goal.revision + 1, self.random.randint(0, 6))
        elif there and what < 0.6:
            one = self.random.choice(there)
            ready_at = self.now if self.random.random() < 0.8 else None
            self.replicas[one.job_id] = Replica(one.job_id, one.number, one.revision, ready_at)
        elif there and what < 0.7:
            one = self.random.choice(there)
            del self.replicas[one.job_id]
            if one.revision == self.goal.revision and self.random.random() < 0.3:
                failed = self.goal.failed | {one.number}
                self.goal = Goal(self.goal.revision, self.goal.numbers, failed)
        self.now += self.random.randint(0, 3)


@cases("seed", range(60))
def test_no_step_is_too_much_and_every_rollout_ends(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        for step in world.steps():
            world.do(step)
            if world.random.random() < 0.3:  # the executor is gone
                break
        world.change()
    world.goal = Goal(world.goal.revision, world.goal.numbers)
    for _ in range(60):  # from here on every replica gets ready, and nothing else happens
        for step in world.steps():
            world.do(step)
        world.now += 10
        for each in list(world.replicas.values()):
            if each.ready_at is None:
                world.replicas[each.job_id] = Replica(
                    each.job_id, each.number, each.revision, world.now
                )
        if not world.steps():
            break
    assert world.steps() == []
    assert {each.number for each in world.replicas.values()} == world.goal.numbers
    assert len(world.replicas) == len(world.goal.numbers)
    assert {each.revision for each in world.replicas.values()} <= {world.goal.revision}
