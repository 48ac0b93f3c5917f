"""Cases that the staff judges: listed, shown with their evidence, and decided once.

The user gets the reason of a decision, by an event and an e-mail. A decision that moves money is a
correction: above the limit it waits for a second person.
"""

from collections.abc import Mapping
from functools import partial

from msgspec import Struct, structs

from market.accounts.letters import Letters
from market.accounts.mail import case_decided
from market.base.errors import Code, MarketError
from market.events.catalogue import CaseDecided
from market.events.context import Context
from market.events.recording import record
from market.staff.base.acts import (
    CASE,
    REASON_MAX_CHARACTERS,
    REPEATED,
    Act,
    Changes,
    Text,
    TextKind,
    act,
    checked_text,
    permit,
    require_name,
    require_stranger,
)
from market.staff.base.roles import Action, Author
from market.staff.cases import clawing
from market.staff.cases.appeals import Appeals
from market.staff.cases.base import Case, CaseKind, Decision, Evidence, Kind, Parties
from market.staff.cases.canaries import Canaries
from market.staff.cases.rewards import Rewards
from market.staff.cases.samples import Samples
from market.staff.finding.users import named, resolve
from market.staff.money import approvals, money
from market.staff.money.approvals import Amount, Limits, Outcome, Posting, State, author_key
from market.staff.money.second_person import POSTERS, Poster
from market.staff.money.second_person_limit import do_or_ask
from storage.engines.store import Transaction
from storage.staff.cases import case_decisions as queries
from storage.staff.cases import case_writes as writes
from storage.staff.cases.case_decisions import DecisionRow
from storage.staff.money import approvals as approval_queries
from storage.staff.money import judging as judging_queries

WHOLE = 100  # percent
FIRST_JUDGE = "You took part in the first decision: another person has to judge the appeal."
KINDS: Mapping[Kind, CaseKind] = {
    Kind.CANARY: Canaries(),
    Kind.SAMPLE: Samples(),
    Kind.REWARD: Rewards(),
    Kind.APPEAL: Appeals(),
}


class JudgedCase(Struct, frozen=True):
    """A case, and its decision if it has one."""

    case: Case
    decision: DecisionRow | None


class Shown(Struct, frozen=True):
    """A case with its evidence."""

    judged: JudgedCase
    evidence: Evidence


