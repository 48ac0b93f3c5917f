"""The values that the API documents are those that the market has."""

from enum import StrEnum

import pytest
from support.base.cases import cases

from api.http import literals
from market.accounts.scopes import Scope
from market.accounts.wallet import UNSEEN, WORDS
from market.attempts.attempts import FailureKind
from market.base.states import CopiesStatus, JobStatus, PayoutStatus, ReviewStatus, SessionStatus
from market.deploys import deploys
from market.dispatch.device_work import WorkState
from market.jobs.hindrances import Hindrance
from market.money.ledger import TransferKind
from market.money.money import Currency
from market.payouts.lines import PAYOUT, Term
from market.payouts.rules import Rule
from market.payouts.terms import MethodKind


@cases(
    ("table", "kind"),
    [
        (literals.CURRENCIES, Currency),
        (literals.SESSION_STATUSES, SessionStatus),
        (literals.JOB_STATUSES, JobStatus),
        (literals.REVIEW_STATUSES, ReviewStatus),
        (literals.COPIES_STATUSES, CopiesStatus),
        (literals.FAILURE_KINDS, FailureKind),
        (literals.WORK_STATES, WorkState),
        (literals.HINDRANCES, Hindrance),
        (literals.KEY_SCOPES, Scope),
        (literals.PAYOUT_STATES, PayoutStatus),
        (literals.PAYOUT_METHODS, MethodKind),
        (literals.PAYOUT_RULES, Rule),
        (literals.EARNING_TERMS, Term),
    ],
)
def test_each_value_of_an_enumeration_has_its_literal(
    table: dict[str, str], kind: type[StrEnum]
) -> None:
    assert {each: str(each) for each in kind} == table


def test_every_kind_of_transfer_is_a_kind_of_transaction() -> None:
    shown = {WORDS.get(kind, kind) for kind in {*TransferKind} - UNSEEN}
    assert shown <= set(literals.TRANSACTION_KINDS)
    assert {*literals.TRANSACTION_KINDS, PAYOUT} == set(literals.EARNING_LINE_KINDS)


def test_each_type_of_deploy_becomes_a_type_of_job() -> None:
    assert set(deploys.JOB_TYPES) == set(literals.DEPLOY_TYPES)
    assert set(deploys.JOB_TYPES.values()) == set(literals.JOB_TYPES)


def test_a_value_that_is_not_documented_is_not_sent() -> None:
    with pytest.raises(KeyError):
        literals.JOB_STATUSES["vanished"]
