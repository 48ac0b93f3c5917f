"""A refund: found by its payment, refused above the rest, posted once, approved by another person.

The daemon with its staff API and the commands beside it are processes, as an operator runs them.
"""

import json
import re
from typing import Any

import pytest
from support.base.brief import brief
from support.daemons import process
from support.daemons.process import Api, Process

WHY = ("--reason", "asked by letter 12")
# Both deposits and the first refund are below it, the second refund is not.
LIMIT = {"PROXYD_STAFF__APPROVAL_USD": "50"}
STAFF = {"PROXYD_STAFF__HOST": "127.0.0.1", "PROXYD_STAFF__PORT": "0"}
LISTENS = re.compile(r"staff on (\S+:\d+)")
PASSWORD = "correct horse"


class Story:
    """A daemon with a user, the commands of the staff, and a member at the staff API."""

    def __init__(self, url: str, daemon: Process) -> None:
        self.url = url
        self.daemon = daemon
        self.token = daemon.log_in("ada@example.com", "long enough")
        listens = LISTENS.search(daemon.output)
        assert listens is not None, daemon.output
        self.office = Api(f"http://{listens[1]}/staff/api/v1")

    def run(self, *words: str, status: int = 0, stdin: str = "") -> Any:
        """Run a command of the staff that ends with a status; return its document or its error."""
        done = process.run(self.url, *words, "--json", stdin=stdin, **LIMIT)
        assert done.returncode == status, done
        if done.stderr:
            assert len(done.stderr.splitlines()) == 1, done.stderr
            return done.stderr
        return json.loads(done.stdout)

    def refund(self, amount: str, reference: str, deposit: str = "inv-2", status: int = 0) -> Any:
        """Refund a part of a deposit of the user."""
        words = ("money", "refund", "ada", amount, "--deposit", deposit, "--reference", reference)
        return self.run(*words, *WHY, status=status)

    def balance(self) -> float:
        """Return the balance as the user sees it."""
        status, wallet = self.daemon.call("GET", "/api/wallet", token=self.token)
        assert status == 200, wallet
        return float(wallet["usd_balance"])

    def member(self, name: str, role: str) -> str:
        """Add a member of the staff, and return the token of their login."""
        email = f"{name}@staff.example.com"
        new = ("staff", "create", email, "--role", role, "--password-stdin", "--reason", "hired")
        made = self.run(*new, stdin=PASSWORD)
        proof = {"email": email, "password": PASSWORD, "code": made["recovery_codes"][0]}
        status, answer = self.office.call("POST", "/login", proof)
        assert status == 200, answer
        return str(answer["token"])


def paid_and_spent(story: Story) -> None:
    """Pay 20 USD in twice, and spend 25: 15 of the second deposit are unspent."""
    for reference in ("inv-1", "inv-2"):
        deposit = ("wallet", "deposit", "ada@example.com", "--usd", "20", "--reference", reference)
        done = process.run(story.url, *deposit)
        assert done.returncode == 0, done
    story.daemon.buy(story.token, gb=25)
    assert story.balance() == 15


def refunded(story: Story) -> None:
    """Find the payment and refund a part of it, once; a larger one is refused with the rest."""
    [found] = story.run("who", "inv-2")["found"]
    assert [hit["username"] for hit in found["hits"]] == ["ada"]
    for amount, deposit, words in (
        ("15.01", "inv-2", "15"),
        ("0.01", "inv-1", "0"),
        ("999999999999", "inv-2", "15"),
        ("1", "inv-9", "no such deposit"),
    ):
        assert words in story.refund(amount, "r-0", deposit, status=1)
        assert story.balance() == 15
    done = story.refund("5", "r-1")["refunded"]
    assert (done["amount"], story.balance()) == ("-5.00", 10)
    assert story.refund("5", "r-1")["refunded before"]["id"] == done["id"]
    assert story.balance() == 10


def approved(story: Story) -> None:
    """Ask for more than the limit: another person than the author approves it."""
    waits = story.refund("8", "r-2", status=3)
    request = waits["waits"]["approval"]
    assert story.balance() == 10
    assert "second person" in story.run("approve", request, status=1)
    support, finance = story.member("sue", "support"), story.member("fin", "finance")
    approve = f"/approvals/{request}/approve"
    for token, code in ((support, "not_permitted"), (story.token, "unauthorized")):
        status, answer = story.office.call("POST", approve, {}, token)
        assert (status, answer["error"]["code"]) == (401, code)
    assert story.balance() == 10
    status, answer = story.office.call("POST", approve, {}, finance)
    assert (status, answer.get("state")) == (200, "done"), answer
    _, answer = story.office.call("POST", approve, {}, finance)
    assert answer["error"]["code"] == "approval_over"
    assert story.balance() == 2


def recorded(story: Story) -> None:
    """The user and the log of the staff have each refund once; the user has no reason."""
    kinds = [each["kind"] for each in story.run("money", "history", "ada")["transactions"]]
    assert kinds.count("deposit_refund") == 2
    _, mine = story.daemon.call("GET", "/api/events?types=wallet.refunded", token=story.token)
    assert "letter" not in json.dumps(mine)
    acts = story.run("log", "--user", "ada", "--limit", "50")["log"]
    done = [each["action"] for each in acts if each["action"].startswith(("money.", "approval."))]
    assert done.count("approval.approve") == 1
    assert WHY[1] in {each["text"] for each in acts}


@pytest.mark.parametrize("engine", brief(["sqlite", "postgres"]))
@pytest.mark.both_engines
def test_a_deposit_is_refunded_once_and_never_above_its_rest(store_url: str) -> None:
    process.funded(store_url, "0", "ada")
    with process.serving(store_url, **LIMIT, **STAFF) as daemon:
        story = Story(store_url, daemon)
        paid_and_spent(story)
        refunded(story)
        approved(story)
        recorded(story)
        _, refusal = daemon.call("POST", "/api/bandwidth/create", {"gb": 3}, story.token)
        assert refusal["error"]["code"] == "insufficient_funds"
        assert daemon.stop() == 0
    process.assert_audit(store_url)
