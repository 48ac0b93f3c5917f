"""The part of exits in the story of a run: they attach, are used, and are compared in the calm."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tests.sim.clients import Buyer, ClientPlan, Network
from tests.sim.exit_checks import ATTACHED_SECONDS, ExitBooks
from tests.sim.exit_plans import Links
from tests.sim.exit_ports import exit_settings
from tests.sim.exits import ExitAgent, ExitOwner, serve
from tests.sim.lines import Lines
from tests.sim.process import Life, Process

# A dial takes ten seconds at most: of each wish, twice, at each of four nodes.
EXITS_SECONDS = 420.0


class ExitStory:
    """The exits of a run that has some.

    Args:
        network: leads to the daemons.
        links: the plans.
        books: watch the exits.
        probe: the plan of a client that needs few bytes.
    """

    def __init__(self, network: Network, links: Links, books: ExitBooks, probe: ClientPlan) -> None:
        self.books = books
        self._network = network
        self._links = links
        self._probe = probe
        self._exits: list[ExitAgent] = []
        self._owners: list[ExitOwner] = []
        self._agents: list[asyncio.Task[None]] = []
        self._work: list[asyncio.Task[None]] = []
        self._lines = lines = Lines(network.world, network.weather, network.processes)
        lines.serve = partial(serve, is_honest=True)
        network.wishes, network.exit_books = links.wishes, books
        for each in network.processes:
            each.lines = lines
            each.labels = books.labels
            each.settings = exit_settings(
                each.settings, each.number, has_canaries=links.has_canaries
            )

    def begin(self, until: float) -> None:
        """Let owners agree, and devices attach; faults end at a time."""
        loop = asyncio.get_running_loop()
        for plan in self._links.devices:
            self._owners.append(ExitOwner(self._network, plan, until))
            names = (f"exit{plan.number}", f"exit{plan.number} twin")
            for name in names[: 1 + plan.twin]:
                self._exits.append(ExitAgent(self._network, self._lines, plan, until, name))
        self._agents = [loop.create_task(each.run()) for each in self._exits]
        self._work = [loop.create_task(each.run()) for each in self._owners]

    async def look(self, buyers: Sequence[Buyer], active: Callable[[], set[str]]) -> None:
        """Compare the nodes when all is calm, and use exits by each wish.

        Args:
            buyers: of sessions.
            active: returns the sessions that are active.
        """
        for task in self._work:
            await task
        await asyncio.sleep(ATTACHED_SECONDS + 1.0)
        self.books.look_at_calm(self._lives(), self._exits, self._owners)
        sessions = active()
        usable = [each for each in buyers if each.bought and each.bought.session_id in sessions]
        for buyer in usable[:1]:
            for index in range(len(self._links.wishes)):
                await self._use(buyer, index)

    async def _use(self, buyer: Buyer, index: int) -> None:
        """A wish that an exit meets is met on each node; a label has one exit on all nodes.

        In the first round a label may move, and in the second one its lifetime may end. Two agents
        of one exit take it from each other, again and again, so their label moves at any time.
        """
        wish, processes = self._links.wishes[index], self._network.processes
        chosen: list[str] = []
        for round_ in range(3 if wish.wants.session else 1):
            chosen = [await self._leave(buyer, index, each) for each in processes]
            if round_ and len({*chosen} - {""}) <= 1:
                return
        twins = {each.device_id for each in self._exits if each.plan.twin}
        if wish.wants.session and twins.isdisjoint(chosen):
            self._network.world.fail(f"{wish.wants.session} leaves through {chosen}")

    async def _leave(self, buyer: Buyer, index: int, process: Process) -> str:
        """Return the exit that a connection leaves through at a node; "" for none."""
        life, bought, wish = process.serving, buyer.bought, self._links.wishes[index]
        if life is None or bought is None:
            return ""
        await self._released()
        plan = replace(self._probe, session=buyer.number, node=index, exit=0)
        lives = self._lives()
        suited = [
            each.device_id
            for each in self._exits
            if self.books.is_suited(each, self._exits, lives, buyer, wish)
            and not self.books.was_last(each, life, bought.session_id, wish)
        ]
        name = f"wish{index}-{buyer.number}-{process.number}"
        connection = await self._network.connect(life, bought, plan, name)
        if connection.relay is not None:
            await connection.over
            return connection.relay.device_id
        if connection.refusal == "NO_EXIT" and suited and not wish.wants.session:
            self._network.world.fail(f"{life.name} finds no exit for {wish}, and {suited} would do")
        return ""

    async def _released(self) -> None:
        """Wait until all exits have reported the end of their last connections, or a second.

        A buyer keeps its place until that report. A place that is never free fails the next wish.
        """
        for _ in range(10):
            if not any(places_taken(life, each) for life in self._lives() for each in self._exits):
                return
            await asyncio.sleep(0.1)

    def _lives(self) -> list[Life]:
        return [each.serving for each in self._network.processes if each.serving is not None]


def places_taken(life: Life, agent: ExitAgent) -> int:
    """Return the number of taken places of an exit that is attached to a node; 0 elsewhere."""
    assert life.port is not None
    attached = life.port.port.listener.roster.by_device.get(agent.device_id)
    return attached.load.places.taken if attached is not None else 0
