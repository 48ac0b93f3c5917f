"""The services of the staff, for the staff API and its pages."""

from market.accounts.letters import Letters
from market.accounts.passwords import Passwords
from market.base.sealing import Sealing
from market.events.context import Context
from market.staff.base.callers import StaffCaller
from market.staff.base.roles import Via
from market.staff.members.factors import Factors
from market.staff.members.keys import StaffKeys, is_key
from market.staff.members.logins import StaffLogins


class StaffDesk:
    """The services of the staff.

    Args:
        key: the signing key of the service; other keys are derived from it.
        letters: e-mails to users.
    """

    def __init__(
        self, context: Context, passwords: Passwords, key: bytes, letters: Letters
    ) -> None:
        self.context = context
        self.letters = letters
        self.passwords = passwords
        self.factors = Factors(Sealing(key, b"staff factors"))
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
