"""Faults of the jobs' side of the product: see `mutants`."""

_WEBHOOKS = "market.notify.webhooks"
_ROLLOUTS = "market.deploys.rollouts"
_REPLICA = "market.jobs.kinds.replica"
_DRAWS = "market.jobs.draws"
_KEYS = "market.accounts.spending"
_GOODNESS = "market.assistant.goodness"
_ARTIFACTS = "market.files.artifacts"
_LOGS = "market.logs.logs"

# By the first word of a name: the subject of the runs.
SUBJECTS = {
    "deeds": "deeds",
    "events": "hooks",
    "feed": "hooks",
    "files": "files",
    "keys": "people",
    "logs": "files",
    "rollouts": "deploys",
    "samples": "samples",
    "supply": "deploys",
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
    (
        "deeds: a photo is not compared with photos like it",
        _GOODNESS,
        "                if any(probe.is_like(stored) for probe in lookups[row_bands[band]]):\n",
        "                if not stored and lookups[row_bands[band]]:\n",
    ),
    (
        "deeds: two photos at the same time do not see each other",
        _GOODNESS,
        "    decision = await refusal(tx, reward, likeness, terms)\n    if decision",
        "    decision = None\n    if decision",
    ),
    (
        "deeds: a user has no cap",
        _GOODNESS,
        "    if paid.to_user + reward.amount > terms.user_daily:\n",
        "    if paid.to_user < 0:\n",
    ),
    (
        "deeds: all users together have no cap",
        _GOODNESS,
        "    if paid.to_all + reward.amount > terms.total_daily:\n",
        "    if paid.to_all < 0:\n",
    ),
    (
        "deeds: doubtful photos are paid",
        _GOODNESS,
        '            (verdict.confidence < self._terms.confidence_min, "unsure"),\n',
        "",
    ),
    (
        "deeds: a model that failed is never called again",
        "market.assistant.asking",
        "        if self._now() < self._open_until:\n",
        "        if self._open_until:\n",
    ),
    (
        "deeds: a model that does not stop is left to talk on",
        "market.assistant.asking",
        "async with aclosing(self._model.stream(question, _left(deadline))) as pieces:\n",
        "if pieces := self._model.stream(question, _left(deadline)):\n",
    ),
    (
        "files: a job is given a file that is not whole",
        _ARTIFACTS,
        "        if row.content_id is None:\n            raise MarketError(Code.INVALID_FIELD, NOT",
        "        if not row.id:\n            raise MarketError(Code.INVALID_FIELD, NOT",
    ),
    (
        "files: an input of an open job is deleted",
        _ARTIFACTS,
        "    if await _is_needed(tx, artifact_id, now) or await _is_being_sent(tx, row):\n",
        "    if await _is_being_sent(tx, row):\n",
    ),
    (
        "files: bytes with another hash become whole",
        "storage.blobs.local",
        "            if digest != upload.sha256:\n",
        "            if not digest:\n",
    ),
    (
        "files: a content is deleted with the first of its artifacts",
        "storage.files.artifacts",
        "            AND NOT EXISTS (SELECT 1 FROM artifacts WHERE content_id = :id)\n",
        "",
    ),
    (
        "files: a user may keep any number of bytes",
        _ARTIFACTS,
        "    if most_bytes and used.size_bytes + row.size_bytes > most_bytes:\n",
        "    if most_bytes < 0:\n",
    ),
    (
        "files: files of ended attempts are kept",
        _ARTIFACTS,
        "            await self._store.write(queries.expire_at, each.id, at)\n",
        "            assert at\n",
    ),
    (
        "logs: bytes that are stored already are stored again",
        _LOGS,
        "                await writer.take(pieces, size - offset)\n",
        "                await writer.take(pieces, 0)\n",
    ),
    (
        "logs: a result is accepted without its log",
        "market.jobs.jobs",
        "        return all(stored.get(stream, 0) >= size for stream, size in announced.items())\n",
        "        return bool(stored)\n",
    ),
    (
        "logs: a result is accepted before its log is synced",
        _LOGS,
        "            await self.disk.run(LogFiles.sync, attempt)\n",
        "",
    ),
    (
        "logs: a reader gets the last write at any place",
        _LOGS,
        "            if handed and not is_over and (handed.attempt, handed.offset) == (",
        "            if handed and not is_over and (handed.attempt, offset) == (",
    ),
    (
        "supply: a device that works is not counted",
        "market.dispatch.devices",
        "                yield Supplying(\n",
        "                if not device.holding.attempts: yield Supplying(\n",
    ),
    (
        "supply: the prices of few buyers are shown",
        "market.dispatch.supply",
        " or len({each.buyer for each in jobs}) < PAID_BUYERS_MIN:\n",
        ":\n",
    ),
)
