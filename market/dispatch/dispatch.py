"""Work for devices that request it: each held request returns jobs, and actions to stop.

A device sends its free resources, its present attempts, and its waiting time. The daemon queries
the store for the device's jobs and actions only after a change: a wake-up, or a device with other
attempts than assigned. Otherwise a request needs no query, and a matched job needs a share of one
transaction (`market.dispatch.claims`).

If a device did not receive a reply, the reply to its next request repeats the jobs: the request
does not name them, so they are looked up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from msgspec import structs

from market.accounts.bounds import Bounds
from market.attempts.attempts import Action
from market.base.bus import DEVICES
from market.dispatch.asks import (
    USUAL_PACE,
    Ask,
    DispatchPace,
    DispatchTerms,
    GivenJob,
    OfferedJob,
    Offers,
    SayHeld,
    Told,
    replaced,
)
from market.dispatch.device import AskingDevice, Request
from market.dispatch.devices import AskingDevices
from market.dispatch.given_jobs import GivenJobs
from market.dispatch.looking import Lookups
from market.dispatch.pairing import Pairing
from market.dispatch.samples import Samples
from market.events.context import Context
from market.jobs.specs import Specs
from market.trust import trust
from storage.devices.devices import DeviceRow
from storage.dispatch import claims as queries


class Dispatch:
    """Assignment of jobs to devices that request work.

    Args:
        bounds: returns the limits of a device.
        terms: the terms of the replies; may be replaced.
        end_unreadable: ends a job whose secrets cannot be read any more.
        samples: gives jobs with known results; None without samples.
        pace: times and sizes; may be replaced.
    """

    def __init__(
        self,
        context: Context,
        specs: Specs,
        bounds: Callable[[], Bounds],
        terms: DispatchTerms,
        end_unreadable: Callable[[str], Awaitable[None]],
        samples: Samples | None = None,
        pace: DispatchPace = USUAL_PACE,
    ) -> None:
        self.terms = terms
        self.pace = pace
        self.pairing = Pairing(
            context, specs, bounds, terms.credit, lambda: self.pace, end_unreadable
        )
        self.jobs = self.pairing.jobs
        self.claims = self.pairing.claims
        self.devices = AskingDevices(self.jobs, lambda: self.pace)
        self.lookups = Lookups(context, samples)
        self._given_jobs = GivenJobs(context.store, specs, end_unreadable)
        self._store = context.store
        self._is_draining = False
        context.bus.subscribe(DEVICES, self._devices_wake)
        context.bus.on_missed(lambda: self._devices_wake(tuple(self.devices)))

    async def run(self) -> None:
        """Keep waiting jobs in memory, until cancelled."""
        await self.pairing.reader.run()

    async def offers(self, row: DeviceRow, limit: int, network: str = "") -> Offers:
        """Return waiting jobs that a device could get, the best first.

        The comparison uses its last offer here, or else its last report, which has its total and
        not its free resources.
        """
        offer = self.devices.offer_of(row)
        offer = structs.replace(offer, capacity=replace(offer.capacity, slots=1))
        reputation = (await self._store.read(trust.of_devices, [row.id]))[row.id]
        suitable = self.jobs.best(offer, row.user_id, reputation.score, network)
        best = list(islice(suitable, limit))
        found = await self._store.read(queries.offered, [job.id for job in best])
        rows = {each.job_id: each for each in found}
        jobs = [OfferedJob(rows[job.id], job.price) for job in best if job.id in rows]
        return Offers(jobs, reputation)

    def price(self, price_credit: int, duration_hrs: int) -> int:
        """Return the price of a job as in an `Offer`, by its price in micro-credits."""
        return price_credit * self.terms.credit // duration_hrs

    @property
    def held(self) -> int:
        """Number of held requests of devices."""
        return self.devices.held.total

    def drain(self) -> None:
        """Answer every held request immediately, and stop holding requests."""
        self._is_draining = True
        self.lookups.drain()
        self._wake(self.devices)

    async def next(self, row: DeviceRow, ask: Ask, say_held: SayHeld | None = None) -> Told:
        """Return jobs and actions for a device when any exist, or after its wait.

        A second request of a device replaces the first, which gets an empty reply.

        Args:
            row: the device.
            ask: the content of the request.
            say_held: called each `sign_seconds` during the wait; an exception from it ends the wait
                without a loss.

        Raises:
            MarketError: `worker_unauthorized`, when the device was revoked meanwhile; `too_busy`,
                when too many devices wait, or too many of this owner's.
            StoreError: probably no job was assigned to the device.
        """
        device = self.devices.of(row.id)
        if not device.presence.is_for(ask.agent, asyncio.get_running_loop().time(), self.pace):
            return replaced(ask)
        earlier, request = device.presence.request, Request(row, device, ask, say_held)
        del row  # of twenty fields; thousands wait here
        if earlier is None:
            self.devices.held.take(request.owner, self.terms.held_max)
        device.ask(request, ask)
        if earlier is not None:
            self.pairing.waiting.remove(earlier)
            earlier.wake()
        is_broken_off = False
        try:
            return await self._given_jobs.with_files(await self._answer(request, ask))
        except (asyncio.CancelledError, ConnectionError):
            is_broken_off = True
            raise
        finally:
            if request.is_wanted:
                now = asyncio.get_running_loop().time()
                device.presence.end(now, is_broken_off=is_broken_off)
                self.pairing.waiting.remove(request)
                self.devices.held.give(request.owner)

    async def _answer(self, request: Request, ask: Ask) -> Told:
        device, loop = request.device, asyncio.get_running_loop()
        until = loop.time() + min(ask.wait_seconds, self.terms.wait_seconds)
        await device.holding.settle()  # jobs of an earlier request
        must_look = device.holding.attempts != ask.attempts
        while request.is_wanted:
            if not request.claiming and (must_look or not device.holding.is_known):
                must_look = False
                told = await self._looked_up(request, ask)
                if told is not None:
                    return told
                continue
            if not request.claiming and not self._is_draining:
                self.pairing.match(request)
            seconds = until - loop.time()
            if not request.claiming and (seconds <= 0 or self._is_draining):
                break
            is_full = request.offer is not ask.offer or request.owner in self.pairing.full
            await self._wait(request, min(seconds, self.pace.full_seconds) if is_full else seconds)
            if is_full:
                request.offer = ask.offer
            if request.error is not None:
                raise request.error
            jobs = await self._claimed_for(request)
            if jobs:
                return self._told(device, ask, jobs)
        return replaced(ask) if device.presence.has_other(ask.agent) else self._told(device, ask)

    async def _looked_up(self, request: Request, ask: Ask) -> Told | None:
        """Look a device up. Return the answer to it, or None for nothing new."""
        rows, actions = await self.lookups.look(request, ask)
        jobs = await self._given_jobs.readable(rows)
        if jobs or actions:
            return self._told(request.device, ask, jobs, actions)
        return None

    async def _wait(self, request: Request, seconds: float) -> None:
        """Wait until something has happened to a request, or its time is over."""
        loop = asyncio.get_running_loop()
        request.future = loop.create_future()
        if request.claiming:
            await request.future
            return
        self.pairing.waiting.add(request)
        until = loop.time() + seconds
        try:
            while not await request.is_woken(min(until - loop.time(), self.terms.sign_seconds)):
                if loop.time() >= until:
                    return
                # Before an await, so that a wake-up meanwhile is not lost.
                request.future = loop.create_future()
                if request.say_held is not None:
                    await request.say_held()
        finally:
            self.pairing.waiting.remove(request)

    def _told(
        self,
        device: AskingDevice,
        ask: Ask,
        jobs: Sequence[GivenJob] = (),
        actions: Sequence[Action] = (),
    ) -> Told:
        """Return an answer, with a number that neither side has had."""
        keys = [(job.row.job_id, job.row.attempt) for job in jobs]
        return Told(jobs, actions, device.answers.add(ask, keys, actions))

    async def _claimed_for(self, request: Request) -> list[GivenJob]:
        """Return the jobs that were claimed for a request, if it still waits."""
        if not (request.jobs and request.is_wanted):
            return []
        rows, request.jobs = request.jobs, []
        return await self._given_jobs.readable(rows)

    def _devices_wake(self, device_ids: Sequence[str]) -> None:
        """Look devices up again, because an attempt or the token of each may have ended."""
        for device in filter(None, map(self.devices.find, device_ids)):
            device.holding.doubt()
            self.pairing.full.discard(device.owner)
        self._wake(device_ids)

    def _wake(self, device_ids: Iterable[str]) -> None:
        for device in filter(None, map(self.devices.find, device_ids)):
            device.wake()
