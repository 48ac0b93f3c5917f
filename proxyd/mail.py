"""Letters: by SMTP when that is configured, into the log otherwise."""

import asyncio
import logging
from dataclasses import dataclass
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

import aiosmtplib

from market.mail import Message

WAITING_MAX = 1_000
ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 2.0
TIMEOUT_SECONDS = 20.0

_logger = logging.getLogger("mail")


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """Where letters go: `tls` is how the connection is encrypted, `sender` who they are from."""

    host: str
    port: int
    username: str
    password: str
    tls: str
    sender: str


class LogOutbox:
    """Writes letters to the log, so that an installation without mail works."""

    def put(self, message: Message) -> None:
        """See `Outbox.put`."""
        _logger.info(
            "no mail server is configured; to %s: %s: %s",
            message.to,
            message.subject,
            " ".join(word for word in message.text.split() if "://" in word),
        )

    @property
    def waiting(self) -> int:
        """How many letters wait."""
        return 0

    async def run(self) -> None:
        """There is nothing to do later."""
        await asyncio.Event().wait()


class SmtpOutbox:
    """Sends letters by SMTP, one after the other, each tried a few times.

    Args:
        server: where they go.
    """

    def __init__(self, server: SmtpServer) -> None:
        self._server = server
        self._waiting: asyncio.Queue[Message] = asyncio.Queue(WAITING_MAX)

    def put(self, message: Message) -> None:
        """See `Outbox.put`."""
        try:
            self._waiting.put_nowait(message)
        except asyncio.QueueFull:
            _logger.error("a letter is dropped, %d wait already", WAITING_MAX)

    @property
    def waiting(self) -> int:
        """How many letters wait."""
        return self._waiting.qsize()

    async def run(self) -> None:
        """Send what is put, until cancelled."""
        while True:
            await self._send(await self._waiting.get())

    async def _send(self, message: Message) -> None:
        pause = FIRST_PAUSE_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._try(message)
            except (aiosmtplib.SMTPException, OSError, ValueError) as error:
                _logger.warning("attempt %d to send a letter failed: %s", attempt, error)
            else:
                return
            if attempt < ATTEMPTS:
                await asyncio.sleep(pause)
                pause *= 2
        _logger.error("a letter is given up after %d attempts", ATTEMPTS)

    async def _try(self, message: Message) -> None:
        """Hand a letter to the server.

        The time limit is ours. aiosmtplib would keep its own by `asyncio.wait_for`, which on Python
        3.11 loses a cancellation that arrives with the server's answer, and its context manager
        waits for the answer to QUIT after a cancellation too.
        """
        server = self._server
        client = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            username=server.username or None,
            password=server.password or None,
            use_tls=server.tls == "tls",
            start_tls=server.tls == "starttls",
            timeout=None,
        )
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await client.connect()
                await client.send_message(_letter(message, server.sender))
        finally:
            client.close()


def _one_address(text: str) -> Address:
    """Return an address as what it is; a header of text would be read as a list of them.

    Raises:
        ValueError: it is none, or more than one.
    """
    if not text.isascii():  # for SMTPUTF8 (RFC 6531); addr_spec wants ASCII
        local, _, domain = text.rpartition("@")
        return Address(username=local, domain=domain)
    try:
        return Address(addr_spec=text)
    except (IndexError, MessageError) as error:
        raise ValueError("this is not one e-mail address") from error


def _letter(message: Message, sender: str) -> EmailMessage:
    letter = EmailMessage()
    letter["From"] = sender
    letter["To"] = _one_address(message.to)
    letter["Subject"] = message.subject
    letter["Date"] = formatdate()
    letter["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2] or None)
    letter.set_content(message.text)
    return letter
