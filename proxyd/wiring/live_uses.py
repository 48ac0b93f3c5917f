"""Use of the sessions in this process's memory, for their buyers to watch."""

from collections.abc import Collection

from market.notify.live_usage import LiveUse
from proxyd.metering.meter import Meter


class LiveSessions:
    """Answers `market.notify.live_usage.LiveUses`."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def live(self, user_ids: Collection[str]) -> list[LiveUse]:
        """See `LiveUses.live`; a look at each session that is known, asked for once a second."""
        return [
            LiveUse(each.id, each.user_id, each.lease_id, each.used, len(each.connections))
            for each in self._meter.sessions
            if each.user_id in user_ids and each.is_leased and each.lease_id is not None
        ]
