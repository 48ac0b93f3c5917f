"""The audit of everything that is only added to: the ledger, and the log of the staff."""

from msgspec.structs import replace

from market.money.audit import Report, audit_ledger
from market.staff.chain import audit_log
from storage.engines.store import Store


async def audit_all(store: Store) -> Report:
    """Audit the ledger, and then the log of the staff, while the daemon continues to write.

    Raises:
        UnavailableError: the store did not answer.
    """
    ledger, log = await audit_ledger(store), await audit_log(store)
    return replace(ledger, checks=(*ledger.checks, *log.checks))
