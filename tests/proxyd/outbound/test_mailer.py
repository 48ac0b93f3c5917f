"""E-mails go out through a real SMTP server, none waits for another, none is lost or doubled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.base.clock import Clock
from support.base.ports import closed_port, free_port
from support.base.waiting import until
from support.database import sqlite
from support.targets.mailbox import Mailbox, emails_waiting, smtp, until_no_email_waits

from market.accounts.mail import Message, encoded, mail_share, password_reset, verification
from market.accounts.outbox import FIRST_PAUSE_SECONDS, Outbox
from market.base.ids import Identifiers
from market.base.sealing import Sealing
from market.events.context import Context
from proxyd.loop import cancellation
from proxyd.outbound.mailer import (
    AGAIN_MAX,
    SENDERS,
    USUAL_TIMING,
    LogTransport,
    Mailer,
    MailTiming,
    ServerError,
    Transport,
)
from proxyd.outbound.smtp import SmtpServer, SmtpTransport
from storage.accounts import outbox as queries
from storage.engines.errors import UnavailableError
from storage.engines.open import open_store
from storage.engines.store import Store

EMAIL = verification("ada@example.com", "https://app.example.com", "a-secret")
DAY = 86_400
HASTY = MailTiming(look=0.01, first_pause=0.01, longest_pause=0.01, store_pause=0.01)


class Post:
    """An outbox, and the mailer that sends from it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.outbox = self.opened()

    def opened(self) -> Outbox:
        """Return the outbox as one more daemon opens it."""
        context = Context(self.store, Identifiers(self.clock.milliseconds), self.clock.seconds)
        return Outbox(context, Sealing(b"k" * 40, b"outbox"), "mail")

    async def put(self, *messages: Message) -> None:
        """Put e-mails, as one that was just written down."""
        for message in messages:
            row = self.outbox.item(
                f"to {message.to}",
                share=mail_share(message.to),
                payload=encoded(message),
                lifetime_seconds=DAY,
            )
            await self.store.write(queries.put, row)
        self.outbox.wake()

    async def write_to(self, *addresses: str) -> None:
        """Put an e-mail to each address."""
        await self.put(*(Message(address, "subject", "text") for address in addresses))

    @asynccontextmanager
    async def sending(
        self,
        port: int = 0,
        username: str = "",
        password: str = "",
        by: Transport | None = None,
        timing: MailTiming = USUAL_TIMING,
    ) -> AsyncIterator[None]:
        """Send the e-mails of the outbox."""
        transport = by or SmtpTransport(server(port, username, password))
        mailer = Mailer(self.outbox, transport, is_alone=True, timing=timing)
        running = asyncio.create_task(mailer.run())
        try:
            yield
        finally:
            await ended(running)

    async def until_sent(self) -> None:
        """Wait until nothing waits."""
        await until_no_email_waits(self.store)

    async def until_put_off(self, number: int = 1) -> None:
        """Wait until `number` e-mails were tried and wait for another attempt."""

        async def are_put_off() -> bool:
            later = self.clock.seconds() + FIRST_PAUSE_SECONDS
            rows = await self.store.read(
                queries.due, "mail", again=True, but=(), now=later, limit=1_000
            )
            return len(rows) == number

        await until(are_put_off, "put off")

    def pass_time(self, seconds: int = FIRST_PAUSE_SECONDS) -> None:
        """Let time pass."""
        self.clock.now += seconds
        self.outbox.wake()


def server(port: int, username: str = "", password: str = "") -> SmtpServer:
    return SmtpServer("127.0.0.1", port, username, password, "none", "proxyd@example.com")


async def ended(running: "asyncio.Task[None]") -> None:
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=20)
    await cancellation.end([running])  # so that a failure is one, and no hang
    assert done
    assert running.cancelled() or running.exception() is None, running.exception()


@pytest.fixture
async def post(tmp_path: Path, clock: Clock) -> AsyncIterator[Post]:
    store = await open_store(sqlite.database(tmp_path))
    yield Post(store, clock)
    await store.close()


async def test_an_email_arrives_whole(post: Post) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox) as port, post.sending(port):
        await post.put(EMAIL)
        await post.until_sent()
        await until(lambda: mailbox.goodbyes == 1)
    [email] = mailbox.emails
    assert (email["From"], email["To"]) == ("proxyd@example.com", "ada@example.com")
    assert email["Subject"] == EMAIL.subject
    assert email["Message-ID"].endswith("@example.com>")
    assert "https://app.example.com/verify?token=a-secret" in email.get_content()


