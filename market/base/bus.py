"""One bus for notifications: a committed change is published once, and each subscriber is called.

A publication names a topic and the keys of the changed things, for example jobs. Subscribers in
this process are called before it returns. Subscribers in other processes are called a moment
later: `run` sends the keys of many publications through the database in one transaction. Only
topics that the bus carries leave the process.

A subscriber may neither wait nor raise. One that waits for something itself keeps the keys in a
bounded collection, and wakes its own task.

Nothing depends on a notice. Notices are lost when the store fails or a collection is full, so
each subscriber also looks at the store from time to time. `catch_up` makes all of them look now.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar, final

from storage.engines.errors import StoreError, level_of
from storage.engines.store import Store, Transaction
from storage.events.events import EventRow

# The limit of `Transaction.notify`.
TEXT_MAX_BYTES = 4_000
# With twenty texts in one transaction, the cost of each is next to nothing.
TEXTS_PER_UNIT = 20
# Keys of one topic that are not sent yet. More than that within a moment means a store that does
# not answer.
UNSENT_MAX = 20_000
# A person does not see it. A NOTIFY holds up every other commit on PostgreSQL, if for a moment.
GATHER_SECONDS = 0.05
# After a failure of the store.
FAILED_SECONDS = 1.0

Item = TypeVar("Item")

_logger = logging.getLogger("bus")


@final
class Topic(Generic[Item]):
    """A kind of change.

    Args:
        word: names it in notices.
        key: returns the key of a published item: a text without spaces.
        is_urgent: whether notices are sent immediately; others are gathered for `GATHER_SECONDS`.
    """

    def __init__(
        self, word: str, key: Callable[[Item], str] = str, *, is_urgent: bool = False
    ) -> None:
        self.word = word
        self.key = key
        self.is_urgent = is_urgent


def _event_key(row: EventRow) -> str:
    return f"{row.user_id}:{row.id}"


# Jobs that wait for a device, and jobs that do not wait any more.
WAITING: Final = Topic[str]("waiting", is_urgent=True)
GONE: Final = Topic[str]("gone", is_urgent=True)
# Devices with news: an attempt of the device ended, or its token did.
DEVICES: Final = Topic[str]("device", is_urgent=True)
# Jobs, after an attempt at each began or ended.
ATTEMPTS: Final = Topic[str]("attempt")
# Logs in which something came: `<job>:<stream>`.
LOGS: Final = Topic[str]("log")
# Jobs that may be replicas, and whose rollouts may go on. Other processes find them by a sweep.
REPLICAS: Final = Topic[str]("replica")
# Events of users. Other processes get `<user>:<event>`, and read the event from the store.
EVENTS: Final = Topic("event", _event_key)

# The topics between daemons on one database. Each daemon has a marketplace.
BETWEEN_DAEMONS: Final[frozenset[Topic[Any]]] = frozenset(
    (WAITING, GONE, DEVICES, ATTEMPTS, LOGS, EVENTS)
)
# The topics between the processes of one daemon. One process has the marketplace.
BETWEEN_PROCESSES: Final[frozenset[Topic[Any]]] = frozenset((EVENTS,))


@final
class Bus:
    """Passes changes from publishers to subscribers.

    Args:
        carried: the topics with subscribers in other processes.
        gather_seconds: the wait for more notices of topics that are not urgent.
        failed_seconds: the pause after a failure of the store.
    """

    def __init__(
        self,
        carried: Collection[Topic[Any]] = (),
        *,
        gather_seconds: float = GATHER_SECONDS,
        failed_seconds: float = FAILED_SECONDS,
    ) -> None:
        self._gather_seconds = gather_seconds
        self.carried = carried
        self._failed_seconds = failed_seconds
        # Notices come back to the process that sent them, which knows them by this.
        self._origin = secrets.token_hex(8)
        self._published: dict[Topic[Any], list[Callable[[Sequence[Any]], None]]] = {}
        self._noticed: dict[str, list[Callable[[Sequence[str]], None]]] = {}
        self._missed: list[Callable[[], None]] = []
        self._unsent: dict[Topic[Any], dict[str, None]] = {}
        self._has_unsent = asyncio.Event()
        self._has_urgent = asyncio.Event()

    def subscribe(
        self,
        topic: Topic[Item],
        published: Callable[[Sequence[Item]], None],
        noticed: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """Call a subscriber with each publication of a topic from now on.

        Args:
            topic: the kind of change.
            published: called with the items that were published in this process.
            noticed: called with the keys that were published in another process; None where the
                items are keys, for the same call.
        """
        self._published.setdefault(topic, []).append(published)
        calls: list[Any] = self._noticed.setdefault(topic.word, [])
        calls.append(published if noticed is None else noticed)

    def on_missed(self, missed: Callable[[], None]) -> None:
        """Call a subscriber whenever notices may have been lost."""
        self._missed.append(missed)

    def publish(self, topic: Topic[Item], items: Sequence[Item]) -> None:
        """Notify the subscribers of a change that is committed."""
        for call in self._published.get(topic, ()):
            call(items)
        if not items or topic not in self.carried:
            return
        unsent = self._unsent.setdefault(topic, {})
        for item in items[: UNSENT_MAX - len(unsent)]:
            unsent[topic.key(item)] = None
        self._has_unsent.set()
        if topic.is_urgent:
            self._has_urgent.set()

    def hear(self, text: str) -> None:
        """Act on a notice of another process; one of this process, or of no topic, is ignored."""
        word, *rest = text.split(" ")
        if len(rest) < 2 or rest[0] == self._origin:
            return
        for call in self._noticed.get(word, ()):
            call(rest[1:])

    def catch_up(self) -> None:
        """Make all subscribers look at the store, because notices may have been lost."""
        for call in self._missed:
            call()

    async def run(self, store: Store) -> None:
        """Send queued notices to other processes until cancelled; a failing store loses them."""
        while True:
            await self._has_unsent.wait()
            try:
                async with asyncio.timeout(self._gather_seconds):
                    await self._has_urgent.wait()
            except TimeoutError:
                pass
            self._has_unsent.clear()
            self._has_urgent.clear()
            unsent, self._unsent = self._unsent, {}
            urgent_first = sorted(unsent.items(), key=lambda item: not item[0].is_urgent)
            texts = [
                text for topic, keys in urgent_first for text in notices(topic, self._origin, keys)
            ]
            try:
                for start in range(0, len(texts), TEXTS_PER_UNIT):
                    await store.write(_notify, texts[start : start + TEXTS_PER_UNIT])
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING),
                    "other processes learn of %d changes later: %s",
                    sum(map(len, unsent.values())),
                    error,
                )
                await asyncio.sleep(self._failed_seconds)


def notices(topic: Topic[Any], origin: str, keys: Iterable[str]) -> Iterator[str]:
    """Yield notices that name all keys, as few as can be.

    Args:
        topic: the topic of the keys.
        origin: the name of the bus; a command without a bus has a name of its own.
        keys: without spaces, at least one.
    """
    head = text = f"{topic.word} {origin}"
    for key in keys:
        if len(text) + len(key) >= TEXT_MAX_BYTES:
            yield text
            text = head
        text = f"{text} {key}"
    yield text


async def _notify(tx: Transaction, texts: Sequence[str]) -> None:
    await tx.notify(*texts)
