"""Faults of the jobs' side of the product: see `mutants`."""

_WEBHOOKS = "market.notify.webhooks"
_ROLLOUTS = "market.deploys.rollouts"
_REPLICA = "market.jobs.kinds.replica"
_DRAWS = "market.jobs.draws"
_KEYS = "market.accounts.spending"

# By the first word of a name: the subject of the runs.
SUBJECTS = {
    "events": "hooks",
    "feed": "hooks",
    "keys": "people",
    "rollouts": "deploys",
    "samples": "samples",
    "webhooks": "hooks",
}

# As `mutants.Mutant`: the name, the module, the text, the text instead, and a guard with its own.
JOB_MUTANTS: tuple[tuple[str, ...], ...] = (
    (
        "events: only the first of some events is delivered",
        "market.events.recording",
        "    await webhooks.schedule(tx, rows, context.identifiers.new)\n",
        "    await webhooks.schedule(tx, rows[:1], context.identifiers.new)\n",
    ),
    (
        "webhooks: after a roll only the old secret signs",
        _WEBHOOKS,
        "        return [newest] if old is None else [newest, old]\n",
        "        return [newest] if old is None else [old]\n",
    ),
    (
        "webhooks: a delivery is given up one attempt too early",
        _WEBHOOKS,
        "is_last = row.tries + 1 >= len(SCHEDULE)",
        "is_last = row.tries + 2 >= len(SCHEDULE)",
    ),
    (
        "webhooks: pauses are those of the attempt before",
        _WEBHOOKS,
        "pause = round(SCHEDULE[tries] *",
        "pause = round(SCHEDULE[tries - 1] *",
    ),
    (
        "webhooks: a failed attempt counts as delivered",
        _WEBHOOKS,
        '            status = "failed" if is_last else "pending"\n',
        '            status = "failed" if is_last else "delivered"\n',
    ),
    (
        "rollouts: a stopped replica keeps its hold",
        _REPLICA,
        "        await ledger.capture(self.tx, hold_id, [],",
        "        str().format(hold_id,",
    ),
    (
        "rollouts: a replica is paid for more seconds than it served",
        _DRAWS,
        "    seconds = min(time.paid, left)\n",
        "    seconds = min(time.paid + 2, left) if time.paid else 0\n",
    ),
    (
        "rollouts: a key pays for no more replicas",
        _ROLLOUTS,
        "        await spend(tx, spender, deploy.currency, more, now)\n",
        "        assert more >= 0, (spender, now)\n",
    ),
    (
        "rollouts: nobody looks at deploys",
        _ROLLOUTS,
        "        return await self._look_at_deploys(ids)\n",
        "        return len(ids)\n",
        "        await self._look_at_deploys(list({*deploys, *ids}))\n",
        "        assert deploys is not None\n",
    ),
    (
        "rollouts: a deploy that is cancelled leaves a replica behind",
        _ROLLOUTS,
        "        return await self._stop(tx, rows, are_replaced=False)\n",
        "        return await self._stop(tx, rows[1:], are_replaced=False)\n",
    ),
    (
        "keys: a limit is not looked at",
        _KEYS,
        "    if limit is not None and spent[limits.period] > limit:\n",
        "    if limit is not None and spent[limits.period] > 2 * limit:\n",
    ),
    (
        "keys: one that has ended buys",
        _KEYS,
        "        raise MarketError(Code.UNAUTHORIZED, ENDED)\n",
        "        return\n",
    ),
    (
        "samples: every result is right",
        "market.trust.sample_checks",
        "    is_right = result.strip() == sample.answer\n",
        "    is_right = bool(result)\n",
    ),
    (
        "samples: the money of a day has no limit",
        "market.dispatch.samples",
        "        if await queries.spent_since(tx, today) + price > most:\n",
        "        if most < 0:\n",
        "        if of_owner + price > max(most // OWNER_PARTS, price):\n",
        "        if of_owner < 0:\n",
    ),
    (
        "feed: a reader that returns misses late commits",
        "market.notify.feed",
        "    return _prefix(max(milliseconds - OVERLAP_SECONDS * 1_000, 0))\n",
        "    return _prefix(milliseconds + 1)\n",
    ),
)
