"""Where the API's tests have their files, and time that stands still."""

import itertools

import pytest
from support.base.memory import memory_path

__all__ = ["memory_path"]


@pytest.fixture
def no_time_for_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no time pass for the rates of callers: a slow machine's requests are within any rate."""
    for module in ("api.server", "api.reverse.server"):
        monkeypatch.setattr(f"{module}.monotonic", lambda: 0.0)


@pytest.fixture
def much_time_for_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a second pass before each request: a quick machine's requests are within any rate."""
    seconds = itertools.count()
    monkeypatch.setattr("api.server.monotonic", lambda: float(next(seconds)))
