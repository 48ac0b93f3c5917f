"""Members for money: deposits, refunds, corrections, disputes, cases, and second persons."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from market.money.money import MICRO, Currency
from market.staff.base.roles import Action, Author
from market.staff.cases.base import Decision, Kind
from market.staff.cases.cases import Cases
from market.staff.desk import StaffDesk
from market.staff.leaving import closing
from market.staff.leaving.posters import leaving_posters
from market.staff.money import (
    approvals,
    deposits,
    doubts,
    forgiving,
    judging,
    paying,
    payments,
    second_person,
    user_limits,
)
from market.staff.money import money as staff_money
from market.staff.money.approvals import Outcome
from market.staff.money.judging import Verdict
from market.staff.money.second_person import Poster
from market.staff.money.user_limits import NewLimits
from tests.sim.staff.members import LIMITS, WHY, MemberActor

_OPEN = "SELECT id FROM approvals WHERE decided_at IS NULL ORDER BY id"
_DISPUTED = "SELECT job_id FROM job_reviews WHERE state = 'disputed' ORDER BY job_id"
_PAYMENTS = "SELECT id FROM payments ORDER BY id"
_DEPOSITS = """
    SELECT reference, user_id, currency FROM staff_money AS m JOIN transfers AS t ON t.id = m.id
    WHERE m.action = 'money.deposit' ORDER BY m.id
