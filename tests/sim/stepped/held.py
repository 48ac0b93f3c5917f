"""The order in which a unit locks a user's rows: the account of credits comes before the user.

A row that refers to a user locks that user, so an account may not be locked after it: a unit that
locks the account first, as the closing of an account does, would wait for the other one forever.

The end of any job locks an account of the house that pays for work, and then those of users. So
another unit may not lock it after an account of a user, either.
"""

import re
from collections.abc import Collection, Sequence

from market.money import ledger
from market.money.money import Currency
from storage.engines.store import Value

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INTO = re.compile(r"\s*INSERT INTO (\w+)")
_AVAILABLE = re.compile(r"user:(.*):available:")
# Accounts of the house that units lock before the accounts of several users.
_PAYERS = ("house:revenue:", "house:review:", "house:rewards:")


class Held:
    """The locks of a transaction so far.

    Args:
        referring: the tables whose rows refer to users.
    """

    def __init__(self, referring: Collection[str]) -> None:
        self._referring = referring
        self._users: set[str] = set()
        self._accounts: set[str] = set()

    def ran(self, sql: str, values: dict[str, Value]) -> None:
        """Note the users of a new row."""
        into = _INTO.match(sql)
        if into is not None and into[1] in self._referring:
            self._users.update(_UUID.findall(" ".join(map(str, values.values()))))

    def locks(self, table: str, ids: Sequence[str]) -> bool:
        """Note rows that are locked; False for an account that is locked too late."""
        if table == "users":
            self._users.update(ids)
        if table != "accounts":
            return True
        late = [each for each in ids if each not in self._accounts and self._is_late(each)]
        self._accounts.update(ids)
        return not late

    def _is_late(self, account: str) -> bool:
        if account.startswith(_PAYERS):
            return any(map(_AVAILABLE.match, self._accounts))
        owner = _AVAILABLE.match(account)
        if owner is None or owner[1] not in self._users:
            return False
        return ledger.available(owner[1], Currency.CREDIT) not in self._accounts
