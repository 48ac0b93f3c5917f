"""A real SMTP server for tests, that keeps what it is sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class Mailbox:
    """A handler that keeps letters, and refuses some first."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.letters: list[EmailMessage] = []
        self.recipients: list[list[str]] = []

    async def handle_DATA(  # noqa: N802 - aiosmtpd calls it so
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        if self.refusals:
            self.refusals -= 1
            return "451 try again later"
        letter = message_from_bytes(bytes(envelope.content or b""), policy=policy.default)
        assert isinstance(letter, EmailMessage)
        self.letters.append(letter)
        self.recipients.append(list(envelope.rcpt_tos))
        return "250 OK"


def authenticate(
    server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: LoginPassword
) -> AuthResult:
    return AuthResult(success=data == LoginPassword(b"user", b"secret"))


@asynccontextmanager
async def smtp(mailbox: Mailbox, *, auth: bool = False) -> AsyncIterator[int]:
    """Run a server on a free port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: SMTP(
            mailbox,
            hostname="mail.example.com",
            auth_required=auth,
            auth_require_tls=False,
            authenticator=authenticate if auth else None,
            enable_SMTPUTF8=True,
        ),
        "127.0.0.1",
        0,
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
