"""Callers of the staff API: members with a login, and programs with a key of a member."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.staff.base.roles import Action, Member, Role, Via, require

NO_KEYS = "No staff key permits {action}; log in."
NO_SCOPE = "{action} needs a staff key with the scope {scope}."


class StaffScope(StrEnum):
    """Part of the staff API that a key permits, within the role of its member."""

    READ = "read"
    ACT = "act"
    MONEY = "money"
    ABUSE = "abuse"


# The scope of each operation that a key may call. No key permits an operation without a row: the
# accounts of the staff, their logins, passwords and keys, approvals, published texts, and personal
# data of users need a person.
SCOPES: Mapping[Action, StaffScope] = {
    Action.SEARCH: StaffScope.READ,
    Action.SEARCH_ADDRESS: StaffScope.READ,
    Action.SEARCH_EMAIL: StaffScope.READ,
    Action.USER_VIEW: StaffScope.READ,
    Action.SESSION_VIEW: StaffScope.READ,
    Action.LOG_READ: StaffScope.READ,
    Action.STAFF_SELF: StaffScope.READ,
    Action.USER_NOTE: StaffScope.ACT,
    Action.USER_SUSPEND: StaffScope.ACT,
    Action.USER_RESUME: StaffScope.ACT,
    Action.SESSION_HALT: StaffScope.ACT,
    Action.SESSION_GO: StaffScope.ACT,
    Action.SESSION_END: StaffScope.ACT,
    Action.KEY_REVOKE: StaffScope.ACT,
    Action.DEVICE_BAR: StaffScope.ACT,
    Action.DEVICE_PARDON: StaffScope.ACT,
    Action.JOB_CANCEL: StaffScope.ACT,
    Action.STATUS_NOTICE: StaffScope.ACT,
    Action.SITE_INVITE: StaffScope.ACT,
    Action.SITE_CHECK: StaffScope.READ,
    Action.JOB_VIEW: StaffScope.READ,
    Action.MONEY_HISTORY: StaffScope.READ,
    Action.PAYMENT_VIEW: StaffScope.READ,
    Action.PAYMENT_LOOK: StaffScope.MONEY,
    Action.PAYMENT_CREDIT: StaffScope.MONEY,
    Action.PAYMENT_GIVE_UP: StaffScope.MONEY,
    Action.DEBT_FORGIVE: StaffScope.MONEY,
    Action.MONEY_DEPOSIT: StaffScope.MONEY,
    Action.MONEY_REFUND: StaffScope.MONEY,
    Action.MONEY_CORRECT: StaffScope.MONEY,
    Action.USER_LIMIT: StaffScope.MONEY,
    Action.USER_PRICE: StaffScope.MONEY,
    Action.JOB_DECIDE: StaffScope.MONEY,
    Action.CASE_VIEW: StaffScope.READ,
    Action.CASE_DECIDE: StaffScope.MONEY,
    Action.SEARCH_EXIT: StaffScope.ABUSE,
    Action.TICKET_OPEN: StaffScope.ABUSE,
    Action.TICKET_READ: StaffScope.ABUSE,
    Action.TICKET_MOVE: StaffScope.ABUSE,
    Action.TICKET_ANSWER: StaffScope.ABUSE,
    Action.TICKET_CLOSE: StaffScope.ABUSE,
    Action.RULE_READ: StaffScope.ABUSE,
}
# Operations of a login that has proved the second factor within the last minutes: a login that was
# left open, or was stolen, moves no money, sells nothing cheaper, and lifts no limit. It opens the
# service to no new user, confirms no identity for payouts, takes no data of a user or account of a
# bank along, and ends no account. It neither makes,
# changes nor locks out a member, nor makes a key, which would outlive the login, and publishes no
# text. No rescue acknowledges another one.
PROVED = frozenset(
    (
        Action.MONEY_DEPOSIT,
        Action.MONEY_REFUND,
        Action.MONEY_CORRECT,
        Action.PAYMENT_CREDIT,
        Action.PAYMENT_GIVE_UP,
        Action.DEBT_FORGIVE,
        Action.PAYOUT_APPROVE,
        Action.PAYOUT_REJECT,
        Action.PAYOUT_EXPORT,
        Action.PAYOUT_IMPORT,
        Action.DEVICE_CLAW_BACK,
        Action.USER_CLOSE,
        Action.USER_ERASE,
        Action.USER_EXPORT,
        Action.USER_LIMIT,
        Action.USER_PRICE,
        Action.USER_VERIFY,
        Action.SITE_INVITE,
        Action.JOB_DECIDE,
        Action.CASE_DECIDE,
        Action.APPROVAL_APPROVE,
        Action.APPROVAL_REFUSE,
        Action.STAFF_ACKNOWLEDGE,
        Action.STAFF_CREATE,
        Action.STAFF_ROLE,
        Action.STAFF_LOCK,
        Action.STAFF_UNLOCK,
        Action.STAFF_RESET_FACTOR,
        Action.STAFF_KEY_CREATE,
        Action.SITE_PUBLISH,
    )
)


class StaffCaller(Struct, frozen=True):
    """A member who calls: by a login, or by a key with scopes.

    `session_id` is the identifier of the login or key; `expires_at` is in UTC seconds. `is_proved`
    is whether a login has proved its second factor within the last minutes.
    """

    session_id: str
    staff_id: str
    email: str
    role: Role
    via: Via
    expires_at: int
    scopes: frozenset[str] | None = None
    is_proved: bool = False

    @property
    def member(self) -> Member:
        """The caller as the author of an act."""
        return Member(self.staff_id, self.role, self.via, session_id=self.session_id)

    @property
    def user_id(self) -> str:
        """The owner of the rate and of the Idempotency-Keys."""
        return self.staff_id

    @property
    def purse_id(self) -> str:
        """The key in use, "" for a login; each has Idempotency-Keys of its own."""
        return "" if self.scopes is None else self.session_id

    def require(self, action: Action) -> None:
        """Check that the role of the caller, and the scopes of its key, permit an operation.

        Raises:
            MarketError: `not_permitted`, `scope_missing`, `factor_expired`.
        """
        require(self.member, action)
        if self.scopes is None:
            if action in PROVED and not self.is_proved:
                raise MarketError(Code.FACTOR_EXPIRED)
            return
        scope = SCOPES.get(action)
        if scope is None:
            raise MarketError(Code.SCOPE_MISSING, NO_KEYS.format(action=action.value))
        if scope not in self.scopes:
            message = NO_SCOPE.format(action=action.value, scope=scope.value)
            raise MarketError(Code.SCOPE_MISSING, message)
