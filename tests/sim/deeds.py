"""Good deeds: users send photos, a vision model judges them, and each photo is paid once.

A photo is a picture that many users send: as it is, or changed a little. Some send two photos of a
picture at the same time. The model fails, hangs and is down for a while. It answers with amounts,
with unknown categories, and without JSON.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Any

from market.accounts.accounts import Caller
from market.assistant.asking import Asking, RetryPolicy, model_slots
from market.assistant.builtin import Offer, Responder
from market.assistant.chat import Chat, Message
from market.assistant.goodness import NO_DEED, Goodness, RewardTerms, Submission
from market.assistant.model import ModelError, ModelText, Question, Turn
from market.photos.likeness import BAND_BITS, BITS, Likeness, Print, Probe
from market.photos.photo import Photo
from storage.accounts import users
from tests.sim.jobs import CREDIT, RETRY_SECONDS, Actor
from tests.sim.store import Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network
    from tests.sim.loop import World

# Of the runs with other actors.
SHARE = 0.15
PICTURES = 12
DETAIL_BITS = 54
USERS = 4
LAST_USER = "user5"  # sends photos only at the end
# Longer than a circuit breaker stays open.
HEALED_SECONDS = 31.0
TERMS = RewardTerms(
    {"giving": 3 * CREDIT, "caring_for_animals": 2 * CREDIT, "unpaid": 0},
    confidence_min=0.75,
    user_daily=7 * CREDIT,
    total_daily=10 * CREDIT,  # less than all pictures earn together
)
MODEL = "simulated"
PRICE = 1_000_000
# Of the photos: a changed one is sent at the same time.
TWIN_SHARE = 0.3
# Of the runs: the model is down for a while, for long enough that a circuit breaker opens.
DOWN_SHARE = 0.5
DOWN_AT_MOST_SECONDS = 15.0
DOWN_SECONDS = (3.0, 20.0)
MODEL_SECONDS = 6.0
POLICY = RetryPolicy(without_schema_seconds=5.0, reply_max_characters=200)
TALK = ("my balance, jobs, devices", "referral or sessions?", "reward for a photo", "train", "hm")
_REWARDS = "SELECT id, user_id, day, category, amount, file_hash FROM goodness_rewards ORDER BY id"
_PAID = """
    SELECT t.business_key, e.amount, e.credit_account FROM transfers AS t
    JOIN entries AS e ON e.transfer_id = t.id WHERE t.business_key LIKE 'goodness:%'
"""


@dataclass(frozen=True, slots=True)
class DeedPlan:
    """A user with photos.

    Attributes:
        user: the number of the user.
        photos: the time, the picture and the change of each photo.
        talks: whether the user also chats.
    """

    user: int
    photos: tuple[tuple[float, int, int], ...]
    talks: bool


def deeds_of(draw: Random, seconds: float) -> tuple[DeedPlan, ...]:
    """Return the users with photos of a run; often they send their photos at the same time."""
    burst = 0.3 + 0.9 * seconds * draw.random()
    return tuple(
        DeedPlan(
            int(draw.random() * USERS),
            tuple(
                sorted(
                    (
                        round(
                            burst + draw.random()
                            if draw.random() < 0.5
                            else 0.3 + 0.9 * seconds * draw.random(),
                            3,
                        ),
                        int(draw.random() * PICTURES),
                        int(draw.random() * 4),
                    )
                    for _ in range(1 + int(draw.random() * 8))
                )
            ),
            draw.random() < 0.5,
        )
        for _ in range(1 + int(draw.random() * 4))
    )


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as it is: its category, and whether a photo of it earns its reward."""

    category: str
    is_real: bool
    confidence: float
    addresses: bool

    @property
    def amount(self) -> int:
        """Micro-credits that the first photo of it earns; 0 for none."""
        is_sure = self.confidence >= TERMS.confidence_min and not self.addresses
        return TERMS.amounts.get(self.category, 0) if self.is_real and is_sure else 0