"""
PERCENTS = (0, 30, 50, 100)


class Finance(MemberActor):
    """A member who moves money."""

    async def _moved(self, what: str, make: Any) -> Any:
        """Move money, perhaps at the second try, and keep the outcome for the books."""
        send = self.once if self.draw.random() < 0.5 else self.at_desk
        done = await send(what, make)
        for each in done if isinstance(done, list) else (done,):
            if isinstance(each, Outcome):
                self.house.books.moved(each)
        return done

    def _amount(self) -> tuple[Currency, int]:
        """Return an amount of a currency, often above the limit of one member."""
        currency = (Currency.USD, Currency.CREDIT)[int(2 * self.draw.random())]
        return currency, 1 + int(2 * LIMITS[currency] * self.draw.random() ** 2)

    async def do_deposit(self) -> Any:
        """Pay in money that has reached the operator."""
        user_id, (currency, amount) = self.user(), self._amount()
        reference = self.reference()

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            return await deposits.deposit(
                market.context,
                author,
                user_id,
                LIMITS,
                amounts={currency: amount},
                reference=reference,
                why=WHY,
            )

        return await self._moved("deposit", make)

    async def do_refund(self) -> Any:
        """Return a part of a deposit."""
        rows = self.rows(_DEPOSITS)
        if not rows:
            return None
        deposit, user_id, currency = rows[int(self.draw.random() * len(rows))]
        amount, reference = 1 + int(3 * MICRO * self.draw.random()), self.reference()

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            return await staff_money.refund(
                market.context,
                author,
                user_id,
                LIMITS,
                amount=amount,
                currency=Currency(currency),
                deposit=deposit,
                reference=reference,
                why=WHY,
            )

        return await self._moved("refund", make)

    async def do_correct(self) -> Any:
        """Correct a balance; now and then earnings are taken back, and leave a debt."""
        user_id, (currency, amount) = self.user(), self._amount()
        leaves_debt, reference = self.draw.random() < 0.3, self.reference()
        if leaves_debt or self.draw.random() < 0.5:
            amount = -amount

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            return await staff_money.correct(
                market.context,
                author,
                user_id,
                LIMITS,
                amount=amount,
                currency=currency,
                reference=reference,
                why=WHY,
                leaves_debt=leaves_debt,
            )

        return await self._moved("correct", make)

    async def do_forgive(self) -> Any:
        """Forgive a part of a debt."""
        user_id = self.some("SELECT user_id FROM earning_debts ORDER BY id") or self.user()
        currency, amount = self._amount()
        reference = self.reference()

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            return await forgiving.forgive(
                market.context,
                author,
                user_id,
                LIMITS,
                amount=amount,
                reference=reference,
                why=WHY,
                currency=currency,
            )

        return await self._moved("forgive", make)

    async def do_price(self) -> Any:
        """Give a user another price."""
        user_id, percent = self.user(), 50 + int(100 * self.draw.random())

        async def make(market: Any, desk: StaffDesk, author: Author) -> Any:
            new = NewLimits(price_percent=percent)
            return await user_limits.change(
                market.context, author, user_id, new, WHY, prices=desk.terms.prices
            )

        return await self.once("price", make)

    async def do_history(self) -> Any:
        """Look at a wallet."""
        user_id = self.user()
        return await self.at_desk(
            "history",
            lambda market, _, author: staff_money.history(
                market.context, author, user_id, limit=20
            ),
        )

    async def do_verify(self) -> Any:
        """Note that the identity of a user was checked."""
        user_id = self.user()
        return await self.at_desk(
            "verify",
            lambda market, _, author: paying.verify(market.context, author, user_id, WHY),
        )

    async def do_payments(self) -> Any:
        """Look at the payments of a user, and decide about a doubtful one."""
        user_id, payment_id = self.user(), self.some(_PAYMENTS)

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            context = market.context
            await payments.listed(context, author, user_id, status="", before="", limit=10)
            await payments.listed(context, author, "", status="doubtful", before="", limit=10)
            if not payment_id:
                return None
            await payments.shown(context, author, payment_id)
            return await doubts.credit(context, author, payment_id, LIMITS, why=WHY)

        return await self.at_desk("payments", make)

    # --- decisions -------------------------------------------------------------------------------

    def _posters(self, market: Any, desk: StaffDesk) -> Mapping[Action, Poster]:
        leaving = leaving_posters(self.house.tools(market))
        return {**Cases(market.context, desk.letters).posters, **leaving}

    async def do_approve(self) -> Any:
        """Approve a request that waits, also one of this member."""
        approval_id = self.some(_OPEN)
        if not approval_id:
            return None

        async def make(market: Any, desk: StaffDesk, author: Author) -> Any:
            context = market.context
            await approvals.listed(context, author, is_open=False, limit=20)
            await closing.end_sessions_of_request(context, author, approval_id, WHY)
            return await second_person.approve(
                context, author, approval_id, WHY, posters=self._posters(market, desk)
            )

        return await self._moved("approve", make)

    async def do_refuse(self) -> Any:
        """Refuse or withdraw a request that waits."""
        approval_id = self.some(_OPEN)
        if not approval_id:
            return None
        return await self.once(
            "refuse",
            lambda market, _, author: second_person.refuse(
                market.context, author, approval_id, WHY
            ),
        )

    async def do_judge(self) -> Any:
        """Decide about a dispute, after a look at the evidence."""
        job_id = self.some(_DISPUTED)
        verdict = Verdict(PERCENTS[int(self.draw.random() * len(PERCENTS))])
        if not job_id:
            return None

        async def make(market: Any, _: StaffDesk, author: Author) -> Any:
            context = market.context
            await judging.disputes(context, author, limit=20)
            decided = await judging.decide(context, author, job_id, verdict, LIMITS, WHY)
            return decided.outcome

        await self.at_desk(
            "evidence",
            lambda market, _, author: judging.evidence(market.context, author, job_id),
        )
        return await self._moved("judge", make)

    async def do_case(self) -> Any:
        """Decide about a case, after a look at its evidence."""
        kinds = (*Kind, Kind.APPEAL, Kind.APPEAL, Kind.APPEAL)
        kind = kinds[int(self.draw.random() * len(kinds))]
        found: list[Any] = []

        async def look(market: Any, desk: StaffDesk, author: Author) -> Any:
            cases = Cases(market.context, desk.letters)
            found[:] = await cases.listed(author, kind, limit=10)
            if kind is Kind.APPEAL:
                await cases.first_due(author, kind, limit=10)
            for each in found[:1]:
                await cases.shown(author, kind, each.case.id)
            return None

        await self.at_desk("cases", look)
        if not found:
            return None
        case = found[int(self.draw.random() * len(found))].case
        decision = (Decision.VOIDED, Decision.UPHELD)[self.draw.random() < 0.3]
        percent = 50 if kind is Kind.APPEAL and self.draw.random() < 0.3 else 100
        return await self._moved("case", partial(self._decide, kind, case.id, decision, percent))

    async def _decide(
        self,
        kind: Kind,
        case_id: str,
        decision: Decision,
        percent: int,
        market: Any,
        desk: StaffDesk,
        author: Author,
    ) -> Any:
        cases = Cases(market.context, desk.letters)
        return await cases.decide(author, kind, case_id, decision, LIMITS, WHY, percent=percent)
