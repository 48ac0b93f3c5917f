"""Relays through devices that are not attached, because their control connection is gone.

Buyers' connections through an exit whose control connection was lost go on until they end
themselves. So do those that other processes of this machine relay, when the process that knew the
exits was started again. Both are cut when their device may carry nothing any more.
"""

import logging
from typing import final

from market.base.errors import MarketError
from market.exits.consents import Exits
from proxyd.exits.attached.attached import Adopted, Attached
from proxyd.exits.attached.roster import Roster
from proxyd.exits.attached.work import Work
from proxyd.exits.choosing.entries import Place
from storage.engines.errors import StoreError, level_of

_logger = logging.getLogger("exits")


@final
class Detached:
    """Relays through devices that are not attached, or not yet again.

    Args:
        authority: says whether a device may carry anything.
    """

    def __init__(self, roster: Roster, authority: Exits, work: Work) -> None:
        self._roster = roster
        self._authority = authority
        self._work = work
        # Exits that are gone while buyers' connections through them go on, by device.
        self._gone: dict[str, list[Attached]] = {}
        # Connections that other processes relay, by device.
        self._adopted: dict[str, dict[Adopted, None]] = {}

    def __contains__(self, device_id: str) -> bool:
        return device_id in self._gone or device_id in self._adopted

    def places(self) -> list[tuple[str, Place]]:
        """Return the devices that are attached or still carry something, and where each is."""
        places = {device_id: next(iter(each)).place for device_id, each in self._adopted.items()}
        places |= {device_id: gone[-1].place for device_id, gone in self._gone.items()}
        places |= {device_id: each.place for device_id, each in self._roster.by_device.items()}
        return list(places.items())

    def keep(self, attached: Attached) -> None:
        """Keep an exit that is gone while connections through it continue."""
        self._gone.setdefault(attached.device_id, []).append(attached)

    def forget_idle(self) -> None:
        """Forget the exits that carry nothing any more."""
        for device_id, gone in tuple(self._gone.items()):
            self._gone[device_id] = [each for each in gone if each.relays]
            if not self._gone[device_id]:
                del self._gone[device_id]

    def cut(self, device_id: str) -> None:
        """Cut every connection that continues through a device."""
        for each in self._gone.pop(device_id, ()):
            each.cut()
        for relay in tuple(self._adopted.get(device_id, ())):
            relay.abort()

    def adopt(self, device_id: str, relay: Adopted) -> None:
        """Keep a connection through a device that was attached to an earlier daemon.

        It counts at the exit once that is attached. Whether the device may carry anything at all
        is for the caller to have looked up (`recheck`), once for all that go through it.
        """
        attached = self._roster.by_device.get(device_id)
        if attached is not None:
            relay.join(attached)
        else:
            self._adopted.setdefault(device_id, {})[relay] = None

    def rejoin(self, attached: Attached) -> None:
        """Count the adopted connections of a device at its exit, which has attached."""
        for relay in self._adopted.pop(attached.device_id, ()):
            relay.join(attached)

    def disown(self, device_id: str, relay: Adopted) -> None:
        """Forget an adopted connection, which is over; harmless for any other."""
        relays = self._adopted.get(device_id, {})
        relays.pop(relay, None)
        if not relays:
            self._adopted.pop(device_id, None)

    def recheck(self, device_id: str) -> None:
        """Check the permission of a device if connections through it continue."""
        if device_id in self:
            self._work.spawn(self._recheck(device_id))

    async def _recheck(self, device_id: str) -> None:
        """Cut the relays through a device that may carry nothing."""
        try:
            grant = await self._authority.current(device_id)
        except MarketError as error:
            _logger.info("exit %s: its connections are cut: %s", device_id, error.code.word)
        except StoreError as error:  # the marketplace asks for it again
            _logger.log(
                level_of(error, logging.WARNING),
                "exit %s: cannot be looked up now: %s",
                device_id,
                error,
            )
            return
        else:
            if not grant.paused:
                return
        self.cut(device_id)