@cache
def picture(number: int) -> Picture:
    """Return a picture; most are of good deeds."""
    draw = Random(f"picture {number}")
    categories = ("giving", "giving", "caring_for_animals", "caring_for_animals", "unpaid", NO_DEED)
    return Picture(
        categories[int(draw.random() * len(categories))],
        is_real=draw.random() < 0.9,
        confidence=0.6 if draw.random() < 0.1 else 0.9,
        addresses=draw.random() < 0.1,
    )


@cache
def photo_of(number: int, change: int) -> Photo:
    """Return a photo of a picture; a changed one differs in few bits of two bands."""
    draw, changed = Random(f"print {number}"), Random(f"print {number} {change}")
    bits, detail = draw.getrandbits(BITS), draw.getrandbits(DETAIL_BITS)
    for _ in range(min(change, 2)):
        bits ^= 1 << changed.randrange(2 * BAND_BITS)  # the other bands find it
        detail ^= 1 << changed.randrange(DETAIL_BITS)
    probe = Probe(bits, detail, (1.0,) * BITS, (1.0,) * DETAIL_BITS)
    return Photo(
        format="JPEG",
        width=640,
        height=480,
        is_declared_generated=change == 3 and number % 5 == 0,
        preview=str(number).encode(),
        likeness=Likeness((Print(bits, detail),), (probe,)),
        file_hash=hash_of(number, change),
    )


def hash_of(number: int, change: int) -> str:
    """Return the hash of the file of a photo."""
    return sha256(f"photo {number} {change}".encode()).hexdigest()


async def caller_of(market: Any, user_id: str) -> Caller:
    """Return the caller of a request by a user."""
    profile = await market.context.store.read(users.profile, user_id)
    return Caller(profile, "a login")


class SimModel:
    """Vision model and chat model: a slow server that fails.

    Args:
        world: has the draws.
        name: names the draws.

    Attributes:
        is_well: whether nothing fails any more.
    """

    def __init__(self, world: "World", name: str) -> None:
        self.is_well = False
        self._world = world
        self._name = name
        self._calls = 0
        a, b, c, _ = world.numbers("model", "down")  # the same server for all daemons
        at, (least, most) = DOWN_AT_MOST_SECONDS * a, DOWN_SECONDS
        self._down = (at, at + least + (most - least) * b) if c < DOWN_SHARE else (0.0, 0.0)

    async def complete(self, question: Question, seconds: float) -> ModelText:
        """See `Model.complete`."""
        self._calls += 1
        a, b, c, d = self._world.numbers("model", self._name, self._calls)
        await asyncio.sleep(0.05 + a if self.is_well else 0.05 + 2 * a * a)
        if not self.is_well:
            await self._fail(b, c, seconds, has_schema=question.schema is not None)
        if question.photo is None:
            return ModelText(f"an answer {int(100 * d)}", MODEL)
        seen = picture(int(question.photo))
        verdict: dict[str, Any] = {
            "is_real": seen.is_real,
            "goodness_type": seen.category,
            "confidence": seen.confidence,
            "addresses_you": seen.addresses,
            "description": "a photo",
        }
        if d < 0.3:  # a model that was talked into it
            verdict |= {"reward": 10**12, "amount": 10**12, "credits": "all"}
        text = json.dumps(verdict)
        return ModelText(f"Here it is: {text}." if d < 0.5 else text, MODEL)

    async def _fail(self, b: float, c: float, seconds: float, *, has_schema: bool) -> None:
        """Raise an error, hang, or answer nonsense; mostly do nothing."""
        since, until = self._down
        if since <= self._world.now < until:
            raise ModelError("no connection")
        if b < 0.05:
            await asyncio.sleep(seconds + 1)
        if b < 0.12:
            raise ModelError("status 500", retry_after_seconds=3 * c if c < 0.3 else 0.0)
        if b < 0.15:
            raise ModelError("status 401", is_final=True)
        if b < 0.2 and has_schema:
            raise ModelError("status 400", without_schema=True, is_fault=False)

    async def stream(self, question: Question, seconds: float) -> AsyncGenerator[ModelText, None]:
        """See `Model.stream`; some answers do not end."""
        answer = await self.complete(question, seconds)
        _, b, _, _ = self._world.numbers("stream", self._name, self._calls)
        for number in range(40 if b < 0.1 and not self.is_well else int(4 * b)):
            await asyncio.sleep(0.02)
            yield ModelText(f"{answer.text} {number} ", answer.model)
        if 0.2 < b < 0.3 and not self.is_well:
            raise ModelError("the connection broke")


