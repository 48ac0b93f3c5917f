"""Rules that stop sessions: the halt, the e-mail, the suspension after several, and the trial.

A stop is one transaction: the halt with its end, the ticket, the event, and the row of the stop.
One guarded update decides about it: a session that is over, halted, or was released since the
finding is not stopped, so one finding never stops twice. The e-mail and the suspension follow
within seconds, in a sweep of one process.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from market.accounts.letters import Letters
from market.accounts.levels import Limited, NewAccounts, has_used_its_day, limited
from market.accounts.mail import session_halted
from market.accounts.suspensions import Part
from market.base.errors import Code, MarketError
from market.base.sweeping import Sweep
from market.events.catalogue import timestamp
from market.events.context import Context
from market.money.money import GB
from market.staff.abuse import rule_tickets
from market.staff.abuse.rule_tickets import (
    CATEGORIES,
    COUNTED_DAYS,
    DAY_SECONDS,
    Found,
    Peak,
    RuleSetting,
)
from market.staff.base.acts import permit, reason
from market.staff.base.roles import Action, Author, Rule
from market.staff.stopping.halting import Halt, NotHaltedError, halt_for_a_time
from market.staff.stopping.suspending import Suspension, suspend_in
from storage.accounts import levels as level_queries
from storage.accounts import suspensions as suspension_queries
from storage.engines.store import Transaction
from storage.staff.abuse import looks as look_queries
from storage.staff.abuse import rule_stops as queries
from storage.staff.abuse.rule_stops import PeakRow, StopRow, TrialRow
from storage.staff.base.writes import lock_head

# An older finding, which has waited for the store to return, opens a ticket and stops nothing.
FRESH_SECONDS = 300
STOPS_SECONDS = DAY_SECONDS  # in which the stops of a user are counted
TOLD_MAX = 100  # in one turn of the sweep
DAILY = "new_account"  # the rule that halts until midnight
LEASED_MAX = 10_000  # sessions of new accounts, in one turn
REPEATED = "stops"  # the rule that suspends after several stops
SUSPENDED = (Part.KEYS, Part.SESSIONS)

_logger = logging.getLogger("abuse")


class Stopped(Struct, frozen=True):
    """A stop: the end of the halt, and the ticket, None while too many tickets are open."""

    until: int
    ticket: int | None


async def stop(context: Context, found: Found, halt_seconds: int) -> Stopped | None:
    """Halt the session of a finding for a time, and open or extend the ticket of its user.

    Return None if the session is over, halted, or was released since the finding.

    Args:
        context: the open store.
        found: the finding.
        halt_seconds: the time of the halt.
    """
    try:
        return await context.store.write(_stop, context, found, halt_seconds)
    except NotHaltedError:
        return None


def is_fresh(context: Context, found: Found) -> bool:
    """Return whether a finding may stop; an old one, after an outage of the store, may not."""
    return context.now() - found.at <= FRESH_SECONDS


async def _stop(
    tx: Transaction, context: Context, found: Found, halt_seconds: int
) -> Stopped | None:
    await lock_head(tx)
    owner = await rule_tickets.owner_of(tx, found.session_id)
    if owner is None:
        return None
    until = context.now() + halt_seconds
    row = StopRow(
        found.session_id,
        found.rule,
        found.at,
        owner.user_id,
        until,
        json.dumps(found.figures, sort_keys=True),
    )
    if not await queries.insert(tx, row):
        return None
    halt = Halt(found.rule, found.session_id, owner.user_id, found.at, until, found.words)
    await halt_for_a_time(tx, context, halt)
    try:
        ticket = await rule_tickets.open_or_extend(tx, context, owner.user_id, found)
    except MarketError as error:
        if error.code is not Code.TOO_MANY_TICKETS:
            raise
        return Stopped(until, None)  # a full list must not let the session go on
    return Stopped(until, ticket.number)


async def raise_peaks(context: Context, peaks: Sequence[Peak]) -> None:
    """Record the highest figures of sessions.

    Raises:
        StoreError: they are not recorded.
    """
    rows: dict[tuple[int, str, str], PeakRow] = {}
    for each in peaks:
        hour = each.at // queries.HOUR_SECONDS
        row = PeakRow(hour, each.rule, each.session_id, each.amount, each.failed_percent)
        key = (hour, each.rule, each.session_id)
        rows[key] = max(rows.get(key, row), row, key=lambda peak: peak.amount)
    await context.store.write(queries.raise_peaks, rows.values())


class RuleStops:
    """The sweep that follows stops: e-mails to buyers, and suspensions.

    Attributes:
        stops_to_suspend: the number of stops within 24 hours after which a user is suspended; 0 for
            never.
    """

    def __init__(self, context: Context, letters: Letters, stops_to_suspend: int) -> None:
        self._context = context
        self._letters = letters
        self.stops_to_suspend = stops_to_suspend
        self._told = Sweep("the stop of a rule %s has no e-mail", _logger)
        self._daily = Sweep("session %s of a new account cannot be halted", _logger)

    async def follow(self) -> int:
        """Send the e-mails of new stops, and suspend users with too many; return their number.

        Raises:
            StoreError: the others are followed later.
        """
        store = self._context.store
        rows: dict[str, StopRow] = {}

        async def find(most: int) -> list[str]:
            found = await store.read(queries.untold, limit=most)
            rows.update({f"{each.session_id} {each.rule} {each.found_at}": each for each in found})
            return list(rows)

        async def follow(name: str) -> None:
            await store.write(self._follow, rows[name])

        followed = await self._told.run(find, follow, most=TOLD_MAX, now=self._context.now())
        if followed:
            self._letters.wake()
        return followed

    async def halt_used_days(self, new_accounts: NewAccounts) -> int:
        """Halt sessions of new accounts until midnight (UTC), if the bytes of the day are used.

        Return the number of halted sessions.

        Raises:
            UnavailableError: the others are halted later.
        """
        store, now = self._context.store, self._context.now()
        owners: dict[str, str] = {}
        limits: dict[str, Limited | None] = {}
        halted = 0

        async def find(most: int) -> list[str]:
            since = now - new_accounts.seconds
            owners.update(await store.read(level_queries.leased_of_new, since=since, limit=most))
            return sorted(owners, key=lambda each: (owners[each], each))

        async def halt(session_id: str) -> None:
            nonlocal halted
            user_id = owners[session_id]
            if user_id not in limits:
                limits[user_id] = await store.read(_used_day, user_id, new_accounts, now)
            used = limits[user_id]
            if used is None:
                return
            with suppress(NotHaltedError):
                await store.write(self._halt_day, session_id, user_id, used, now)
                halted += 1

        await self._daily.run(find, halt, most=LEASED_MAX, now=now)
        return halted

    async def _halt_day(
        self, tx: Transaction, session_id: str, user_id: str, limits: Limited, now: int
    ) -> None:
        most = limits.bytes_per_day / GB
        words = f"This account is new, and its sessions use at most {most:g} GB a day (UTC)."
        midnight = now - now % DAY_SECONDS + DAY_SECONDS
        halt = Halt(DAILY, session_id, user_id, now, midnight, words)
        await halt_for_a_time(tx, self._context, halt)

    async def delete_old(self) -> int:
        """Delete stops and peaks of more than 30 days ago, and old questions; return their number.

        Raises:
            StoreError: they are deleted later.
        """
        store, now = self._context.store, self._context.now()
        questions = await store.write(look_queries.delete_old, now=now)
        return questions + await store.write(queries.delete_old, now=now)

    async def _follow(self, tx: Transaction, row: StopRow) -> None:
        context, now = self._context, self._context.now()
        await lock_head(tx)
        if not await queries.tell(tx, row, now=now):
            return
        found = Found(row.rule, row.session_id, row.found_at, queries.figures_of(row))
        await self._letters.put(
            tx,
            row.user_id,
            f"session halted:{row.session_id}",
            partial(
                session_halted,
                name=row.session_id,
                reason=found.words,
                until=timestamp(row.halted_until),
            ),
        )
        most, since = self.stops_to_suspend, now - STOPS_SECONDS
        stops = await queries.uncounted(tx, row.user_id, since=since)
        if not most or len(stops) < most:
            return
        await queries.count(tx, row.user_id, since=since, now=now)
        suspended = {each.part for each in await suspension_queries.of_user(tx, row.user_id)}
        if not suspended.issuperset(SUSPENDED):
            await suspend_in(tx, context, self._letters, _suspension(row.user_id, stops))


async def _used_day(
    tx: Transaction, user_id: str, new_accounts: NewAccounts, now: int
) -> Limited | None:
    """Return the limits of a new account that has used the bytes of its day, else None."""
    limits = await limited(tx, user_id, new_accounts, now)
    if limits is None or not await has_used_its_day(tx, user_id, limits, now):
        return None
    return limits


def _suspension(user_id: str, stops: Sequence[StopRow]) -> Suspension:
    names = ", ".join(sorted({each.rule for each in stops}))
    shown = (
        f"Rules have halted your sessions {len(stops)} times within 24 hours ({names}). "
        "A person looks at it, and decides."
    )
    why = reason(f"{len(stops)} stops within 24 hours: {names}")
    return Suspension(Rule(REPEATED), user_id, SUSPENDED, None, shown, why)


class Threshold(Struct, frozen=True):
    """The figures above which a rule finds a session; `more_than` 0 is off."""

    more_than: int
    failed_percent: int = -1


class RuleTrial(Struct, frozen=True):
    """The last 30 days of one rule: stops, tickets, and the findings of a threshold."""

    rule: str
    threshold: Threshold
    stops: int
    tickets: int
    would: TrialRow


def thresholds(settings: Sequence[RuleSetting]) -> dict[str, Threshold]:
    """Return the figures of each rule by its name."""
    return {each.name: Threshold(each.more_than, each.failed_percent) for each in settings}


async def trial(
    context: Context, author: Author, thresholds: Mapping[str, Threshold]
) -> list[RuleTrial]:
    """Return what thresholds would have found in the last 30 days, for each rule.

    Peaks below a quarter of the thresholds of that time are not recorded.

    Raises:
        MarketError: `not_permitted`.
    """
    since = context.now() - COUNTED_DAYS * DAY_SECONDS
    return await context.store.read(_trial, author, thresholds, since)


async def _trial(
    tx: Transaction, author: Author, thresholds: Mapping[str, Threshold], since: int
) -> list[RuleTrial]:
    await permit(tx, author, Action.RULE_READ)
    stops = await queries.stopped(tx, since=since)
    opened = dict(await rule_tickets.opened(tx, since))
    nothing = TrialRow(0, 0, 0)
    return [
        RuleTrial(
            rule,
            each,
            stops.get(rule, 0),
            opened.get(CATEGORIES[rule], 0),
            nothing
            if not each.more_than
            else await queries.trial(
                tx,
                rule,
                since=since,
                more_than=each.more_than,
                failed_percent=each.failed_percent,
            ),
        )
        for rule, each in thresholds.items()
    ]
