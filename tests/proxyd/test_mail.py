"""Letters go out through a real SMTP server, are tried again, and reach the log without one."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.mailbox import Mailbox, smtp
from support.waiting import until

from market.mail import Message, password_reset, verification
from proxyd import mail, tasks
from proxyd.mail import LogOutbox, SmtpOutbox, SmtpServer

LETTER = verification("ada@example.com", "https://app.example.com", "a-secret")


@asynccontextmanager
async def outbox(port: int, username: str = "", password: str = "") -> AsyncIterator[SmtpOutbox]:
    server = SmtpServer("127.0.0.1", port, username, password, "none", "proxyd@example.com")
    made = SmtpOutbox(server)
    running = asyncio.create_task(made.run())
    yield made
    assert not await tasks.end([running])


async def test_a_letter_arrives_whole() -> None:
    mailbox = Mailbox()
    async with smtp(mailbox) as port:
        async with outbox(port) as made:
            made.put(LETTER)
            await until(lambda: bool(mailbox.letters))
    [letter] = mailbox.letters
    assert (letter["From"], letter["To"]) == ("proxyd@example.com", "ada@example.com")
    assert letter["Subject"] == LETTER.subject
    assert letter["Message-ID"].endswith("@example.com>")
    assert "https://app.example.com/verify?token=a-secret" in letter.get_content()


async def test_a_letter_reaches_an_address_beyond_ascii() -> None:
    mailbox = Mailbox()
    async with smtp(mailbox) as port:
        async with outbox(port) as made:
            made.put(verification("zoë@example.com", "https://app.example.com", "a-secret"))
            await until(lambda: bool(mailbox.letters))
    assert mailbox.recipients == [["zoë@example.com"]]


@pytest.mark.parametrize(
    "to",
    ["ada@example.com,all@example.com", "all@example.com <ada@example.com>", "a;b@example.com", ""],
)
async def test_what_is_not_one_address_gets_no_letter(
    to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "FIRST_PAUSE_SECONDS", 0.01)
    mailbox = Mailbox()
    async with smtp(mailbox) as port:
        async with outbox(port) as made:
            made.put(Message(to, "x", "y"))
            made.put(LETTER)
            await until(lambda: bool(mailbox.letters))
    assert mailbox.recipients == [["ada@example.com"]]


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
async def test_a_server_that_wants_a_password_gets_it() -> None:
    mailbox = Mailbox()
    async with smtp(mailbox, auth=True) as port:
        async with outbox(port, "user", "secret") as made:
            made.put(LETTER)
            await until(lambda: bool(mailbox.letters))


async def test_a_letter_is_tried_again_and_the_next_follows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mail, "FIRST_PAUSE_SECONDS", 0.01)
    mailbox = Mailbox(refusals=2)
    async with smtp(mailbox) as port:
        async with outbox(port) as made:
            made.put(LETTER)
            made.put(password_reset("bob@example.com", "https://app.example.com", "b-secret"))
            await until(lambda: len(mailbox.letters) == 2)
    assert [letter["To"] for letter in mailbox.letters] == ["ada@example.com", "bob@example.com"]
    assert "a-secret" not in caplog.text


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancellation_that_comes_with_the_answer_is_not_lost(turns: int) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox) as port:
        made = SmtpOutbox(SmtpServer("127.0.0.1", port, "", "", "none", "proxyd@example.com"))
        running = asyncio.create_task(made.run())
        made.put(LETTER)
        while not mailbox.letters:
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        ended, _ = await asyncio.wait([running], timeout=tasks.ATTEMPT_SECONDS)
        await tasks.end([running])  # so that a failure is one, and no hang
    assert ended


async def test_a_server_that_falls_silent_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mail, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(mail, "TIMEOUT_SECONDS", 0.2)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server, outbox(server.sockets[0].getsockname()[1]) as made:
        made.put(LETTER)
        await until(lambda: "given up" in caplog.text)


async def test_a_letter_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mail, "FIRST_PAUSE_SECONDS", 0.01)
    async with outbox(1) as made:
        made.put(LETTER)
        await until(lambda: "given up" in caplog.text)
    assert "a-secret" not in caplog.text


async def test_a_letter_to_a_hostile_address_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mail, "FIRST_PAUSE_SECONDS", 0.01)
    mailbox = Mailbox()
    async with smtp(mailbox) as port:
        async with outbox(port) as made:
            made.put(Message("eve@example.com\r\nBcc: all@example.com", "x", "y"))
            made.put(LETTER)
            await until(lambda: bool(mailbox.letters))
    assert [letter["To"] for letter in mailbox.letters] == ["ada@example.com"]


def test_the_number_of_waiting_letters_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    made = SmtpOutbox(SmtpServer("127.0.0.1", 1, "", "", "none", "proxyd@example.com"))
    for _ in range(mail.WAITING_MAX):
        made.put(LETTER)
    assert "dropped" not in caplog.text
    made.put(LETTER)
    assert "dropped" in caplog.text


def test_without_a_server_the_link_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    LogOutbox().put(LETTER)
    assert "https://app.example.com/verify?token=a-secret" in caplog.text
