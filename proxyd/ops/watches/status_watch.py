"""Looks at the parts of the service for the page of its status."""

from collections.abc import Callable

from market.site.status import FAILING, OFF, WORKING, State, Status


class StatusWatch:
    """Records the state of each part; only the sweeping daemon of a database looks.

    Args:
        status: records the looks.
        is_listening: whether the proxy accepts clients.
        has_exits: whether devices can attach.
        is_mail_away: whether the mail server is unavailable; None without a mail server.
    """

    def __init__(
        self,
        status: Status,
        *,
        is_listening: Callable[[], bool],
        has_exits: bool,
        is_mail_away: Callable[[], bool] | None,
    ) -> None:
        self._status = status
        self._is_listening = is_listening
        self._has_exits = has_exits
        self._is_mail_away = is_mail_away

    async def look(self) -> None:
        """Record the present state.

        The API and the work on jobs run in this process, so they work while it looks. A look that
        the database refuses is missing, and counts as an outage.

        Raises:
            StoreError: nothing was recorded.
        """
        mail = OFF if self._is_mail_away is None else _state(not self._is_mail_away())
        await self._status.look(
            {
                "api": WORKING,
                "proxy": _state(self._is_listening()),
                "exits": WORKING if self._has_exits else OFF,
                "jobs": WORKING,
                "mail": mail,
                "database": WORKING,
            }
        )


def _state(works: bool) -> State:
    return WORKING if works else FAILING