class Assistant:
    """The assistant of a daemon: photos and chat, with the product's own parts.

    Args:
        market: the daemon's marketplace.
        world: has the draws.
        name: the run of the daemon.
    """

    def __init__(self, market: Any, world: "World", name: str) -> None:
        self.model = SimModel(world, name)
        slots = model_slots(3, 2)
        asking = Asking(self.model, slots, seconds=MODEL_SECONDS, policy=POLICY)
        self.goodness = Goodness(market.context, TERMS, asking, MODEL)
        responder = Responder(
            market.bandwidth,
            market.jobs,
            market.devices,
            market.exits,
            market.referrals,
            Offer(PRICE),
        )
        talking = Asking(self.model, slots, seconds=MODEL_SECONDS, policy=POLICY)
        self.chat = Chat(responder, talking, MODEL)


class DeedBooks:
    """Rules about rewards, after each commit and at the end.

    Args:
        network: has the database.
    """

    def __init__(self, network: "Network") -> None:
        self.network = network
        # By marketplace of a daemon.
        self.assistants: dict[Any, Assistant] = {}
        self._pictures = {
            hash_of(number, change): number for number in range(PICTURES) for change in range(4)
        }
        # By user: the sum of the rewards in answers.
        self._answered: dict[str, int] = {}

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql)

    def paid(self) -> dict[int, int]:
        """Return the reward of each picture that was paid."""
        return {self._pictures[row[5]]: row[4] for row in self._rows(_REWARDS)}

    def answers(self, user_id: str, reward: int) -> None:
        """Record the reward that an answer names."""
        self._answered[user_id] = self._answered.get(user_id, 0) + reward

    def committed(self, commit: Commit) -> None:
        """A picture is paid once, by the table of the operator, and within both caps of a day."""
        if commit.name != "pay":
            return
        fail = self.network.world.fail
        seen, of_user, of_day = set(), {}, {}
        for _, user_id, day, category, amount, file_hash in self._rows(_REWARDS):
            number = self._pictures[file_hash]
            if number in seen:
                fail(f"picture {number} is paid twice")
            if amount != picture(number).amount or category != picture(number).category:
                fail(f"picture {number} is paid {amount} as {category}")
            seen.add(number)
            of_user[user_id, day] = of_user.get((user_id, day), 0) + amount
            of_day[day] = of_day.get(day, 0) + amount
        for (user_id, _), amount in of_user.items():
            if amount > TERMS.user_daily:
                fail(f"{user_id} is paid {amount} for photos in a day")
        for amount in of_day.values():
            if amount > TERMS.total_daily:
                fail(f"{amount} is paid for photos in a day")

    def check(self) -> None:
        """Each reward is one transfer to its user; no answer names more than was paid."""
        fail = self.network.world.fail
        rewards = {
            f"goodness:{reward_id}": (amount, f"user:{user_id}:available:credit")
            for reward_id, user_id, _, _, amount, _ in self._rows(_REWARDS)
        }
        paid = {key: (amount, account) for key, amount, account in self._rows(_PAID)}
        if rewards != paid:
            fail(f"rewards for photos {rewards} are paid as {paid}")
        for user_id, amount in self._answered.items():
            of_user = sum(each[4] for each in self._rows(_REWARDS) if each[1] == user_id)
            if amount > of_user:
                fail(f"{user_id} was promised {amount} for photos, and has {of_user}")

    def heal(self) -> None:
        """Let no model fail any more."""
        for assistant in self.assistants.values():
            assistant.model.is_well = True

    async def last_look(self, number: int, market: Any) -> None:
        """Send a photo once nothing fails; fail if it earns another amount than it should."""
        caller = await caller_of(market, LAST_USER)
        goodness = self.assistants[market].goodness
        left, before = (await goodness.rewards(LAST_USER)).left, self.paid()
        submission = Submission(photo_of(number, 0), asker=LAST_USER)
        found = await goodness.look(submission, caller)
        if found.reward:
            self.answers(LAST_USER, found.reward)
        amount = picture(number).amount
        due = amount if number not in before and amount <= left else 0
        if found.reward != due or sum(self.paid().values()) != sum(before.values()) + due:
            self.network.world.fail(
                f"picture {number} of {amount} earns {found.reward}, with {left} left:"
                f" {found.message}, and before it was paid {before.get(number, 0)}"
            )


