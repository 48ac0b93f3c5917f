"""The addresses that connections of exits leave from: calls prove them, and exits count there.

See `dialling/origin.py` for how an exit is made to call.
"""

import logging
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any, Final, final

from market.base.networks import Address, NetworkCounts, counted_network, crowded, plain
from market.devices.origins import DeviceOrigins
from market.exits.consents import Exits
from proxyctl.protocol.frames import CALLS, Seen
from proxyd.exits.attached.attached import CROWDED, WANDERING, Attached
from proxyd.exits.attached.neighbours import Neighbours
from proxyd.exits.attached.roster import Roster
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.entries import Place
from proxyd.limits import ExitLimits

# After more moves to other lines since the start, an exit has no place to sell.
MOVES_MAX: Final = 3
MOVES_KEPT: Final = 10_000

_logger = logging.getLogger("exits")


@final
class Origins:
    """Takes calls of exits, and counts each exit where its connections leave.

    Args:
        authority: returns the least price of sessions that leave in a country.
        sightings: notes the addresses of exits.
    """

    def __init__(
        self,
        roster: Roster,
        directory: Directory[Any],
        neighbours: Neighbours,
        locate: Callable[[str], Place],
        authority: Exits,
        sightings: DeviceOrigins,
        limits: ExitLimits,
    ) -> None:
        self._roster = roster
        self._directory = directory
        self._neighbours = neighbours
        self._locate = locate
        self._authority = authority
        self._sightings = sightings
        self._limits = limits
        self._calls: dict[bytes, Callable[[str], None]] = {}  # as many as are under way
        # By device whose connections leave from elsewhere: the number of changes of their network,
        # and the last network.
        self._moves: dict[str, tuple[int, str]] = {}
        self._elsewhere = NetworkCounts()  # of exits whose connections leave there

    def change_limits(self, limits: ExitLimits) -> None:
        """Apply other limits from now on."""
        self._limits = limits

    # --- calls ---------------------------------------------------------------------------------

    def expect(self, number: bytes, called: Callable[[str], None]) -> None:
        """Call `called` with the address that a number arrives from."""
        self._calls[number] = called

    def forget_call(self, number: bytes) -> None:
        """Stop expecting a number."""
        self._calls.pop(number, None)

    def take_call(self, number: bytes) -> Callable[[str], None] | None:
        """Return the function that expects a number, and stop expecting that number."""
        return self._calls.pop(number, None)

    # --- moves ---------------------------------------------------------------------------------

    def leaves_from(self, attached: Attached, address: str) -> None:
        """Record the source address of an exit's connections.

        A call is the exit's own word. So the exit is counted there, but behind those that have
        attached from there, and takes no place of theirs; and it has nothing to sell where too many
        leave, or when its place keeps changing. A call in the other family of addresses than the
        exit attaches by changes no place.
        """
        parsed = plain(ip_address(address.partition("%")[0]))
        self._sightings.saw(attached.device_id, address)
        attached.location.learn(parsed)
        if CALLS in attached.features:
            attached.say(Seen(str(parsed)))
        if parsed.version == attached.address.version:
            self._file(attached, parsed, counted_network(address))

    def sighted(self) -> Iterator[tuple[str, str]]:
        """Yield each exit with the addresses that it is attached from, and that it leaves from."""
        for attached, control in self._roster.by_number.values():
            yield attached.device_id, control.address
            yield attached.device_id, str(attached.address)

    def arrived(self, attached: Attached) -> None:
        """Note the address that an exit has attached from."""
        self._sightings.saw(attached.device_id, str(attached.address))

    def departed(self, attached: Attached) -> None:
        """Note the end of an exit at its addresses, and stop counting it at another line."""
        for address in (self._roster.control_of(attached).address, str(attached.address)):
            self._sightings.left(attached.device_id, address)
        self.left(attached)

    def left(self, attached: Attached) -> None:
        """Stop counting an exit where its connections leave, if that is not where it attached."""
        if attached.is_elsewhere:
            self._elsewhere.add(attached.network, -1)

    def _file(self, attached: Attached, address: Address, network: str) -> None:
        """Count an exit where its connections leave, if that has changed."""
        if network == attached.network:
            return
        moves = self._count_move(attached.device_id, network)
        was_open = attached.is_open
        if was_open:
            self._directory.remove(attached)
        self.left(attached)
        place = self._locate(str(address))
        is_elsewhere = network != self._roster.home_of(attached)
        attached.leave_from(address, place, network, is_elsewhere=is_elsewhere)
        floor = self._authority.price_floor(place.country)
        attached.terms.set_price(max(attached.min_price_per_gb, floor))
        most = self._limits.exits_per_network
        full = attached.is_elsewhere and crowded(
            network, most, self._roster.per_network, self._elsewhere
        )
        attached.stray(WANDERING if moves > MOVES_MAX else CROWDED if full else "")
        if attached.is_elsewhere:
            self._elsewhere.add(network)
        if attached.is_open:
            self._directory.add(attached)
        self._neighbours.changed(attached)
        _logger.info("exit %s: its connections leave from %s", attached.device_id, address)

    def _count_move(self, device_id: str, network: str) -> int:
        """Return how often a device was found on another line, `network` included."""
        moves, before = self._moves.pop(device_id, (0, ""))
        if network != before:  # or it has attached again, and leaves from where it always does
            moves += 1
        self._moves[device_id] = moves, network  # the latest last
        if len(self._moves) > MOVES_KEPT:
            del self._moves[next(iter(self._moves))]
        return moves
