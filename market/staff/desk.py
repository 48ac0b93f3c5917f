"""The services of the staff, for the staff API and its pages."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from market.accounts.letters import Letters
from market.accounts.outbox import OUTBOX_PURPOSE
from market.accounts.passwords import Passwords
from market.base.sealing import Sealing
from market.erasure.erasing import Tools
from market.erasure.exports import Exports
from market.events.context import Context
from market.files.artifacts import Artifacts
from market.jobs.outcomes import Outcomes
from market.logs.logs import LogTerms
from market.payouts.details import METHODS_PURPOSE
from market.payouts.files import Debtor
from market.payouts.terms import MethodKind
from market.staff.abuse.exit_use import Found, Question, Searches
from market.staff.abuse.rule_tickets import RuleSetting
from market.staff.base.callers import StaffCaller
from market.staff.base.roles import Via
from market.staff.members.factors import Factors
from market.staff.members.keys import StaffKeys, is_key
from market.staff.members.logins import StaffLogins
from market.staff.money.approvals import Limits
from market.staff.money.paying import NO_DEBTOR
from market.staff.money.user_limits import PriceBounds


class StaffTerms(Struct, frozen=True):
    """Settings and services of the daemon that the staff uses.

    Args:
        limits: the amounts above which an act needs a second person.
        prices: the bounds of the prices that a member gives a user.
        logs: the folder and the bounds of the logs of jobs.
        outcomes: the ends of jobs.
        artifacts: the files of jobs.
        search: returns the recorded connections of a question about an exit.
        rules: the rules against scans and spam, at the start.
        app_url: the address of the pages for users.
        exports: makes exports of users.
        debtor: the account that pays, in files for a bank.
        sent_by_itself: the payout method that a payment service sends; no file has it.
        erase_needs_second: whether a second person has to approve the erasure of an account.
    """

    limits: Limits
    prices: PriceBounds
    logs: LogTerms
    outcomes: Outcomes
    artifacts: Artifacts
    search: Callable[[Question], Coroutine[Any, Any, Found]]
    rules: Sequence[RuleSetting]
    app_url: str
    exports: Exports
    debtor: Debtor = NO_DEBTOR
    sent_by_itself: MethodKind | None = None
    erase_needs_second: bool = True


class StaffDesk:
    """The services of the staff.

    `rules` are the rules against scans and spam; they may be replaced. `methods` opens the details
    of payout methods, and `tools` are those of an erasure.

    Args:
        terms: settings and services of the daemon.
        key: the signing key of the service; other keys are derived from it.
        letters: e-mails to users.
    """

    def __init__(
        self,
        context: Context,
        passwords: Passwords,
        key: bytes,
        letters: Letters,
        terms: StaffTerms,
    ) -> None:
        self.context = context
        self.terms = terms
        self.rules = terms.rules
        self.searches = Searches(terms.search)
        self.letters = letters
        self.passwords = passwords
        self.factors = Factors(Sealing(key, b"staff factors"))
        self.methods = Sealing(key, METHODS_PURPOSE)
        self.tools = Tools(letters, Sealing(key, OUTBOX_PURPOSE))
        self.logins = StaffLogins(context, passwords, self.factors, key)
        self.keys = StaffKeys(context)

    async def authenticate(self, token: str, address: str, via: Via) -> StaffCaller:
        """Return the member whose token or key this is; a page has no key.

        Raises:
            MarketError: `unauthorized`, `key_address`.
        """
        if via is Via.API and is_key(token):
            return await self.keys.authenticate(token, address)
        return await self.logins.authenticate(token, via)

    async def is_current(self, caller: StaffCaller) -> bool:
        """Return whether the login or key of a caller is still valid."""
        if caller.scopes is None:
            return await self.logins.is_current(caller)
        return await self.keys.is_current(caller)
