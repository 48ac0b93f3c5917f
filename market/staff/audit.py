"""The audit of everything that is only added to: the ledger, the staff's money, and their log."""

from msgspec.structs import replace

from market.money.audit import Report, audit_ledger
from market.staff.base.chain import audit_log
from market.staff.money.money_audit import audit_money
from storage.engines.store import Store


async def audit_all(store: Store) -> Report:
    """Audit the ledger, the money that the staff moved, and their log.

    The daemon continues to write meanwhile.

    Raises:
        UnavailableError: the store did not answer.
    """
    ledger, money, log = await audit_ledger(store), await audit_money(store), await audit_log(store)
    return replace(ledger, checks=(*ledger.checks, *money, *log.checks))
