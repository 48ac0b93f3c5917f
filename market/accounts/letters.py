"""E-mails that report a change to the account's user, queued in the transaction of the change.

They end with the name of the service, its contact, and links to its valid texts.

An address that its owner has not confirmed gets none: it may belong to another person.
"""

from collections.abc import Callable

from market.accounts.mail import Message, encoded, mail_share, signed
from market.accounts.outbox import Outbox
from market.site.gate import SEPARATOR
from storage.accounts import outbox as queries
from storage.accounts import users
from storage.engines.store import Transaction
from storage.site import texts

LIFETIME_SECONDS = 3 * 86_400
# The published texts that each e-mail links to, in words.
TEXTS = {"terms": "Terms of use", "privacy": "Privacy policy", "imprint": "Imprint"}


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
        signature = self._signature + await self._links(tx)
        if not self._signature and signature:
            signature = SEPARATOR + signature
        message = signed(write(email, self._app_url), signature)
        letter = self._emails.item(
            name,
            share=mail_share(email),
            payload=encoded(message),
            lifetime_seconds=LIFETIME_SECONDS,
        )
        await queries.put(tx, letter)

    async def _links(self, tx: Transaction) -> str:
        """Return the lines with the addresses of the texts that are valid now."""
        kinds = await texts.valid_kinds(tx, self._emails.now())
        return "".join(
            f"{words}: {self._app_url}/{kind}\n" for kind, words in TEXTS.items() if kind in kinds
        )

    def wake(self) -> None:
        """Wake the sender, once the transaction is committed."""
        self._emails.wake()
