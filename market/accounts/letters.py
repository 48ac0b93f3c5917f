"""E-mails that report a change to the account's user, queued in the transaction of the change.

An address that its owner has not confirmed gets none: it may belong to another person.
"""

from collections.abc import Callable

from market.accounts.mail import Message, encoded, mail_share, signed
from market.accounts.outbox import Outbox
from storage.accounts import outbox as queries
from storage.accounts import users
from storage.engines.store import Transaction

LIFETIME_SECONDS = 3 * 86_400


class Letters:
    """Puts e-mails to users into the queue.

    Args:
        app_url: where the links in e-mails lead.
        signature: the last lines of each e-mail.
    """

    def __init__(self, emails: Outbox, app_url: str, signature: str = "") -> None:
        self._emails = emails
        self._signature = signature
        self._app_url = app_url

    async def put(
        self, tx: Transaction, user_id: str, name: str, write: Callable[[str, str], Message]
    ) -> bool:
        """Put an e-mail to a user. Return False for an address that is not confirmed.

        Args:
            tx: the transaction of the change.
            user_id: the user.
            name: of the e-mail; a later one of the same name replaces one that still waits.
            write: returns the e-mail, from the address and the beginning of links.
        """
        user = await users.find(tx, user_id)
        if user is None or user.email_verified_at is None:
            return False
        await self.put_last(tx, name, user.email, write)
        return True

    async def put_last(
        self, tx: Transaction, name: str, email: str, write: Callable[[str, str], Message]
    ) -> None:
        """Put an e-mail to an address that the same transaction may erase; as `put`."""
        message = signed(write(email, self._app_url), self._signature)
        letter = self._emails.item(
            name,
            share=mail_share(email),
            payload=encoded(message),
            lifetime_seconds=LIFETIME_SECONDS,
        )
        await queries.put(tx, letter)

    def wake(self) -> None:
        """Wake the sender, once the transaction is committed."""
        self._emails.wake()
