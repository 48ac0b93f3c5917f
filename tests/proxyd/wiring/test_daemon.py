"""The daemon's own loops go on after every failure, and end in order."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.base.waiting import until
from support.daemons.service import Service, running_in
from support.daemons.two_processes import daemon_of, two_processes
from support.database import sqlite

from proxyd.wiring.daemon import Daemon, Stop
from proxyd.wiring.membership import NODE_TASK
from storage.engines.errors import UnavailableError

Leave = Callable[[], Awaitable[None]]


@pytest.mark.parametrize("error", [LookupError("has no hold"), UnavailableError("gone")])
async def test_a_sweep_that_fails_is_logged_once_and_tried_again(
    service: Service, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    outcomes: list[Exception | None] = [error, error, None, error, None]
    done = []

    async def sweep() -> None:
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome
        done.append(None)

    service.daemon.tasks.every(0, "lost", sweep, "lost things")
    await until(lambda: len(done) >= 3, "it goes on")
    told = [each for each in caplog.records if "lost things wait" in each.getMessage()]
    assert len(told) == 2
    assert not service.daemon.tasks.has_failed


async def test_the_store_is_closed_once_although_something_before_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("cannot be closed")

    closed = []
    async with running_in(tmp_path) as service:
        daemon = service.daemon
        close = daemon.store.close

        async def closing() -> None:
            closed.append(None)
            await close()

        with monkeypatch.context() as patched:
            resolver = SimpleNamespace(close=broken)
            patched.setattr(daemon, "helpers", replace(daemon.helpers, resolver=resolver))
            patched.setattr(daemon.store, "close", closing)
            with pytest.raises(RuntimeError, match="cannot be closed"):
                await daemon.close()
            await daemon.close()
        assert closed == [None]
        await daemon.helpers.close()


async def test_a_close_that_is_interrupted_closes_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = asyncio.Event()
    closed = []

    async with running_in(tmp_path) as service:
        daemon = service.daemon
        assert daemon.services is not None
        stop_serving, close = daemon.services.stop_serving, daemon.store.close

        async def hang() -> None:
            await stop_serving()
            hanging.set()
            await asyncio.Event().wait()

        async def closing() -> None:
            closed.append(None)
            await close()

        with monkeypatch.context() as patched:
            patched.setattr(daemon.services, "stop_serving", hang)
            patched.setattr(daemon.store, "close", closing)
            task = asyncio.create_task(daemon.close())
            await hanging.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert closed == [None]


async def test_a_node_that_leaves_is_renewed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal that found no row registered the node again, and left it behind."""
    renewing: list[bool] = []
    async with two_processes(sqlite.database(tmp_path)) as service:
        for daemon in (daemon_of(service).first, daemon_of(service).second):
            leave = daemon.core.membership.leases.leave

            async def leaving(daemon: Daemon = daemon, leave: Leave = leave) -> None:
                tasks = [each for each in daemon.tasks.named(NODE_TASK) if not each.done()]
                renewing.append(bool(tasks))
                await leave()

            monkeypatch.setattr(daemon.core.membership.leases, "leave", leaving)
    assert renewing == [False, False]


async def test_a_second_signal_cuts_one_process_and_not_one_of_several() -> None:
    alone, among_others = Stop(is_cut_by_second=True), Stop(is_cut_by_second=False)
    for stop in (alone, among_others):
        stop.drain()
        assert (stop.draining.is_set(), stop.cutting.is_set()) == (True, False)
        stop.drain()
    assert (alone.cutting.is_set(), among_others.cutting.is_set()) == (True, False)
    among_others.cut()
    assert among_others.cutting.is_set()