async def test_an_email_reaches_an_address_beyond_ascii(post: Post) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox) as port, post.sending(port):
        await post.put(verification("zoë@example.com", "https://app.example.com", "a-secret"))
        await post.until_sent()
    assert mailbox.recipients == [["zoë@example.com"]]


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
async def test_a_server_that_wants_a_password_gets_it(post: Post) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox, auth=True) as port, post.sending(port, "user", "secret"):
        await post.put(EMAIL)
        await post.until_sent()
    assert len(mailbox.emails) == 1


# --- a permanent refusal ends the attempts -------------------------------------------------------


@pytest.mark.parametrize(
    "to",
    [
        "ada@example.com,all@example.com",
        "all@example.com <ada@example.com>",
        "a;b@example.com",
        "",
        "eve@example.com\r\nBcc: all@example.com",
    ],
)
async def test_a_text_that_is_not_one_address_gets_no_email_and_harms_no_other(
    post: Post, to: str, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox) as port, post.sending(port):
        await post.write_to(to)
        await post.put(EMAIL)
        await post.until_sent()
    assert mailbox.recipients == [["ada@example.com"]]
    assert "given up" in caplog.text


async def test_an_address_beyond_ascii_is_tried_once_where_the_server_refuses_it(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox, utf8=False) as port, post.sending(port):
        await post.write_to("é@example.com", "ok@example.com")
        await post.until_sent()  # although no time passes for a second attempt
    assert mailbox.recipients == [["ok@example.com"]]
    assert "e-mail to é@example.com: given up" in caplog.text