class Cases:
    """Decisions about cases.

    Args:
        context: the store, identifiers and the time.
        letters: e-mails to users.
    """

    def __init__(self, context: Context, letters: Letters) -> None:
        self._context = context
        self._letters = letters

    @property
    def posters(self) -> Mapping[Action, Poster]:
        """The functions that carry out what a second person approves, with those of cases."""
        return {
            **POSTERS,
            Action.CASE_DECIDE: self.post,
            Action.DEVICE_CLAW_BACK: clawing.post,
        }

    async def listed(
        self, author: Author, kind: Kind, *, user: str = "", before: str = "", limit: int
    ) -> list[JudgedCase]:
        """Return the newest cases of a kind, of one user or of all ("") users.

        Raises:
            MarketError: `not_permitted`, `user_not_found`, `ambiguous`; `invalid_field`, also when
                the kind has no list by user.
        """
        name = await named(self._context, author, user)

        async def look(tx: Transaction) -> list[JudgedCase]:
            await permit(tx, author, Action.CASE_VIEW)
            user_id = (await resolve(tx, name)).id if name else ""
            cases = await KINDS[kind].page(tx, user_id=user_id, before=before, limit=limit)
            decisions = await queries.of_cases(tx, kind, [each.id for each in cases])
            return [JudgedCase(each, decisions.get(each.id)) for each in cases]

        return await self._context.store.read(look)

    async def first_due(
        self, author: Author, kind: Kind, *, user: str = "", limit: int
    ) -> list[JudgedCase]:
        """Return the cases of a kind that wait for a decision, the first one that is due first.

        They are of one user or of all ("") users.

        Raises:
            MarketError: `not_permitted`, `user_not_found`, `ambiguous`; `invalid_field`, also when
                cases of the kind are never due.
        """
        name = await named(self._context, author, user)

        async def look(tx: Transaction) -> list[JudgedCase]:
            await permit(tx, author, Action.CASE_VIEW)
            user_id = (await resolve(tx, name)).id if name else ""
            cases = await KINDS[kind].first_due(tx, user_id, limit)
            return [JudgedCase(each, None) for each in cases]

        return await self._context.store.read(look)

    async def shown(self, author: Author, kind: Kind, case_id: str) -> Shown:
        """Return a case with its evidence; the log records that it was read.

        Raises:
            MarketError: `not_permitted`, `invalid_field`, `case_not_found`.
        """
        case = await self._find(kind, case_id)

        async def look(tx: Transaction) -> tuple[Shown, Changes]:
            await _require_no_party(tx, author, await KINDS[kind].parties(tx, case))
            decided = await queries.of_cases(tx, kind, [case.id])
            found = await KINDS[kind].evidence(tx, case)
            return Shown(JudgedCase(case, decided.get(case.id)), found), {"kind": (None, kind)}

        new = Act(author, Action.CASE_VIEW, CASE, case.id, case.user_id)
        return await self._context.store.write(act, self._context, new, look)

    async def decide(
        self,
        author: Author,
        kind: Kind,
        case_id: str,
        decision: Decision,
        limits: Limits,
        why: str,
        *,
        percent: int = WHOLE,
    ) -> Outcome:
        """Decide a case, or ask a second person; the same decision again changes nothing.

        Args:
            author: the member of the staff; not the user of the case.
            kind: the kind of the case.
            case_id: the case.
            decision: the decision.
            limits: the amounts that one person may move.
            why: the reason, which the user gets.
            percent: the part of the whole claim that a successful appellant gets in all.

        Raises:
            MarketError: `not_permitted`, `invalid_field`, `case_not_found`, `case_decided`;
                `insufficient_funds`, when the user has spent an amount that is taken back.
        """
        case = _in_part(await self._find(kind, case_id), percent)
        text = Text(TextKind.DECISION, checked_text(why, "reason", REASON_MAX_CHARACTERS))

        async def change(tx: Transaction) -> tuple[Outcome, Changes]:
            new = _amount(case, decision)
            before = await self._earlier(tx, case, decision, new)
            if before is not None:
                return before, {REPEATED: (None, before.id)}
            await self._require_open(tx, case)
            await self._require_judge(tx, author, case)
            if not new.amount:
                return await self._carry_out(tx, case, decision, text.body)
            return await do_or_ask(
                tx,
                self._context,
                author,
                new,
                limits,
                check=partial(money.require_possible, tx, new),
                post=partial(self._post, why=text.body),
            )

        made = Act(author, Action.CASE_DECIDE, CASE, case.id, case.user_id, text)
        outcome = await self._context.store.write(act, self._context, made, change)
        self._letters.wake()
        return outcome

    async def post(
        self, tx: Transaction, context: Context, new: Amount, posting: Posting
    ) -> tuple[Outcome, Changes]:
        """Carry out a decision that a second person approves.

        Raises:
            MarketError: as `decide`.
        """
        why = await judging_queries.text_of(tx, posting.log_number)
        return await self._post(tx, context, new, posting, why=why)

    async def _post(
        self, tx: Transaction, context: Context, new: Amount, posting: Posting, *, why: str
    ) -> tuple[Outcome, Changes]:
        kind, case_id = Kind(str(new.payload["kind"])), str(new.payload["case"])
        case = await KINDS[kind].find(tx, case_id)
        if case is None:
            raise MarketError(Code.CASE_NOT_FOUND)
        await self._require_open(tx, case)
        if posting.approval_id is not None:
            approval = await approval_queries.find(tx, posting.approval_id)
            judges = (await KINDS[kind].parties(tx, case)).judges
            if approval is not None and approval.decided_by in judges:
                raise MarketError(Code.NOT_PERMITTED, FIRST_JUDGE)
        case = structs.replace(case, void_amount=new.amount)
        voided = await KINDS[kind].void(tx, context, case)
        await money.lock(tx, new)  # before the rows that refer to the user
        _, changes = await self._record(tx, case, Decision.VOIDED, why, voided)
        outcome, moved = await money.post(tx, context, new, posting)
        return outcome, {**changes, **moved}

    async def _carry_out(
        self, tx: Transaction, case: Case, decision: Decision, why: str
    ) -> tuple[Outcome, Changes]:
        """Decide a case without an amount."""
        voided: Changes = {}
        if decision is Decision.VOIDED:
            voided = await KINDS[case.kind].void(tx, self._context, case)
        return await self._record(tx, case, decision, why, voided)

    async def _record(
        self, tx: Transaction, case: Case, decision: Decision, why: str, voided: Changes
    ) -> tuple[Outcome, Changes]:
        """Record a decision, but for its amount."""
        context, now = self._context, self._context.now()
        changes: Changes = {"decision": (None, decision), **voided}
        await writes.insert(tx, DecisionRow(case.kind, case.id, case.user_id, decision, now))
        await KINDS[case.kind].close(tx, case, now)
        event = CaseDecided(case.id, case.kind.value, decision.value, why)
        await record(tx, context, case.user_id, event, subject_id=case.id)
        words = KINDS[case.kind].words(case, decision)
        await self._letters.put(
            tx,
            case.user_id,
            f"case decided:{case.id}",
            partial(case_decided, words=words, reason=why),
        )
        return _outcome(_amount(case, decision), case, State.DONE), changes

    async def _find(self, kind: Kind, case_id: str) -> Case:
        require_name(case_id)
        case = await self._context.store.read(KINDS[kind].find, case_id.lower())
        if case is None:
            raise MarketError(Code.CASE_NOT_FOUND)
        return case

    async def _earlier(
        self, tx: Transaction, case: Case, decision: Decision, new: Amount
    ) -> Outcome | None:
        """Return the outcome of an equal decision of before; another one that waits is refused."""
        if not new.amount:
            decided = (await queries.of_cases(tx, case.kind, [case.id])).get(case.id)
            is_same = decided is not None and decided.decision == decision
            return _outcome(new, case, State.DONE_BEFORE) if is_same else None
        try:
            return await approvals.earlier(tx, self._context, new)
        except MarketError as error:
            if error.code is not Code.REFERENCE_REUSED:
                raise
            message = "Another decision about this case was made, or waits for a second person."
            raise MarketError(Code.CASE_DECIDED, message) from error

    async def _require_judge(self, tx: Transaction, author: Author, case: Case) -> None:
        """Refuse a party of a case, and the authors of an earlier decision about it."""
        parties = await KINDS[case.kind].parties(tx, case)
        await _require_no_party(tx, author, parties)
        if {author_key(author), f"unix:{author.unix_user}"} & parties.judges:
            raise MarketError(Code.NOT_PERMITTED, FIRST_JUDGE)

    async def _require_open(self, tx: Transaction, case: Case) -> None:
        """Refuse a case that was decided meanwhile."""
        current = await KINDS[case.kind].find(tx, case.id)
        if current is None or not current.is_open:
            raise MarketError(Code.CASE_DECIDED)
        if await queries.of_cases(tx, case.kind, [case.id]):
            raise MarketError(Code.CASE_DECIDED)


