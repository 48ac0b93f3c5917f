"""The exits of labels, where several nodes must agree on them.

Theory of operation
-------------------
A label of a session has the same exit on every node. The first node that uses it writes its choice
down, and the others take it over (`storage.exits.mesh.bind`). Each asks once, and remembers the
answer beside its own binding in the directory; a connection that finds it there needs no query.

A soft label whose exit is away moves on whichever node notices first: the row is changed only if it
still names the exit that this node knew, so that of two nodes one wins, and the other takes that
over. The winner notifies the other nodes, which ask the store again at their next connection.
Notices over a link that was lost may be missing: a new link makes each label ask once more.

A strict label that is new here, and has no exit here, may be bound to an exit that is away: the
node looks it up, so that its buyer gets the same answer on every node.

A store that does not answer is no reason to refuse a buyer: this node goes on with its own choice,
which is nearly always the same, because all nodes look for it in the same way.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from proxyd.exits.choosing.bindings import Binding
from proxyd.exits.choosing.bounds import USUAL as DIRECTORY
from proxyd.exits.choosing.directory import Directory
from proxyd.loop.owned_tasks import OwnedTasks
from proxyd.wire.wants import Wants
from storage.engines.errors import StoreError
from storage.engines.store import Store
from storage.exits import mesh as queries
from storage.exits.mesh import BindingRow

AWAY_SECONDS = 5.0  # between two questions to a store that did not answer
AT_ONCE: Final = 4  # questions: a burst of new labels leaves connections of the pool to the API
LABEL_BYTES: Final = 16
NO_AGREEMENT: Final = -1

_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class LabelBounds:
    """How long nodes wait for an agreement, and how many they keep.

    Attributes:
        answer_seconds: the part of a dial's ten seconds; a healthy store answers in milliseconds.
        per_session: as many as a node remembers.
    """

    answer_seconds: float = 3.0
    per_session: int = DIRECTORY.labels_per_session


USUAL: Final = LabelBounds()


class Question:
    """A dial that waits for the exit of a label.

    Args:
        waiting: the questions that wait for the same label, this one among them.
        done: called once, unless this is cancelled first.
    """

    __slots__ = ("_waiting", "done")

    def __init__(self, waiting: "dict[Question, None]", done: Callable[[], None]) -> None:
        self._waiting = waiting
        self.done = done
        waiting[self] = None

    def cancel(self) -> None:
        """Stop waiting."""
        self._waiting.pop(self, None)


class Labels:
    """Agrees with the other nodes on the exits of labels; see the theory above.

    Args:
        is_alone: returns whether there is no other node to agree with.
        tell_moved: tells the other nodes that a label has moved.
        seconds: the wall clock, in UTC.
        bounds: how long an answer may take, and how many labels a session keeps.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        bindings: Directory[Any],
        *,
        is_alone: Callable[[], bool],
        tell_moved: Callable[[str, str], None],
        seconds: Callable[[], int],
        bounds: LabelBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self._loop = loop
        self._store = store
        self._bindings = bindings
        self._is_alone = is_alone
        self._tell_moved = tell_moved
        self._seconds = seconds
        self._agreement = 0  # earlier agreements count no more
        self._away_until = 0.0
        self._waiting: dict[tuple[str, str], dict[Question, None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks = OwnedTasks(loop, _logger, "agreeing on a label failed")

    # --- calls of dials ------------------------------------------------------------------------

    def must_ask(self, wants: Wants, session_id: str) -> bool:
        """Return whether nodes have to agree on the exit of a label before it is used."""
        if self._is_alone() or self._loop.time() < self._away_until:
            return False
        binding = self._bindings.binding(wants, session_id)
        return binding is not None and (
            binding.agreed_id != binding.device_id or binding.agreement != self._agreement
        )

    def must_look(self, wants: Wants, session_id: str) -> bool:
        """Return whether a label that is unknown here may have an exit that is away."""
        if not wants.strict or self._is_alone() or self._loop.time() < self._away_until:
            return False
        return self._bindings.binding(wants, session_id) is None

    def ask(self, wants: Wants, session_id: str, holder: str, done: Callable[[], None]) -> Question:
        """Agree on the exit of a label, and have the directory bind it to that.

        Args:
            wants: the label.
            session_id: whose it is.
            holder: the account of the session.
            done: called later, when the directory has the answer.
        """
        key = session_id, hash_of(wants)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = {}
            self._tasks.spawn(self._ask(wants, *key, holder))
        return Question(waiting, done)

    # --- messages of other nodes: see `hub.Labels` --------------------------------------------

    def moved(self, session_id: str, label: str) -> None:
        """Note that another node has moved a label, so its binding here is old."""
        for binding in self._bindings.bindings(session_id):
            if binding.label == label:
                binding.agreement = NO_AGREEMENT

    def doubt(self) -> None:
        """Note that notices of moves may have been missed, so all bindings may be old."""
        self._agreement += 1

    # --- the rest ------------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Remove labels that are over from the store; return their number.

        A buyer may use another label for each connection: so all goes that has gathered, and of
        each session no more stays than a node remembers.

        Raises:
            StoreError: the store did not answer.
        """
        swept = 0
        while True:
            now = self._seconds()
            kept = self._bounds.per_session
            removed = await self._store.write(queries.sweep_bindings, now, kept)
            swept += removed
            if removed < queries.SWEPT_MAX_BINDINGS:
                return swept

    async def close(self) -> None:
        """End all questions."""
        self._tasks.cancel()
        await self._tasks.wait()

    async def _ask(self, wants: Wants, session_id: str, label: str, holder: str) -> None:
        try:
            async with self._slots:
                if self._loop.time() >= self._away_until:
                    async with asyncio.timeout(self._bounds.answer_seconds):
                        await self._agree(wants, session_id, label, holder)
        except (StoreError, TimeoutError) as error:
            if self._loop.time() >= self._away_until:
                words = str(error) or "it does not answer"
                _logger.warning("labels are bound by this node alone for now: %s", words)
            self._away_until = self._loop.time() + AWAY_SECONDS
        finally:
            waiting = self._waiting.pop((session_id, label))
        for question in tuple(waiting):
            question.done()

    async def _agree(self, wants: Wants, session_id: str, label: str, holder: str) -> None:
        binding = self._bindings.binding(wants, session_id)
        if binding is None:  # there is no exit here, or it was forgotten just now
            await self._look_up(wants, session_id, label, holder)
            return
        agreement, now, time = self._agreement, self._seconds(), self._loop.time()
        chosen, agreed = binding.device_id, binding.agreed_id
        replaced = agreed if agreed != chosen else ""
        until = now + math.ceil(binding.until - time)
        proposal = BindingRow(chosen, binding.country, until)
        # Before the write: a move that another node reports meanwhile counts.
        binding.label, binding.agreement = label, agreement
        try:
            row = await self._store.write(
                queries.bind, session_id, label, proposal, replaced=replaced, now=now
            )
        except BaseException:
            binding.agreement = NO_AGREEMENT
            raise
        if binding.device_id != chosen:  # a dial has moved it meanwhile, and the next one asks
            binding.agreed_id = row.device_id
            return
        binding.agreed_id = binding.device_id = row.device_id
        # The lifetime of a label ends at one time on all nodes.
        binding.country, binding.until = row.country, time + row.until - now
        if row.device_id != chosen:
            # If the buyer had another exit before, it gets a notice of the change. It had the one
            # that was chosen here alone, if it left while no other node was there to agree.
            binding.has_moved = agreed != row.device_id if agreed else binding.is_used
        elif replaced:
            self._tell_moved(session_id, label)

    async def _look_up(self, wants: Wants, session_id: str, label: str, holder: str) -> None:
        """Bind a label that is new here to the exit that other nodes have bound it to."""
        agreement = self._agreement
        row = await self._store.read(queries.bound, session_id, label)
        seconds = 0 if row is None else row.until - self._seconds()
        if row is None or seconds <= 0 or self._bindings.binding(wants, session_id) is not None:
            return
        binding = Binding(row.device_id, row.country, self._loop.time() + seconds, lifetimes=0)
        binding.label, binding.agreed_id, binding.agreement = label, row.device_id, agreement
        self._bindings.adopt(wants, session_id, binding, holder)


def hash_of(wants: Wants) -> str:
    """Return the hash that stands for a label and its place in the store."""
    parts = (
        wants.session,
        ",".join(wants.countries),
        wants.state,
        wants.city,
        str(wants.asn),
        wants.kind,
    )
    return blake2b("\0".join(parts).encode(), digest_size=LABEL_BYTES).hexdigest()
