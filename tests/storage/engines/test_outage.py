"""Outage of the store: one line for consecutive failures."""

import logging

import pytest

from storage.engines.errors import StoreError
from storage.engines.outage import Outage


def test_consecutive_failures_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("test"), "writes wait for the store", logging.ERROR)
    for _ in range(3):
        outage.failed(StoreError("disk full"))
    outage.ended()
    outage.failed(StoreError("disk full again"))
    assert [record.getMessage() for record in caplog.records] == [
        "writes wait for the store: disk full",
        "writes wait for the store: disk full again",
    ]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