async def _require_no_party(tx: Transaction, author: Author, parties: Parties) -> None:
    """Refuse a member if an own account is a user of the case."""
    for user_id in parties.users:
        await require_stranger(tx, author, user_id)


def _in_part(case: Case, percent: int) -> Case:
    """Return a case whose user gets a percentage of the whole claim in all."""
    if percent == WHOLE:
        return case
    amount = case.void_amount - (case.entitled - case.entitled * percent // WHOLE)
    if not case.entitled or not 1 <= percent < WHOLE or amount <= 0:
        raise MarketError(
            Code.INVALID_FIELD,
            "A percentage is of an appeal, from 1 to 100, and more than was awarded before.",
            field="percent",
        )
    return structs.replace(case, void_amount=amount)


def _amount(case: Case, decision: Decision) -> Amount:
    """Return the amount that a decision moves: 0 if the case is upheld."""
    amount = case.void_amount if decision is Decision.VOIDED else 0
    reference = f"{case.kind}:{case.id}"
    return Amount(
        Action.CASE_DECIDE,
        f"case:{reference}:{case.currency}",
        case.user_id,
        case.currency,
        amount,
        {
            "kind": case.kind,
            "case": case.id,
            "job": case.job_id,
            "amount": amount,
            "reference": reference,
            **({money.AWARD: 1} if case.pays_for_work and amount > 0 else {}),
        },
    )


def _outcome(new: Amount, case: Case, state: State) -> Outcome:
    return Outcome(
        state, case.id, case.user_id, new.currency, new.amount, moves_money=bool(new.amount)
    )