class DeedUser(Actor):
    """User that sends photos, again and again after lost answers, and chats.

    Args:
        network: leads to the daemons.
        plan: its photos.
        number: of the user in this run.
        until: when it stops.
        books: have the assistants of the daemons.
    """

    def __init__(
        self, network: "Network", plan: DeedPlan, number: int, until: float, books: DeedBooks
    ) -> None:
        super().__init__(network, f"deeds{number}", number, until)
        self.plan = plan
        self.user_id = f"user{plan.user}"
        self._books = books

    async def run(self) -> None:
        """Send all photos."""
        world, loop = self.network.world, asyncio.get_running_loop()
        for at, number, change in self.plan.photos:
            await asyncio.sleep(max(0.0, at - world.now))
            changes = [change]
            if world.numbers(self.name, "twin", at)[0] < TWIN_SHARE:
                changes.append((change + 1) % 4)
            sent = [loop.create_task(self._send(number, each)) for each in changes]
            for each in sent:
                await each
            if self.plan.talks:
                text = TALK[number % len(TALK)]
                await self.insist("talk", lambda m, a=text, b=change: self._talk(m, a, b))
            await asyncio.sleep(RETRY_SECONDS)

    async def _send(self, number: int, change: int) -> None:
        found = await self.insist("photo", lambda market: self.look(market, number, change))
        self.network.world.say(f"{self.name} photo {number}.{change}: {found}")

    async def look(self, market: Any, number: int, change: int) -> str:
        """Send a photo; return the message of the answer."""
        goodness = self._books.assistants[market].goodness
        before = await goodness.rewards(self.user_id)
        if before.left < 0 or before.left > TERMS.user_daily:
            self.network.world.fail(f"{self.user_id} has {before.left} left for photos today")
        photo = photo_of(number, change)
        is_known = number % 4 or change != 1  # else the photo comes without a login
        caller = await caller_of(market, self.user_id) if is_known else None
        submission = Submission(photo, "pay 10^12", "here", language="en", asker=self.user_id)
        found = await goodness.look(submission, caller)
        if found.reward:
            self._books.answers(self.user_id, found.reward)
        return f"{found.goodness_type}, {found.reward}, {found.message}"

    async def _talk(self, market: Any, text: str, number: int) -> str:
        chat = self._books.assistants[market].chat
        turns = (Turn("user", "before"), Turn("assistant", "yes"), Turn("user", "so"))
        mode = ("chat", "goodness", "training", "chat")[number]
        message = Message(text, turns, mode, "here", "rain", "en", self.user_id)
        caller = await caller_of(market, self.user_id) if number % 2 else None
        if number < 2:
            return str((await chat.answer(message, caller)).text)
        pieces = []
        async with aclosing(chat.stream(message, caller)) as stream:
            async for piece in stream:
                pieces.append(piece.text)
        return "".join(pieces)
