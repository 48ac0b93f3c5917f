"""The rescue: one login of an operator, made at the machine when no other way in is left.

Every operator gets an e-mail, and an alert stays until another operator acknowledges the rescue.
"""

from msgspec import Struct

from market.accounts.mail import Message, encoded, mail_share
from market.accounts.outbox import Outbox
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.base.acts import STAFF, Act, Changes, act, permit, reason
from market.staff.base.roles import Action, Author, Member, Role
from market.staff.members.accounts import find
from market.staff.members.logins import KEPT_SECONDS, StaffLogin, StaffLogins
from storage.accounts import outbox as outbox_queries
from storage.engines.store import Transaction
from storage.staff.base import staff as staff_queries
from storage.staff.base.rows import RescueRow
from storage.staff.members import logins as login_queries
from storage.staff.members import rescues as queries

LIFETIME_SECONDS = 30 * 60
MAIL_SECONDS = 86_400
LISTED_MAX = 50
NONE_WAITS = "No rescue with this identifier waits."
# The network of a login that is made at the machine.
AT_THE_MACHINE = "machine"


class Post(Struct, frozen=True):
    """The outbox of e-mails, and the name of the service in them."""

    emails: Outbox
    name: str


async def rescue(
    context: Context, logins: StaffLogins, post: Post, author: Author, name: str, why: str
) -> StaffLogin:
    """Make a login of an operator that ends after `LIFETIME_SECONDS`.

    Args:
        context: the store, and the time.
        logins: signs the token.
        post: sends an e-mail to every operator.
        author: the user at the machine, the only one who may do it.
        name: the e-mail address or the identifier of the operator.
        why: the reason, for the log.

    Raises:
        MarketError: `staff_not_found`, `invalid_field`; `not_permitted`: the member is locked, or
            no operator.
    """
    member = await context.store.read(find, name)
    now, rescue_id = context.now(), context.identifiers.new()
    expires_at = now + LIFETIME_SECONDS

    async def change(tx: Transaction) -> tuple[None, Changes]:
        row = await staff_queries.find(tx, member.id)
        if row is None or row.locked_at is not None or row.role != Role.OPERATOR:
            raise MarketError(
                Code.NOT_PERMITTED,
                "The member is locked, or no operator. At the machine, staff unlock and staff role "
                "change that.",
            )
        await login_queries.insert_login(
            tx,
            login_id=rescue_id,
            staff_id=row.id,
            network=AT_THE_MACHINE,
            now=now,
            expires_at=expires_at,
            kept_since=now - KEPT_SECONDS,
            factor_at=0,  # it moves no money, and acknowledges no rescue
        )
        await queries.insert(
            tx, rescue_id=rescue_id, staff_id=row.id, at=now, expires_at=expires_at
        )
        await _notify(tx, post, rescue_id, row.email, author)
        return None, {"login": (None, rescue_id)}

    new = Act(author, Action.STAFF_RESCUE, STAFF, member.id, text=reason(why))
    await context.store.write(act, context, new, change)
    token = logins.token(member.id, rescue_id, now)
    return StaffLogin(token, member.id, member.email, Role.OPERATOR, expires_at)


async def acknowledge(context: Context, author: Author, rescue_id: str, why: str) -> RescueRow:
    """Acknowledge a rescue, and return it; its alert ends.

    Raises:
        MarketError: `staff_unchanged`: no rescue with this identifier waits; `not_permitted`: the
            author was rescued by it, joined after it, or is a command at the machine.
    """
    if not isinstance(author, Member):
        raise MarketError(Code.NOT_PERMITTED, "Another operator has to log in and do this.")
    found = await context.store.read(queries.find, rescue_id)
    if found is None:
        raise _none_waits()

    async def change(tx: Transaction) -> tuple[RescueRow, Changes]:
        row = await staff_queries.find(tx, author.staff_id)
        if row is None or row.created_at > found.at:
            raise MarketError(
                Code.NOT_PERMITTED,
                "The member joined after the rescue; another one has to do it.",
            )
        if not await queries.acknowledge(tx, found.id, author.staff_id, context.now()):
            raise _none_waits()
        return found, {"rescue": (found.id, "acknowledged")}

    new = Act(author, Action.STAFF_ACKNOWLEDGE, STAFF, found.staff_id, text=reason(why))
    return await context.store.write(act, context, new, change)


async def listed(context: Context, author: Author) -> list[RescueRow]:
    """Return the newest rescues.

    Raises:
        MarketError: `not_permitted`.
    """
    return await context.store.read(_listed, author)


async def _listed(tx: Transaction, author: Author) -> list[RescueRow]:
    await permit(tx, author, Action.STAFF_RESCUES)
    return await queries.newest(tx, limit=LISTED_MAX)


async def _notify(tx: Transaction, post: Post, rescue_id: str, email: str, author: Author) -> None:
    """Put an e-mail to every operator into the outbox."""
    text = (
        f"The user {author.unix_user} of the machine made a login of the operator {email}, which "
        f"ends after {LIFETIME_SECONDS // 60} minutes.\n\n"
        "If nobody of you did this, lock the machine. Otherwise another operator acknowledges it: "
        f"POST /staff/api/v1/rescues/{rescue_id}/acknowledge\n"
    )
    for row in await staff_queries.all_staff(tx):
        if row.role != Role.OPERATOR or row.locked_at is not None:
            continue
        item = post.emails.item(
            f"rescue {rescue_id} {row.email}",
            share=mail_share(row.email),
            payload=encoded(Message(row.email, f"{post.name}: a rescue of an operator", text)),
            lifetime_seconds=MAIL_SECONDS,
        )
        await outbox_queries.put(tx, item)


def _none_waits() -> MarketError:
    return MarketError(Code.STAFF_UNCHANGED, NONE_WAITS)
