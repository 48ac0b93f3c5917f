"""Faults of the staff's side of the product: see `mutants`.

Of the seeds from 1 on, the 52nd finds the missing consent, the 68th the whole claim, and the sixth
the transfer that came back.
"""

# By the first word of a name: the subject of the runs.
SUBJECTS = {"connect": "money", "halts": "halts", "staff": "staff"}

# As `mutants.Mutant`: the name, the module, the text, and the text instead.
STAFF_MUTANTS: tuple[tuple[str, ...], ...] = (
    (
        "halts: a node acknowledges an order, and cuts nothing",
        "proxyd.wiring.halt_watch",
        "[(each.number, self._halting.carry_out(each)) for each in orders]",
        "[(each.number, 0) for each in orders]",
    ),
    (
        "halts: the store leases a halted session",
        "market.bandwidth.lease_transactions",
        "    if status is SessionStatus.ACTIVE and await halts.is_halted(tx, session_id):\n",
        "    if status is not SessionStatus.ACTIVE and await halts.is_halted(tx, session_id):\n",
    ),
    (
        "halts: a lease that was opened before the halt is used",
        "proxyd.metering.halting",
        "        return latest > 0.0 and asyncio",
        "        return latest < 0.0 and asyncio",
    ),
    (
        "halts: a session that may go on is refused",
        "proxyd.metering.halting",
        "        if order.kind == HaltKind.GO:\n",
        '        if order.kind == "":\n',
    ),
    (
        "halts: a suspension does not end by itself",
        "market.staff.stopping.suspending",
        "row.ends_at is not None and row.ends_at <= now]\n",
        "row.ends_at is not None and row.ends_at < 0]\n",
    ),
    (
        "staff: members approve what they have asked for",
        "market.staff.money.second_person",
        "    if row.asked_by == author_key(author) or is_same_unix_user:\n",
        "    if is_same_unix_user:\n",
    ),
    (
        "staff: a locked member acts",
        "market.staff.base.acts",
        "        if found is None or found.locked_at is not None or found.role != author.role:\n",
        "        if found is None or found.role != author.role:\n",
    ),
    (
        "staff: a repeated request acts again",
        "market.staff.base.acts",
        "        await answers.replay(tx, receipt)\n",
        "        assert receipt.request\n",
    ),
    (
        "staff: a member moves more in several parts",
        "market.staff.money.second_person_limit",
        "    return max(by_author, by_user) + abs(new.amount) > limit\n",
        "    return max(by_author, by_user) > limit\n",
    ),
    (
        "staff: a ticket that was closed is opened again",
        "market.staff.abuse.tickets",
        "    State.CLOSED: frozenset(),\n",
        "    State.CLOSED: _LATER,\n",
    ),
    (
        "staff: the keys of a closed account stay",
        "market.erasure.closing",
        "    await keys.end_all(tx, context, user_id)\n",
        "",
    ),
    (
        "staff: the names of devices are not erased",
        "storage.erasure.treatment",
        """            "name": "''",
            "hostname": "''",
""",
        """            "hostname": "''",
""",
    ),
    (
        "staff: a waiting report writes about an erased device",
        "storage.devices.devices",
        "        WHERE d.id = reports.id AND d.revoked_at IS NULL AND (\n",
        "        WHERE d.id = reports.id AND (\n",
    ),
    (
        "staff: people register without the texts",
        "market.site.gate",
        "if papers.accepted.get(each.kind, 0) < each.version])\n",
        "if papers.accepted.get(each.kind, 0) < 0])\n",
    ),
    (
        "staff: an appellant gets the whole claim beside the award",
        "market.staff.cases.appeals",
        "        void_amount=claim.most - claim.awarded,\n",
        "        void_amount=claim.most,\n",
    ),
    (
        "connect: an account that is not filled in gets payouts",
        "market.payouts.payouts",
        "        if not is_ready:\n",
        "        if is_ready is None:\n",
    ),
    (
        "connect: a transfer that came back stays paid",
        "market.payouts.payouts",
        "        if progress.failed is None:\n",
        "        if progress.failed is not None:\n",
    ),
)