async def test_a_recipient_that_the_server_does_not_know_is_tried_once(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = Mailbox(replies={"nobody@example.com": "550 5.1.1 no such user"})
    async with smtp(mailbox) as port, post.sending(port):
        await post.write_to("nobody@example.com")
        await post.until_sent()
    assert mailbox.asked == ["nobody@example.com"]
    assert "e-mail to nobody@example.com: given up: 550 5.1.1 no such user" in caplog.text


# --- an e-mail that is put off delays no other ---------------------------------------------------


async def test_an_email_that_has_to_wait_lets_the_next_pass(post: Post) -> None:
    mailbox = Mailbox(replies={"slow@example.com": "451 try again later"})
    async with smtp(mailbox) as port, post.sending(port):
        await post.write_to("slow@example.com")
        await post.until_put_off()
        await post.write_to("ok@example.com")
        await until(lambda: mailbox.recipients == [["ok@example.com"]])
        assert mailbox.asked == ["slow@example.com", "ok@example.com"]
        mailbox.replies = {}
        post.pass_time()
        await post.until_sent()
    assert mailbox.recipients == [["ok@example.com"], ["slow@example.com"]]


async def test_an_email_is_tried_again_and_no_secret_is_logged(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = Mailbox(replies={"ada@example.com": "451 not a-secre t today"})
    async with smtp(mailbox) as port, post.sending(port):
        await post.put(EMAIL)
        await post.until_put_off()
        reason = "attempt 1 failed, next in 5 s: 451 (text left out: it repeats the e-mail)"
        await until(lambda: reason in caplog.text)
        post.pass_time()
        await until(lambda: "attempt 2 failed, next in 10 s" in caplog.text)
        mailbox.replies = {"ada@example.com": "554 http://x/verify?token=a-secret is spam"}
        post.pass_time(10)
        await post.until_sent()
    assert "given up: 554 (text left out: it repeats the e-mail)" in caplog.text
    assert "secre" not in caplog.text


async def test_an_email_that_is_no_longer_wanted_is_given_up(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = Mailbox(replies={"ada@example.com": "451 try again later"})
    async with smtp(mailbox) as port, post.sending(port):
        await post.put(EMAIL)
        await post.until_put_off()
        post.pass_time(DAY - 1)
        await post.until_sent()
    reason = "e-mail to ada@example.com: given up after 2 attempts: 451"
    await until(lambda: reason in caplog.text)


async def test_several_are_sent_at_once_and_no_more_than_the_senders(post: Post) -> None:
    domains = [f"{number}.example" for number in range(20)]
    mailbox = Mailbox(slow=domains)
    async with smtp(mailbox) as port, post.sending(port):
        await post.write_to(*(f"ada@{domain}" for domain in domains))
        await until(lambda: len(mailbox.held) > 1)
        assert len(mailbox.held) <= SENDERS
        mailbox.released.set()
        await post.until_sent()
    assert len(mailbox.emails) == 20


async def test_a_domain_whose_server_is_slow_leaves_room_for_others(post: Post) -> None:
    mailbox = Mailbox(slow=["one.slow.example", "two.slow.example"])
    many = [f"{number}@{name}.slow.example" for number in range(20) for name in ("one", "two")]
    async with smtp(mailbox) as port, post.sending(port):
        await post.write_to(*many)
        await until(lambda: len(mailbox.held) == SENDERS // 2)
        await post.write_to("ok@example.com")
        await until(lambda: mailbox.recipients == [["ok@example.com"]])
        assert len(mailbox.held) == SENDERS // 2
        mailbox.released.set()
        await post.until_sent()
    assert len(mailbox.emails) == 41


async def test_a_repeated_attempt_leaves_room_for_first_attempts(post: Post) -> None:
    addresses = [f"ada@{number}.example" for number in range(2 * SENDERS)]
    mailbox = Mailbox(replies=dict.fromkeys(addresses, "451 try again later"))
    async with smtp(mailbox) as port, post.sending(port):
        await post.write_to(*addresses)
        await post.until_put_off(len(addresses))
        mailbox.replies = {}
        mailbox.slow = [address.partition("@")[2] for address in addresses]
        post.pass_time()
        await until(lambda: len(mailbox.held) == AGAIN_MAX)
        await post.write_to("ok@example.com")
        await until(lambda: mailbox.recipients == [["ok@example.com"]])
        assert len(mailbox.held) == AGAIN_MAX
        mailbox.released.set()
        await post.until_sent()


async def test_a_server_that_stalls_costs_one_email_its_attempt(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = Mailbox(slow=["slow.example"])
    async with smtp(mailbox) as port:
        async with post.sending(by=SmtpTransport(server(port), send_seconds=0.2)):
            await post.write_to("ada@slow.example")
            await post.until_put_off()
            reason = "attempt 1 failed, next in 5 s: no answer in 0 s"
            await until(lambda: reason in caplog.text)
        mailbox.released.set()
        post.pass_time()
        async with post.sending(port):
            await post.until_sent()


async def test_a_mistake_in_a_library_costs_one_email_its_attempt(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[str] = []

    class Mistaken:
        async def send(self, message: Message) -> None:
            if message.to == "eve@example.com":
                raise AttributeError("nothing")
            sent.append(message.to)

    async with post.sending(by=Mistaken()):
        await post.write_to("eve@example.com", "ok@example.com")
        await post.until_put_off()
        await until(lambda: sent == ["ok@example.com"])
    assert "e-mail to eve@example.com: error in proxyd" in caplog.text


# --- a server that is away is no e-mail's fault --------------------------------------------------


async def test_an_email_that_waits_for_a_server_is_sent_when_the_server_is_back(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    mailbox = Mailbox()
    port = free_port()
    async with post.sending(port, timing=HASTY):
        await post.write_to(*(f"ada@{number}.example" for number in range(20)))
        await until(lambda: caplog.text.count("mail server unavailable") > 3)
    before = caplog.text.count("mail server unavailable")
    async with post.sending(port, timing=HASTY):
        await until(lambda: caplog.text.count("mail server unavailable") > before + 2)
        async with smtp(mailbox, port=port):
            await post.until_sent()
    assert sorted(mailbox.recipients) == sorted([f"ada@{number}.example"] for number in range(20))
    assert "mail server available again" in caplog.text
    assert "attempt" not in caplog.text.replace("next attempt in", "")


async def test_while_a_server_is_away_one_email_is_tried_at_a_time(post: Post) -> None:
    at_once: list[int] = []

    class Away:
        def __init__(self) -> None:
            self.trying = 0

        async def send(self, message: Message) -> None:
            self.trying += 1
            at_once.append(self.trying)
            await asyncio.sleep(0)
            self.trying -= 1
            raise ServerError("away")

    await post.write_to(*(f"ada@{number}.example" for number in range(20)))
    async with post.sending(by=Away(), timing=HASTY):
        await until(lambda: len(at_once) > SENDERS + 5)
    assert set(at_once[SENDERS:]) == {1}


async def test_a_sender_of_ours_that_is_no_address_loses_no_email(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = SmtpServer("127.0.0.1", 1, "", "", "none", "proxyd\r\n@example.com")
    async with post.sending(by=SmtpTransport(wrong)):
        await post.put(EMAIL)
        await until(lambda: "mail.sender is no address" in caplog.text)
    assert await emails_waiting(post.store) == 1


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
async def test_a_wrong_password_of_ours_loses_no_email(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox, auth=True) as port:
        async with post.sending(port, "user", "mistaken"):
            await post.put(EMAIL)
            await until(lambda: "mail server unavailable" in caplog.text)
        async with post.sending(port, "user", "secret"):
            await post.until_sent()
    assert len(mailbox.emails) == 1
    assert "mistaken" not in caplog.text


async def test_a_server_that_falls_silent_is_left(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    transport = SmtpTransport(server(silent.sockets[0].getsockname()[1]), connect_seconds=0.2)
    async with silent, post.sending(by=transport):
        await post.put(EMAIL)
        await until(lambda: "mail server unavailable, 1 e-mails waiting" in caplog.text)
    assert "a-secret" not in caplog.text


# --- each e-mail is sent once, in spite of cancellations -----------------------------------------


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancellation_that_comes_with_the_answer_is_not_lost(
    post: Post, turns: int
) -> None:
    mailbox = Mailbox()
    async with smtp(mailbox) as port:
        mailer = Mailer(post.outbox, SmtpTransport(server(port)), is_alone=True)
        running = asyncio.create_task(mailer.run())
        await post.put(EMAIL)
        while not mailbox.emails:
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await ended(running)
        async with post.sending(port):  # it was noted all the same: the next daemon sends nothing
            await post.write_to("next@example.com")
            await post.until_sent()
    assert mailbox.recipients == [["ada@example.com"], ["next@example.com"]]


async def test_an_email_that_is_being_sent_when_a_daemon_stops_is_not_sent_twice(
    post: Post,
) -> None:
    mailbox = Mailbox(is_late=True)
    async with smtp(mailbox) as port:
        running = asyncio.create_task(
            Mailer(post.outbox, SmtpTransport(server(port)), is_alone=True).run()
        )
        await post.put(EMAIL)
        await until(lambda: bool(mailbox.emails))
        running.cancel()
        await asyncio.sleep(0)
        mailbox.released.set()
        await asyncio.wait([running], timeout=20)
    assert running.cancelled()
    assert await emails_waiting(post.store) == 0


async def test_a_mailer_that_waits_for_a_silent_server_still_ends(post: Post) -> None:
    mailbox = Mailbox(slow=["slow.example"])
    async with smtp(mailbox) as port:
        async with post.sending(port):
            await post.write_to("ada@slow.example")
            await until(lambda: bool(mailbox.held))
        mailbox.released.set()
        async with post.sending(port):
            await post.until_sent()
    assert mailbox.recipients[-1:] == [["ada@slow.example"]]


async def test_an_email_that_is_sent_while_the_store_fails_is_sent_once(
    post: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real: Callable[..., object] = post.store.write
    failures = iter(range(3))

    async def failing(unit: object, *args: object, **kwargs: object) -> object:
        if unit is queries.delete and next(failures, None) is not None:
            raise UnavailableError("away")
        return await real(unit, *args, **kwargs)  # type: ignore[misc]

    monkeypatch.setattr(post.store, "write", failing)
    mailbox = Mailbox()
    async with smtp(mailbox) as port, post.sending(port, timing=HASTY):
        await post.put(EMAIL)
        await post.until_sent()
    assert len(mailbox.emails) == 1
    waits = "e-mail to ada@example.com: its outcome waits for the store to return: away"
    assert caplog.text.count(waits) == 1


async def test_two_daemons_on_one_store_send_each_email_once(store: Store, clock: Clock) -> None:
    post, mailbox = Post(store, clock), Mailbox()
    async with smtp(mailbox) as port:
        mailers = [
            Mailer(outbox, SmtpTransport(server(port)), is_alone=False)
            for outbox in (post.outbox, post.opened())
        ]
        running = [asyncio.create_task(mailer.run()) for mailer in mailers]
        addresses = [f"{number}@{number % 7}.example" for number in range(60)]
        await post.write_to(*addresses)
        await post.until_sent()
        for each in running:
            await ended(each)
    assert sorted(mailbox.recipients) == sorted([address] for address in addresses)


async def test_how_many_wait_is_counted(post: Post) -> None:
    with closed_port() as port:
        async with post.sending(port, timing=HASTY):
            await post.write_to("ada@example.com", "bob@example.com")
            await until(lambda: post.outbox.waiting == 2)
            assert await emails_waiting(post.store) == 2


async def test_without_a_server_the_link_is_logged(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with post.sending(by=LogTransport()):
        await post.put(password_reset("ada@example.com", "https://app.example.com", "a-secret"))
        await post.until_sent()
    assert "https://app.example.com/reset?token=a-secret" in caplog.text
