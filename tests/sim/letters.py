"""The mail server of a run, and rules about what people make: keys, devices, referrals."""

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from market.accounts.mail import Message
from proxyd.outbound.mailer import PutOffError, ServerError
from tests.sim.store import Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network

_TITLES = """
    SELECT j.rowid, j.title, h.amount FROM jobs AS j JOIN holds AS h ON h.id = 'job:' || j.id
    WHERE j.rowid > :last AND j.deploy_id IS NULL ORDER BY j.rowid
"""


class MailServer:
    """Takes letters; now and then it is away, or takes one later.

    Args:
        network: has its weather.
    """

    def __init__(self, network: "Network") -> None:
        self.letters: dict[str, list[Message]] = {}
        self._network = network
        self._count = 0

    async def send(self, message: Message) -> None:
        """See `Transport.send`."""
        self._count += 1
        a, b, c, _ = self._network.world.numbers("mail", self._count)
        await asyncio.sleep(0.05 + 0.5 * a)
        if b < 0.05:
            raise ServerError("not reached")
        if b < 0.1:
            raise PutOffError("later")
        self.letters.setdefault(message.to, []).append(message)
        if c < 0.05:  # the answer is lost, and the letter arrives twice
            raise PutOffError("no answer")

    def secret(self, email: str, kind: str) -> str:
        """Return the secret of the last letter of a kind; "" without one."""
        for message in reversed(self.letters.get(email, [])):
            for link in message.links:
                if f"/{kind}?token=" in link:
                    return unquote(link.partition("token=")[2])
        return ""


class PeopleBooks:
    """Rules about keys and devices, after each commit and at the end."""

    def __init__(self, network: "Network") -> None:
        self.network = network
        # By title of a job: the key that was to pay, and the first one of its line.
        self.bought_by: dict[str, tuple[str, str]] = {}
        self._spent: dict[str, int] = {}
        self._ended: set[str] = set()
        self._removed: set[str] = set()
        self._last_job = 0
        self._last_attempt = 0

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql, **values)

    def committed(self, _: Commit) -> None:
        """A key that has ended buys nothing, and a removed device is given nothing."""
        fail = self.network.world.fail
        for number, title, price in self._rows(_TITLES, last=self._last_job):
            self._last_job = number
            key_id, purse_id = self.bought_by.get(title, ("", ""))
            self._spent[purse_id] = self._spent.get(purse_id, 0) + price
            if key_id in self._ended:
                fail(f"a revoked key has bought {title}")
        for number, device_id in self._rows(
            "SELECT rowid, device_id FROM job_attempts WHERE rowid > :last ORDER BY rowid",
            last=self._last_attempt,
        ):
            self._last_attempt = number
            if device_id in self._removed:
                fail(f"the removed device {device_id[-6:]} is given a job")
        self._ended = {
            each for (each,) in self._rows("SELECT id FROM api_keys WHERE revoked_at IS NOT NULL")
        }
        self._removed = {
            each for (each,) in self._rows("SELECT id FROM devices WHERE revoked_at IS NOT NULL")
        }

    def check(self) -> None:
        """Keys have spent the price of their jobs, and bonuses were paid once."""
        fail = self.network.world.fail
        spent = dict(
            self._rows(
                "SELECT purse_id, spent FROM key_spends"
                " WHERE period = 'lifetime' AND currency = 'credit'"
            )
        )
        known = {each for (each,) in self._rows("SELECT purse_id FROM api_keys")}
        for purse_id in {purse_id for _, purse_id in self.bought_by.values()} & known:
            if spent.get(purse_id, 0) != self._spent.get(purse_id, 0):
                fail(
                    f"the key {purse_id[-6:]} has spent {spent.get(purse_id, 0)}, and its jobs cost"
                    f" {self._spent.get(purse_id, 0)}"
                )
        for user_id, paid_at, count in self._rows(
            "SELECT r.user_id, r.paid_at, (SELECT COUNT(*) FROM transfers AS t"
            " WHERE t.business_key = 'referral:' || r.user_id) FROM referrals AS r"
        ):
            if count != (paid_at is not None):
                fail(f"the referral of {user_id[-6:]} was paid {count} times, at {paid_at}")
