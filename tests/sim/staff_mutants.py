"""Faults of the staff's side of the product: see `mutants`."""

# By the first word of a name: the subject of the runs.
SUBJECTS = {"halts": "halts"}

# As `mutants.Mutant`: the name, the module, the text, and the text instead.
STAFF_MUTANTS: tuple[tuple[str, ...], ...] = (
    (
        "halts: a node acknowledges an order, and cuts nothing",
        "proxyd.halt_watch",
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
        "        due = [row.part for row in rows if row.ends_at is not None and row.ends_at <= now]\n",
        "        due = [row.part for row in rows if row.ends_at is not None and row.ends_at < 0]\n",
    ),
)
