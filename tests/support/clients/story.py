"""Parts that most stories share: a user buys a session, uses it, and reads its cost.

Over a whole daemon (`support.daemons.service`). Parts that only one file needs stay in that file.
"""

from collections.abc import Sequence

from support.base.waiting import until
from support.clients.socks import Client, tunnel
from support.daemons.service import Answer, Bought, Person, Service
from support.targets.targets import Target

# Bytes that the kernel may still send between the count of its unsent bytes and the reset: a paced
# segment or two. It is the buyer's: no session is billed for it.
INSTANT_BYTES = 2 * 65_536


async def buy(
    service: Service,
    *,
    quota: int = 10**9,
    price: float = 1.0,
    usd: str = "10",
    allow_ips: Sequence[str] = (),
) -> tuple[Person, Bought]:
    """Return a user with a session of `quota` bytes at `price` USD a GB."""
    person = await service.person(usd=usd)
    return person, await service.buy(person, quota=quota, price=price, allow_ips=allow_ips)


async def reached(service: Service, bought: Bought, target: Target) -> Client:
    """Return a client whose bytes are relayed to a target."""
    return await tunnel(
        service.proxy_port, bought.username, bought.password, target.host, target.port
    )


async def used(service: Service, person: Person, bought: Bought) -> int:
    """Return the bytes that a session has used, as the API reports them to its buyer."""
    return int((await service.session(person, bought))["bytes_used"])


async def status_is(service: Service, person: Person, bought: Bought, status: str) -> None:
    """Wait until the API reports a session's status to the buyer."""

    async def reads() -> bool:
        return bool((await service.session(person, bought))["status"] == status)

    await until(reads, f"the session is {status}")


async def credits_of(service: Service, person: Person) -> float:
    """Return the credits that a user can spend."""
    answer = await service.call("GET", "/auth/me", token=person.token)
    return float(answer.body["credit_balance"])


async def worker_token(service: Service, owner: Person, name: str = "rig") -> str:
    """Make a device, and return the token that its worker shows."""
    answer = await service.call(
        "POST", "/api/worker/token/create", {"name": name}, token=owner.token
    )
    assert answer.status == 200, answer.body
    return str(answer.body["token"])


def refused(answer: Answer, code: str, field: str | None, status: int = 400) -> None:
    """Check that an answer is a refusal, whole, with this code and about this field."""
    assert answer.status == status, answer.body
    assert answer.body.keys() == {"ok", "error"}
    assert answer.body["ok"] is False
    assert answer.body["error"]["message"]
    assert (answer.code, answer.field) == (code, field)
