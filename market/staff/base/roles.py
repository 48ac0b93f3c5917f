"""Roles of the staff, the table of their permissions, and the authors of acts."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.idempotency import Receipt


class Role(StrEnum):
    """The role of a member of the staff; each has one."""

    SUPPORT = "support"
    FINANCE = "finance"
    OPERATOR = "operator"


class Action(StrEnum):
    """An operation of the staff; its value is the word in the log."""

    SEARCH = "search"
    SEARCH_ADDRESS = "search.address"
    SEARCH_EMAIL = "search.email"
    USER_VIEW = "user.view"
    USER_REVEAL = "user.reveal"
    USER_NOTE = "user.note"
    LOG_READ = "log.read"
    USER_SUSPEND = "user.suspend"
    USER_RESUME = "user.resume"
    USER_EXPORT = "user.export"
    USER_CLOSE = "user.close"
    USER_ERASE = "user.erase"
    SESSION_VIEW = "session.view"
    SESSION_HALT = "session.halt"
    SESSION_GO = "session.go"
    SESSION_END = "session.end"
    KEY_REVOKE = "key.revoke"
    DEVICE_BAR = "device.bar"
    DEVICE_PARDON = "device.pardon"
    DEVICE_CLAW_BACK = "device.claw_back"
    JOB_CANCEL = "job.cancel"
    STAFF_LIST = "staff.list"
    STAFF_CREATE = "staff.create"
    STAFF_ROLE = "staff.role"
    STAFF_LOCK = "staff.lock"
    STAFF_UNLOCK = "staff.unlock"
    STAFF_RESET_FACTOR = "staff.reset_factor"
    STAFF_CHECK = "staff.check"
    STAFF_DECLARE = "staff.declare"
    SITE_CHECK = "site.check"
    SITE_INVITE = "site.invite"
    SITE_PUBLISH = "site.publish"
    STATUS_NOTICE = "status.notice"
    STAFF_LOGIN = "staff.login"
    STAFF_LOGOUT = "staff.logout"
    STAFF_SELF = "staff.self"
    STAFF_PASSWORD = "staff.password"  # noqa: S105 - the word of an operation
    STAFF_ATTEMPTS = "staff.attempts"
    STAFF_RESCUE = "staff.rescue"
    STAFF_RESCUES = "staff.rescues"
    STAFF_ACKNOWLEDGE = "staff.acknowledge"
    STAFF_KEY_CREATE = "staff.key.create"
    STAFF_KEY_LIST = "staff.key.list"
    STAFF_KEY_REVOKE = "staff.key.revoke"
    MONEY_REFUND = "money.refund"
    MONEY_CORRECT = "money.correct"
    MONEY_DEPOSIT = "money.deposit"
    MONEY_HISTORY = "money.history"
    PAYMENT_VIEW = "payment.view"
    PAYMENT_LOOK = "payment.look"
    PAYMENT_CREDIT = "payment.credit"
    PAYMENT_GIVE_UP = "payment.give_up"
    DEBT_FORGIVE = "debt.forgive"
    APPROVAL_LIST = "approval.list"
    APPROVAL_APPROVE = "approval.approve"
    APPROVAL_REFUSE = "approval.refuse"
    USER_LIMIT = "user.limit"
    USER_PRICE = "user.price"
    JOB_VIEW = "job.view"
    JOB_FILE = "job.file"
    JOB_DECIDE = "job.decide"
    CASE_VIEW = "case.view"
    CASE_DECIDE = "case.decide"
    SEARCH_EXIT = "search.exit"
    TICKET_OPEN = "ticket.open"
    TICKET_READ = "ticket.read"
    TICKET_MOVE = "ticket.move"
    TICKET_ANSWER = "ticket.answer"
    TICKET_CLOSE = "ticket.close"
    TICKET_LEGAL = "ticket.legal"
    RULE_READ = "rule.read"
    PAYOUT_LIST = "payout.list"
    PAYOUT_VIEW = "payout.view"
    PAYOUT_APPROVE = "payout.approve"
    PAYOUT_REJECT = "payout.reject"
    PAYOUT_EXPORT = "payout.export"
    PAYOUT_IMPORT = "payout.import"
    USER_VERIFY = "user.verify"


_ALL = frozenset(Role)
_OPERATOR = frozenset((Role.OPERATOR,))
_SUPPORT = frozenset((Role.SUPPORT, Role.OPERATOR))
_MONEY = frozenset((Role.FINANCE, Role.OPERATOR))

# The matrix of permissions. No role permits an operation without a row.
MATRIX: Mapping[Action, frozenset[Role]] = {
    Action.SEARCH: _ALL,
    Action.SEARCH_ADDRESS: _OPERATOR,
    Action.SEARCH_EMAIL: _ALL,
    Action.USER_VIEW: _ALL,
    Action.USER_REVEAL: _ALL,
    Action.USER_NOTE: _ALL,
    Action.LOG_READ: _OPERATOR,
    Action.USER_SUSPEND: _SUPPORT,
    Action.USER_RESUME: _SUPPORT,
    Action.USER_EXPORT: _OPERATOR,
    Action.USER_CLOSE: _OPERATOR,
    Action.USER_ERASE: _OPERATOR,
    Action.SESSION_VIEW: _ALL,
    Action.SESSION_HALT: _SUPPORT,
    Action.SESSION_GO: _SUPPORT,
    Action.SESSION_END: _SUPPORT,
    Action.KEY_REVOKE: _SUPPORT,
    Action.DEVICE_BAR: _OPERATOR,
    Action.DEVICE_PARDON: _OPERATOR,
    Action.DEVICE_CLAW_BACK: _OPERATOR,
    Action.JOB_CANCEL: _OPERATOR,
    Action.STAFF_LIST: _OPERATOR,
    Action.STAFF_CREATE: _OPERATOR,
    Action.STAFF_ROLE: _OPERATOR,
    Action.STAFF_LOCK: _OPERATOR,
    Action.STAFF_UNLOCK: _OPERATOR,
    Action.STAFF_RESET_FACTOR: _OPERATOR,
    Action.STAFF_CHECK: _ALL,
    Action.STAFF_DECLARE: _ALL,
    Action.SITE_CHECK: _ALL,
    Action.SITE_INVITE: _OPERATOR,
    Action.SITE_PUBLISH: _OPERATOR,
    Action.STATUS_NOTICE: frozenset((Role.SUPPORT, Role.OPERATOR)),
    Action.STAFF_LOGIN: _ALL,
    Action.STAFF_LOGOUT: _ALL,
    Action.STAFF_SELF: _ALL,
    Action.STAFF_PASSWORD: _ALL,
    Action.STAFF_ATTEMPTS: _OPERATOR,
    Action.STAFF_RESCUE: frozenset(),  # only at the machine
    Action.STAFF_RESCUES: _OPERATOR,
    Action.STAFF_ACKNOWLEDGE: _OPERATOR,
    Action.STAFF_KEY_CREATE: _OPERATOR,
    Action.STAFF_KEY_LIST: _OPERATOR,
    Action.STAFF_KEY_REVOKE: _OPERATOR,
    Action.MONEY_REFUND: _MONEY,
    Action.MONEY_CORRECT: _MONEY,
    Action.MONEY_DEPOSIT: _MONEY,
    Action.MONEY_HISTORY: _ALL,
    Action.PAYMENT_VIEW: _ALL,
    Action.PAYMENT_LOOK: _MONEY,
    Action.PAYMENT_CREDIT: _MONEY,
    Action.PAYMENT_GIVE_UP: _MONEY,
    Action.DEBT_FORGIVE: _MONEY,
    Action.APPROVAL_LIST: _MONEY,
    Action.APPROVAL_APPROVE: _MONEY,
    Action.APPROVAL_REFUSE: _MONEY,
    Action.USER_LIMIT: _OPERATOR,
    Action.USER_PRICE: _MONEY,
    Action.JOB_VIEW: _ALL,
    Action.JOB_FILE: _MONEY,
    Action.JOB_DECIDE: _MONEY,
    Action.CASE_VIEW: _MONEY,
    Action.CASE_DECIDE: _MONEY,
    Action.SEARCH_EXIT: frozenset((Role.SUPPORT, Role.OPERATOR)),
    Action.TICKET_OPEN: _ALL,
    Action.TICKET_READ: _ALL,
    Action.TICKET_MOVE: _ALL,
    Action.TICKET_ANSWER: _ALL,
    Action.TICKET_CLOSE: _ALL,
    Action.TICKET_LEGAL: _OPERATOR,
    Action.RULE_READ: frozenset((Role.SUPPORT, Role.OPERATOR)),
    Action.PAYOUT_LIST: _MONEY,
    Action.PAYOUT_VIEW: _MONEY,
    Action.PAYOUT_APPROVE: _MONEY,
    Action.PAYOUT_REJECT: _MONEY,
    Action.PAYOUT_EXPORT: _MONEY,
    Action.PAYOUT_IMPORT: _MONEY,
    Action.USER_VERIFY: _MONEY,
}
# Operations of members on their own account. They do all others on other members only.
ON_ONESELF = frozenset(
    (
        Action.STAFF_CHECK,
        Action.STAFF_DECLARE,
        Action.STAFF_LOGIN,
        Action.STAFF_LOGOUT,
        Action.STAFF_PASSWORD,
    )
)

# Operations that change an account: an erased one refuses them. Amounts are checked where they are
# posted, so that an approved one is checked as well.
ON_LIVING = frozenset(
    (
        Action.USER_NOTE,
        Action.USER_SUSPEND,
        Action.USER_RESUME,
        Action.USER_EXPORT,
        Action.USER_CLOSE,
        Action.USER_LIMIT,
        Action.USER_PRICE,
        Action.USER_VERIFY,
    )
)

# A member of these roles can be the second person for money. Only a command on the machine gives
# them, so no member makes a second person for their own requests.
SECOND_PERSONS = MATRIX[Action.APPROVAL_APPROVE]


class Via(StrEnum):
    """The interface through which an author acts."""

    MACHINE = "machine"
    API = "api"
    PAGE = "page"
    RULE = "rule"


class Machine(Struct, frozen=True):
    """A command on the machine of the service; it may do everything.

    A user who can run it can also write the database.

    Args:
        unix_user: the name of the user that runs the command.
    """

    unix_user: str

    @property
    def via(self) -> Via:
        """The interface through which the command acts."""
        return Via.MACHINE


class Member(Struct, frozen=True):
    """A member of the staff who acts; `unix_user` runs the command, if it is one.

    `session_id` is the identifier of the login or key through which the member acts.
    A `receipt` keeps the answer to the act: of a repeated request, only the first one acts.
    """

    staff_id: str
    role: Role
    via: Via
    unix_user: str | None = None
    receipt: Receipt[Any] | None = None
    session_id: str | None = None


class Rule(Struct, frozen=True):
    """A rule of the daemon that acts by itself; no person is its author."""

    name: str

    @property
    def via(self) -> Via:
        """The interface through which the rule acts."""
        return Via.RULE

    @property
    def unix_user(self) -> None:
        """The name of a user; a rule has none."""
        return None


Author = Machine | Member | Rule


def require(author: Author, action: Action) -> None:
    """Check that an author may do an operation.

    Raises:
        MarketError: `not_permitted`.
    """
    if isinstance(author, Member) and author.role not in MATRIX.get(action, frozenset()):
        raise MarketError(
            Code.NOT_PERMITTED, f"The role {author.role} does not permit {action.value}."
        )
