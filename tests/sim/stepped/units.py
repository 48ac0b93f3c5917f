"""The units that lock rows, by topic: those of a topic touch the same rows.

Each action of a topic meets itself and every other one of the topic; on request also those of other
topics.
"""

from collections.abc import Mapping
from itertools import combinations
from random import Random
from typing import NamedTuple

from tests.sim.stepped.side import Action
from tests.sim.stepped.topics.accounts import ACCOUNTS, KEYS, WEBHOOKS
from tests.sim.stepped.topics.deploys import DEPLOYS, WORDS
from tests.sim.stepped.topics.exits import EXITS
from tests.sim.stepped.topics.files import FILES
from tests.sim.stepped.topics.jobs import COPIES, JOBS, REVIEWS
from tests.sim.stepped.topics.money import MONEY, REWARDS
from tests.sim.stepped.topics.payments import PAYMENTS
from tests.sim.stepped.topics.sessions import SESSIONS
from tests.sim.stepped.topics.staff import STAFF
from tests.sim.stepped.topics.stops import STOPS

TOPICS: dict[str, Mapping[str, Action]] = {
    "sessions": SESSIONS,
    "exits": EXITS,
    "jobs": JOBS,
    "reviews": REVIEWS,
    "copies": COPIES,
    "deploys": DEPLOYS,
    "deploys in words": WORDS,
    "money": MONEY,
    "rewards": REWARDS,
    "payments": PAYMENTS,
    "accounts": ACCOUNTS,
    "keys": KEYS,
    "webhooks": WEBHOOKS,
    "files": FILES,
    "staff": STAFF,
    "stops": STOPS,
}


# Actions of all topics, for units that share fewer rows: a buyer's account, a device, a node.
ALL = "all"
EVERYTHING: Mapping[str, Action] = {
    f"{topic}, {name}": action
    for topic, actions in TOPICS.items()
    for name, action in actions.items()
}


class Pair(NamedTuple):
    """Two actions of a topic, or of `ALL`."""

    topic: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.first} / {self.second}"

    def actions(self) -> tuple[Action, Action]:
        """Return what the two nodes do."""
        actions = EVERYTHING if self.topic == ALL else TOPICS[self.topic]
        return actions[self.first], actions[self.second]


class Three(NamedTuple):
    """Three actions of a topic; the third one is of the node of the first."""

    topic: str
    first: str
    second: str
    third: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.first} / {self.second} / {self.third}"

    def actions(self) -> tuple[Action, ...]:
        """Return what the nodes do."""
        actions = TOPICS[self.topic]
        return actions[self.first], actions[self.second], actions[self.third]


Meeting = Pair | Three
PAIRS = tuple(
    Pair(topic, first, second)
    for topic, actions in TOPICS.items()
    for number, first in enumerate(actions)
    for second in list(actions)[number:]
)
ACROSS = tuple(
    Pair(ALL, first, second)
    for first, second in combinations(EVERYTHING, 2)
    if first.partition(",")[0] != second.partition(",")[0]
)

# Where an end may differ from both orders: in the rows of a table, for a reason.
EXCUSED: Mapping[Pair, tuple[str, str]] = {
    Pair("keys", "makes a webhook with a key", "revokes a key"): (
        "webhook_deliveries",
        "an endpoint gets what is recorded after it was made; neither of the two comes first",
    ),
}


def excused_table(meeting: Meeting) -> str:
    """Return the table in which the end of a meeting may differ; "" for none."""
    for pair, (table, _) in EXCUSED.items():
        if pair.topic == meeting.topic and {pair.first, pair.second} <= set(meeting[1:]):
            return table
    return ""


def threes(count: int, seed: int) -> list[Three]:
    """Return drawn actions of a topic, three each time, one topic after the other."""
    draw, topics = Random(f"threes {seed}"), list(TOPICS)
    drawn = []
    for number in range(count):
        topic = topics[number % len(topics)]
        drawn.append(Three(topic, *draw.choices(list(TOPICS[topic]), k=3)))
    return drawn
