"""Daemons of fixtures with other bounds than usual."""

from typing import Any

import pytest

from api.http.limits import ConnectionTimes
from proxyd.gateway import ClientBounds
from proxyd.metering.meter import MeterBounds
from proxyd.metering.single_flight import NegativeBounds
from proxyd.relay.closing import ClosingBounds
from proxyd.wiring.bounds import Bounds, ExitBounds
from proxyd.wiring.market_work import CheckTimes


def bounded(bounds: Bounds) -> pytest.MarkDecorator:
    """Mark a test with bounds for the daemon of the `service` fixture, or for a port."""
    return pytest.mark.parametrize("bounds", [bounds], ids=["bounded"])


def api_bounds(**times: Any) -> Bounds:
    """Return usual bounds but for the times of the API's connections (`ConnectionTimes`)."""
    return Bounds(api=ConnectionTimes(**times))


def closing_bounds(**bounds: float) -> Bounds:
    """Return the usual bounds with other `ClosingBounds` (sockets that are being closed)."""
    return client_bounds(closing=ClosingBounds(**bounds))


def unknown_bounds(**bounds: Any) -> Bounds:
    """Return usual bounds but for the bounds on unknown credentials (`NegativeBounds`)."""
    return Bounds(metering=MeterBounds(unknown=NegativeBounds(**bounds)))


def exit_bounds(**bounds: Any) -> Bounds:
    """Return the usual bounds with other `ExitBounds`."""
    return Bounds(exits=ExitBounds(**bounds))


def check_bounds(**times: float) -> Bounds:
    """Return usual bounds but for how often sessions, bonuses and exits are checked."""
    return Bounds(checks=CheckTimes(**times))


def client_bounds(**bounds: Any) -> Bounds:
    """Return the usual bounds with other `ClientBounds`."""
    return Bounds(clients=ClientBounds(**bounds))
