"""A real SMTP server for tests that keeps its e-mails, and an outbox that waits for it."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from storage.engines.store import Store, Transaction
from support.base.waiting import until

NOTHING: Mapping[str, str] = {}


class Mailbox:
    """A handler that keeps e-mails, and refuses some first.

    Args:
        refusals: the number of e-mails to put off, for any recipient.
        replies: the answers that refuse the e-mails of some recipients, by recipient.
        slow: domains whose mail is taken only when `released` is set.
        is_late: whether it says that it has taken one only then.
    """

    def __init__(
        self,
        refusals: int = 0,
        *,
        replies: Mapping[str, str] = NOTHING,
        slow: Collection[str] = (),
        is_late: bool = False,
    ) -> None:
        self.refusals = refusals
        self.replies = replies
        self.slow = slow
        self.is_late = is_late
        self.released = asyncio.Event()
        self.emails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.asked: list[str] = []
        self.held: list[str] = []
        self.goodbyes = 0

    async def handle_RCPT(  # noqa: N802 - aiosmtpd calls it so
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.asked.append(address)
        if address in self.replies:
            return self.replies[address]
        if address.rpartition("@")[2] in self.slow:
            self.held.append(address)
            await self.released.wait()
            self.held.remove(address)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.goodbyes += 1
        return "221 Bye"

    async def handle_DATA(  # noqa: N802 - aiosmtpd calls it so
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        if self.refusals:
            self.refusals -= 1
            return "451 try again later"
        content = bytes(envelope.content or b"")
        letter = message_from_bytes(content, policy=policy.default)
        assert isinstance(letter, EmailMessage)
        self.emails.append(letter)
        self.recipients.append(list(envelope.rcpt_tos))
        if self.is_late:
            await self.released.wait()
        return "250 OK"


def authenticate(
    server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: LoginPassword
) -> AuthResult:
    is_right = data == LoginPassword(b"user", b"secret")
    return AuthResult(success=is_right, handled=is_right)


@asynccontextmanager
async def smtp(
    mailbox: Mailbox, *, auth: bool = False, utf8: bool = True, port: int = 0
) -> AsyncIterator[int]:
    """Run a server on a port, or a free one; with `utf8` it takes addresses beyond ASCII."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: SMTP(
            mailbox,
            hostname="mail.example.com",
            auth_required=auth,
            auth_require_tls=False,
            authenticator=authenticate if auth else None,
            enable_SMTPUTF8=utf8,
        ),
        "127.0.0.1",
        port,
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def emails_waiting(store: Store) -> int:
    """Return how many e-mails have neither left nor been given up."""

    async def count(tx: Transaction) -> int | None:
        return await tx.one(int, "SELECT COUNT(*) FROM outbox WHERE channel = 'mail'")

    return await store.read(count) or 0


async def until_no_email_waits(store: Store) -> None:
    """Wait until every e-mail has left or was given up."""

    async def is_empty() -> bool:
        return not await emails_waiting(store)

    await until(is_empty, "no e-mail waits")
