"""Scopes of staff keys: which operations a program may do."""

import pytest
from msgspec import structs

from market.base.errors import Code, MarketError
from market.staff.base.callers import PROVED, SCOPES, StaffCaller, StaffScope
from market.staff.base.roles import MATRIX, Action, Role, Via


def caller(role: Role, *scopes: StaffScope) -> StaffCaller:
    return StaffCaller("k", "s", "olga@example.com", role, Via.API, 0, frozenset(scopes))


@pytest.mark.parametrize("action", sorted(Action))
def test_a_key_permits_operations_of_its_scopes_and_of_the_role(action: Action) -> None:
    for role in Role:
        for scope in StaffScope:
            expected = None
            if role not in MATRIX[action]:
                expected = Code.NOT_PERMITTED
            elif SCOPES.get(action) is not scope:
                expected = Code.SCOPE_MISSING
            if expected is None:
                caller(role, scope).require(action)
                continue
            with pytest.raises(MarketError) as error:
                caller(role, scope).require(action)
            assert error.value.code is expected


def test_no_key_touches_the_accounts_of_the_staff_approvals_or_texts() -> None:
    apart = ("staff.", "approval.", "site.publish", "ticket.legal")
    assert {each for each in SCOPES if each.value.startswith(apart)} == {Action.STAFF_SELF}


def test_limits_invitations_and_identities_want_a_factor() -> None:
    assert {Action.USER_LIMIT, Action.SITE_INVITE, Action.USER_VERIFY} <= PROVED


def test_a_login_moves_money_only_with_a_factor_of_the_last_minutes() -> None:
    for action in PROVED:
        login = structs.replace(caller(Role.OPERATOR), scopes=None)
        with pytest.raises(MarketError) as error:
            login.require(action)
        assert error.value.code is Code.FACTOR_EXPIRED
        structs.replace(login, is_proved=True).require(action)
