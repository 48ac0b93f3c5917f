"""Sends e-mails by SMTP, and distinguishes failures of one e-mail from those of the server."""

import asyncio
from dataclasses import dataclass
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

import aiosmtplib

from market.accounts.mail import Message
from proxyd.outbound.mailer import PutOffError, RefusedError, ServerError

CONNECT_SECONDS = 20.0
# Some servers ask the recipient's server before they answer. Past this the e-mail is put off.
# Together with `CONNECT_SECONDS` far below `outbox.CLAIM_SECONDS`.
SEND_SECONDS = 30.0
REASON_MAX_CHARACTERS = 300  # a server's answer may have any length; a log line should not
# An answer with this number of a secret's characters in a row is taken to repeat it; by chance that
# is one answer in a hundred million. If fewer are logged, 200 bits of the secret stay unknown.
SECRET_PART_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """The mail server: `tls` is "starttls", "tls" or "none"; `sender` the From of all e-mails."""

    host: str
    port: int
    username: str
    password: str
    tls: str
    sender: str


class SmtpTransport:
    """Sends e-mails by SMTP, each over a separate connection.

    Args:
        connect_seconds: the time for the TCP connection, TLS, the greeting and the login.
        send_seconds: the time for the server's reply to one e-mail.
    """

    def __init__(
        self,
        server: SmtpServer,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        self._connect_seconds = connect_seconds
        self._send_seconds = send_seconds
        self._server = server
        # Our name in EHLO. aiosmtplib finds it for the first connection, perhaps by a DNS query.
        self._local_hostname: str | None = None

    async def send(self, message: Message) -> None:
        """See `Transport.send`."""
        email = self._email(message)
        client = self._client()
        try:
            await self._connect(client)
            await _hand_over(client, email, message, self._send_seconds)
            _say_goodbye(client)
        finally:
            client.close()

    def _email(self, message: Message) -> EmailMessage:
        sender, email = self._server.sender, EmailMessage()
        try:
            email["From"] = sender
        except (ValueError, LookupError, MessageError) as error:
            raise ServerError(f"mail.sender is no address: {error}") from error
        try:
            email["To"] = _one_address(message.to)
            email["Subject"] = message.subject
            email["Date"] = formatdate()
            email["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2] or None)
            email.set_content(message.text)
        except (ValueError, LookupError, MessageError) as error:
            raise RefusedError(str(error)) from error
        return email

    def _client(self) -> aiosmtplib.SMTP:
        """Return a client without its own time-outs, which lose cancellations on 3.11."""
        server = self._server
        return aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            username=server.username or None,
            password=server.password or None,
            use_tls=server.tls == "tls",
            start_tls=server.tls == "starttls",
            local_hostname=self._local_hostname,
            timeout=None,
        )

    async def _connect(self, client: aiosmtplib.SMTP) -> None:
        try:
            async with asyncio.timeout(self._connect_seconds):
                await client.connect()
            self._local_hostname = client.local_hostname
        except TimeoutError as error:
            raise ServerError(f"no answer in {self._connect_seconds:.0f} s") from error
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            raise ServerError(_reason(error)) from error


async def _hand_over(
    client: aiosmtplib.SMTP, email: EmailMessage, message: Message, seconds: float
) -> None:
    try:
        async with asyncio.timeout(seconds):
            await client.send_message(email)
    except TimeoutError as error:
        raise PutOffError(f"no answer in {seconds:.0f} s") from error
    except (aiosmtplib.SMTPSenderRefused, aiosmtplib.SMTPHeloError) as error:
        raise ServerError(_reason(error)) from error
    except (aiosmtplib.SMTPException, OSError, ValueError) as error:
        reason = _reason(error, message)
        raise (RefusedError if _is_final(error) else PutOffError)(reason) from error


def _say_goodbye(client: aiosmtplib.SMTP) -> None:
    """Send QUIT without waiting for its answer: the server has accepted the e-mail by now."""
    protocol = client.protocol
    if protocol is not None and protocol.is_connected:
        protocol.write(b"QUIT\r\n")


def _is_final(error: Exception) -> bool:
    """Return whether the server would refuse the same e-mail again."""
    if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
        return all(_is_final(each) for each in error.recipients)
    if isinstance(error, aiosmtplib.SMTPResponseException):
        return 500 <= error.code < 600
    return isinstance(error, ValueError | aiosmtplib.SMTPNotSupported)


def _reason(error: Exception, message: Message | None = None) -> str:
    """Return the reason of a failure, without the e-mail's secrets, which a server may repeat."""
    if isinstance(error, aiosmtplib.SMTPRecipientsRefused) and error.recipients:
        return _reason(error.recipients[0], message)
    reason = str(error) or type(error).__name__
    if isinstance(error, aiosmtplib.SMTPResponseException):
        reason = f"{error.code} {error.message}"
        if message is not None and _repeats_a_secret(error.message, message):
            reason = f"{error.code} (text left out: it repeats the e-mail)"
    return reason[:REASON_MAX_CHARACTERS]


def _repeats_a_secret(text: str, message: Message) -> bool:
    """Return whether a text has a part of the secret at the end of a link in an e-mail.

    White space is ignored, because a server may wrap the text that it repeats.
    """
    folded = "".join(text.split()).lower()
    for link in message.links:
        secret = link.rpartition("=")[2].lower()
        last = max(len(secret) - SECRET_PART_CHARACTERS, 0)
        parts = (secret[at : at + SECRET_PART_CHARACTERS] for at in range(last + 1))
        if any(part in folded for part in parts):
            return True
    return False


def _one_address(text: str) -> Address:
    """Return a text as one address; a header made from the text would be parsed as a list.

    Raises:
        ValueError: it is not an address, or more than one.
    """
    if not text.isascii():  # for SMTPUTF8 (RFC 6531); addr_spec wants ASCII
        local, _, domain = text.rpartition("@")
        return Address(username=local, domain=domain)
    try:
        return Address(addr_spec=text)
    except (IndexError, MessageError) as error:
        raise ValueError("this is not one e-mail address") from error
