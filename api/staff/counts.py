"""Numbers of requests to the staff API, for the metrics."""

from collections import Counter
from typing import Literal

from api.http.errors import TransportError
from api.routing.routes import Route, StaffRoute
from market.base.errors import Code, MarketError

Result = Literal["done", "refused", "failed"]


class StaffCounts:
    """Requests to the staff API since the start, by operation and result.

    `failed_logins` counts wrong passwords and codes, also of a login that proves its factor again.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, Result]] = Counter()
        self.failed_logins = 0

    def count(self, route: Route, error: Exception | None) -> None:
        """Count a request; without an error it was done."""
        assert isinstance(route, StaffRoute)  # noqa: S101 - the staff API has no others
        self.requests[route.action.value, _result(error)] += 1
        if isinstance(error, MarketError) and error.code is Code.INVALID_CREDENTIALS:
            self.failed_logins += 1


def _result(error: Exception | None) -> Result:
    if error is None:
        return "done"
    return "refused" if isinstance(error, MarketError | TransportError) else "failed"
