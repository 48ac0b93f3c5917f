"""Scopes of staff keys: which operations a program may do."""

import pytest

from market.base.errors import Code, MarketError
from market.staff.base.callers import SCOPES, StaffCaller, StaffScope
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


def test_no_key_touches_the_accounts_of_the_staff() -> None:
    of_staff = {each for each in Action if each.value.startswith("staff.")}
    assert of_staff & SCOPES.keys() == {Action.STAFF_SELF}
