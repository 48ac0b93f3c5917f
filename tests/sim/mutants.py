"""Faults to put into the product, which the simulation must find.

A mutant is a module with one text replaced. `python -m tests.sim --mutants` runs seeds with each
until one fails, in a process of its own: `PROXYD_MUTANT` names the mutant there.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from tests.sim.exit_mutants import EXIT_MUTANTS
from tests.sim.job_mutants import JOB_MUTANTS, SUBJECTS
from tests.sim.money.mutants import MONEY_MUTANTS
from tests.sim.staff_mutants import STAFF_MUTANTS
from tests.sim.staff_mutants import SUBJECTS as STAFF_SUBJECTS

ROOT = Path(__file__).parent.parent.parent
VARIABLE = "PROXYD_MUTANT"


class Mutant(NamedTuple):
    """One fault; if two places of the product prevent it, both are replaced.

    Attributes:
        name: describes the fault.
        module: its name.
        old: a text that occurs once in the module.
        new: the text instead.
        guard: another text, which also prevents the fault; "" for none.
        instead: the text instead of `guard`.
        subject: of the runs that find it soonest, as in `focus.FOCUSES` and `acts.SUBJECTS`; "none"
            for a mix without subjects, "" for the seeds of every kind.
        equivalent: why no run can differ; "" where runs can.
    """

    name: str
    module: str
    old: str
    new: str
    guard: str = ""
    instead: str = ""
    subject: str = ""
    equivalent: str = ""


_TRANSACTIONS = "market.bandwidth.lease_transactions"
_LEASES = "market.bandwidth.leases"
_BOOK = "market.bandwidth.lease_book"
_CLUSTER = "proxyd.metering.cluster_writer"
_LEAVING = "proxyd.metering.leaving"
_SETTLING = "proxyd.metering.settling"
_SESSIONS = "proxyd.metering.sessions"
_SESSION = "proxyd.metering.session"
_NODE = "proxyd.metering.node"

MUTANTS = (
    Mutant(
        "leases: an opening whose answer was lost is not remembered",
        _LEASES,
        "                self._unsure[session_id] = lease_id\n",
        "                pass\n",
    ),
    Mutant(
        "leases: a lease is used though its node was declared dead meanwhile",
        _LEASES,
        "        if self._deaths != deaths:\n",
        "        if False:\n",
    ),
    Mutant(
        "leases: a recall does not wait",
        _LEASES,
        "            deadline = loop.time() + RECALL_SECONDS\n",
        "            deadline = loop.time()\n",
    ),
    Mutant(
        "leases: a session that is used up when its node dies is not settled",
        _LEASES,
        "            self._owes_settlements = True\n",
        "",
        subject="ends",
    ),
    Mutant(
        "leases: a report has the used bytes, not the certain ones",
        _SESSION,
        "        certain = self.used - self.sinks.waiting()\n",
        "        certain = self.used\n",
    ),
    Mutant(
        "leases: returned bytes are handed out until the reply",
        _CLUSTER,
        "            session.shrink(kept)\n"
        "            return Ask(session.certain_usage(), keep_bytes=session.granted)\n",
        "            most = session.granted - session.available + kept\n"
        "            return Ask(session.certain_usage(), keep_bytes=most)\n",
    ),
    Mutant(
        "leases: requests of bytes are forgotten with a failed report",
        _CLUSTER,
        "            self._asks.put_back(asking, returning, now)\n",
        "",
    ),
    Mutant(
        "leases: no node returns bytes that another one wants",
        _CLUSTER,
        "        if session is not None and session.available > 0:\n"
        "            self._asks.less_soon(session_id)\n",
        "        return\n",
    ),
    Mutant(
        "leases: sessions without a client keep their bytes",
        _CLUSTER,
        "                self._asks.less(session.id)\n",
        "                pass\n",
    ),
    Mutant(
        "leases: a notice of a cut is forgotten where the session is unknown",
        _LEAVING,
        "            self._sessions.refuse(session_id, status, until)\n\n    def let_go",
        "            until = until  # and forgotten\n\n    def let_go",
    ),
    Mutant(
        "leases: a session whose end was taken back is released",
        _LEAVING,
        "            if session.is_leased:\n                del self._leaving[session_id]\n"
        "            elif self",
        "            if self",
        subject="ends",
    ),
    Mutant(
        "leases: a recalled session is cut and never released",
        _LEAVING,
        "            self._sessions.cut(session_id, status)\n            self.let_go(session, None)\n",
        "            self._sessions.cut(session_id, status)\n",
    ),
    Mutant(
        "transactions: a node that was seen after all is reaped",
        _TRANSACTIONS,
        "    if node not in await nodes.seen(tx):\n        return 0\n",
        "",
        subject="silence",
    ),
    Mutant(
        "transactions: a settlement leaves leases open",
        _TRANSACTIONS,
        "    await _close(tx, await queries.open_leases(tx, session_id), now)\n"
        "    if await queries.is_used_up",
        "    if await queries.is_used_up",
    ),
    Mutant(
        "transactions: a settlement ignores the last report",
        _TRANSACTIONS,
        "    if usage is not None:\n        await exchange(tx, context, [Ask(usage)], node_id",
        "    if False:\n        await exchange(tx, context, [Ask(usage)], node_id",
    ),
    Mutant(
        "transactions: hours are not written",
        _TRANSACTIONS,
        "    await _write_usage(tx, book.moved(), tallies, now)\n",
        "    await _write_usage(tx, {}, tallies, now)\n",
    ),
    Mutant(
        "transactions: a used byte may be free",
        _TRANSACTIONS,
        "        owed = max(owed, 1)  #",
        "        owed = max(owed, 0)  #",
        subject="spent",
    ),
    Mutant(
        "transactions: a release does not report",
        _TRANSACTIONS,
        "    await exchange(tx, context, [Ask(usage) for usage in usages], node_id",
        "    await exchange(tx, context, [Ask(usage) for usage in usages[1:]], node_id",
    ),
    Mutant(
        "transactions: others do not learn that a session is over",
        _TRANSACTIONS,
        "        await tx.notify(Notice(Topic.OVER, session_id, status, node_id).text)\n",
        "        pass\n",
    ),
    Mutant(
        "book: a report is added to the one before",
        _BOOK,
        "        more = used - lease.used_bytes\n",
        "        more = used\n",
    ),
    Mutant(
        "book: returned bytes stay leased",
        _BOOK,
        "            return max(lease.used_bytes, min(lease.granted_bytes, ask.keep_bytes))\n",
        "            return lease.granted_bytes\n",
    ),
    Mutant(
        "settling: does not wait for the last bytes",
        _SETTLING,
        "            if session.certain() != session.used:\n                continue\n",
        "",
    ),
    Mutant(
        "settling: a failed settlement is not tried again",
        _SETTLING,
        "                if session.id in self._due:  # a node that was declared dead settles none of"
        " them\n                    self._due[session.id] = self._due.pop(session.id)\n",
        "                self._due.pop(session.id, None)\n",
        subject="spent",
    ),
    Mutant(
        "settling: connections of a used-up session stay",
        _SETTLING,
        "        for connection in tuple(session.connections):\n            connection.finish()\n",
        "",
    ),
    Mutant(
        "sessions: an end that failed is not taken back",
        "market.bandwidth.sessions",
        "            self._traffic.restore(session_id)\n",
        "",
    ),
    Mutant(
        "sessions: a session in use is forgotten a minute after its failed end",
        _SESSIONS,
        "        if session is None:\n            self._forget_at.pop(session_id, None)\n"
        "            return None\n",
        "        if session is None:\n            return None\n",
        "            if session is not None and session.is_leased:\n                continue\n",
        subject="ends",
    ),
    Mutant(
        "sessions: a cut leaves sockets that are being closed",
        _SESSIONS,
        "        for closing in tuple(session.closings):  # so that all delivered bytes are settled\n"
        "            closing.abort()\n",
        "",
        subject="ends",
    ),
    Mutant(
        "sessions: a cut before the lease is forgotten",
        _SESSIONS,
        "            session.status = cut\n",
        "            pass\n",
    ),
    Mutant(
        "session: refunds of a session that is over are handed out",
        _SESSION,
        "        if self.status is SessionStatus.ACTIVE:\n            self.give_back(size)\n",
        "        self.give_back(size)\n",
        subject="ends",
    ),
    Mutant(
        "session: bytes that were not written are not given back",
        _SESSION,
        "        self.available += size\n        self.wake()\n",
        "        self.wake()\n",
    ),
    Mutant(
        "fencing: counted from the answer",
        _NODE,
        "            self._seen(sent_at)\n        await self.duties",
        "            self._seen(self._boottime())\n        await self.duties",
        subject="silence",
    ),
    Mutant(
        "fencing: six fifths of the timeout",
        _NODE,
        "self._timeout * (1 - 1 / RENEWALS_PER_TIMEOUT)",
        "self._timeout * (1 + 1 / RENEWALS_PER_TIMEOUT)",
        subject="silence",
    ),
    Mutant(
        "fencing: a clock that stops while the machine sleeps",
        "proxyd.wiring.build_core",
        "    fence = Fence(clocks.boottime)\n",
        "    clocks = clocks._replace(boottime=clocks.monotonic)\n"
        "    fence = Fence(clocks.boottime)\n",
        subject="silence",
    ),
    Mutant(
        "fencing: a node that was declared dead does not cut",
        _NODE,
        "            self._writer.forget_all()\n",
        "",
        subject="silence",
    ),
    Mutant(
        "fencing: a node that was declared dead settles its sessions",
        _CLUSTER,
        "        self._settler.clear()\n",
        "",
        subject="silence",
        equivalent="only a session whose stored reports add up to its quota is due, and any node may"
        " settle that: no lease of it has a byte that another node could hand out",
    ),
    Mutant(
        "fencing: a node that was renewed counts as silent",
        _NODE,
        "{row: self._unseen_since.get(row, now) for row in rows}",
        "{\n            row: min(\n                [now, *(at for each, at in self._unseen_since.items()"
        " if each.id == row.id)]\n            )\n            for row in rows\n        }",
    ),
    Mutant(
        "stopping: a node registers anew while it leaves",
        "proxyd.wiring.membership",
        "            await tasks.end_named(NODE_TASK)\n",
        "",
    ),
    Mutant(
        "stopping: the last counts are written before the writers end",
        "proxyd.wiring.core",
        "        await self.tasks.end_writers()\n",
        "",
        subject="stops",
    ),
    Mutant(
        "ledger: a hold is set aside in part",
        "market.money.ledger",
        "        request.amount,\n        0 if source",
        "        request.amount // 2,\n        0 if source",
    ),
    Mutant(
        "exits: refunded bytes are paid to the owner",
        "proxyd.metering.exit_share",
        "            self._moved.add(self)\n            self.used -= size\n        self._session.refund(size)\n",
        "            self._moved.add(self)\n        self._session.refund(size)\n",
    ),
    Mutant(
        "exits: an advance is posted again at the end",
        "market.exits.earnings",
        "        row.amount - row.posted,\n",
        "        row.amount,\n",
    ),
    Mutant(
        "keys: a limit is not compared",
        "market.accounts.spending",
        "    if limit is not None and spent[limits.period] > limit:\n",
        "    if False:\n",
    ),
    Mutant(
        "keys: a repeated request takes effect again",
        "market.events.idempotency",
        "        if await queries.insert(tx, row):\n            await queries.delete_before",
        "        if await queries.insert(tx, row) or True:\n            await queries.delete_before",
    ),
    Mutant(
        "jobs: any attempt of a device is the current one",
        "market.attempts.attempts",
        "    if job is not None and is_running and job.device_id == device_id and is_of(job, attempt):\n",
        "    if job is not None and is_running and job.device_id == device_id:\n",
        subject="jobs",
    ),
    Mutant(
        "jobs: no device hears of a new job",
        "market.jobs.jobs",
        "(postings.create, context, order, self.bounds())\n"
        "        self.notices.publish_waiting(job_ids)\n",
        "(postings.create, context, order, self.bounds())\n",
        subject="none",
    ),
    Mutant(
        "jobs: a device that is full gets more jobs",
        "market.dispatch.claims",
        "        elif room < 1:\n",
        "        elif False:\n",
        subject="none",
    ),
    Mutant(
        "ledger: a capture releases nothing",
        "market.money.ledger",
        "    left = resolved.amount - used\n",
        "    left = 0\n",
    ),
    *(Mutant(*each)._replace(subject=SUBJECTS[each[0].partition(":")[0]]) for each in JOB_MUTANTS),
    Mutant(
        "nodes: a node watches no other one before it sweeps",
        "proxyd.wiring.membership",
        "                    await node.watch()\n",
        "",
    ),
    *(Mutant(*each, subject="exits") for each in EXIT_MUTANTS),
    *(Mutant(*each, subject="money") for each in MONEY_MUTANTS),
    *(Mutant(*each, subject=STAFF_SUBJECTS[each[0].partition(":")[0]]) for each in STAFF_MUTANTS),
)


def install(name: str) -> None:
    """Make later imports of the mutant's module load it with the fault."""
    (mutant,) = [each for each in MUTANTS if each.name == name]
    sys.meta_path.insert(0, _Finder(mutant))


class _Finder(importlib.abc.MetaPathFinder):
    """Import finder for the module of a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if fullname != self._mutant.module:
            return None
        file = ROOT.joinpath(*fullname.split(".")).with_suffix(".py")
        loader = _Loader(fullname, str(file), self._mutant)
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader of the mutated source."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(mutated(self._mutant), self.path, "exec")


def mutated(mutant: Mutant) -> str:
    """Return the source of a mutant.

    Raises:
        ValueError: the module does not contain the text exactly once.
    """
    file = ROOT.joinpath(*mutant.module.split(".")).with_suffix(".py")
    source = file.read_text()
    for old, new in ((mutant.old, mutant.new), (mutant.guard, mutant.instead)):
        if old:
            if source.count(old) != 1:
                raise ValueError(f"{mutant.name}: {old!r} is {source.count(old)} times in {file}")
            source = source.replace(old, new)
    return source
