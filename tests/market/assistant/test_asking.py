"""One deadline, one retry, a bound on calls, and a circuit that opens."""

import asyncio
import logging

import pytest
from support.base.waiting import until
from support.market.model import ScriptedModel

from market.assistant.asking import (
    FAILURES_MAX,
    OPEN_SECONDS,
    Asking,
    CircuitBreaker,
    RetryPolicy,
    model_slots,
)
from market.assistant.model import ModelError, ModelText, Question, Schema, Turn
from market.base.slots import Slots

QUESTION = Question("m", "i", (Turn("user", "u"),), schema=Schema("s", {}))
DOWN = ModelError("it is down")


AT_ONCE = RetryPolicy(pause_seconds=0)


def asking(
    model: ScriptedModel,
    seconds: float = 20,
    slots: Slots | None = None,
    policy: RetryPolicy = AT_ONCE,
) -> Asking:
    return Asking(model, slots or model_slots(4), seconds=seconds, policy=policy)


async def ask(made: Asking, caller: str = "ann") -> tuple[str, str]:
    return await made.ask(QUESTION, str, caller)


async def pieces(made: Asking) -> list[str]:
    return [piece.text async for piece in made.stream(QUESTION, "ann")]


async def test_an_answer_comes_with_the_name_of_its_giver() -> None:
    assert await ask(asking(ScriptedModel("yes"))) == ("yes", "scripted")
    assert await pieces(asking(ScriptedModel(["y", "es"]))) == ["y", "es"]


async def test_a_failure_is_asked_again_once() -> None:
    model = ScriptedModel(DOWN, "yes")
    assert (await ask(asking(model)))[0] == "yes"
    model = ScriptedModel(DOWN)
    with pytest.raises(ModelError):
        await ask(asking(model))
    assert len(model.asked) == 2
    model = ScriptedModel(DOWN, ["y"])
    assert await pieces(asking(model)) == ["y"]
    model = ScriptedModel([])
    with pytest.raises(ModelError):
        await pieces(asking(model))
    assert len(model.asked) == 2


async def test_an_answer_without_sense_is_asked_for_again() -> None:
    model = ScriptedModel("seven", "7")

    def read(text: str) -> int:
        if not text.isdigit():
            raise ModelError("no number")
        return int(text)

    assert await asking(model).ask(QUESTION, read, "ann") == (7, "scripted")


async def test_a_useless_answer_is_not_asked_for_again() -> None:
    model = ScriptedModel(ModelError("wrong key", is_final=True))
    with pytest.raises(ModelError):
        await ask(asking(model))
    assert len(model.asked) == 1


async def test_a_server_that_wants_longer_than_there_is_time_is_not_asked_again() -> None:
    model = ScriptedModel(ModelError("later", retry_after_seconds=3600))
    with pytest.raises(ModelError):
        await ask(asking(model))
    assert len(model.asked) == 1


async def test_a_server_that_may_refuse_schemas_is_asked_without() -> None:
    model = ScriptedModel(ModelError("status 400", without_schema=True), "yes")
    await ask(asking(model))
    assert [question.schema is None for question in model.asked] == [False, True]


async def test_a_server_that_refuses_schemas_is_not_asked_in_vain_each_time() -> None:
    model = ScriptedModel(ModelError("status 400", without_schema=True), "yes")
    made = asking(model)
    for _ in range(3):
        await ask(made)
    assert [question.schema is None for question in model.asked] == [False, True, True, True]
    model = ScriptedModel(ModelError("status 400", without_schema=True), "yes", "yes")
    made = asking(model, policy=RetryPolicy(pause_seconds=0, without_schema_seconds=0))
    for _ in range(2):
        await ask(made)
    assert [question.schema is None for question in model.asked] == [False, True, False]


async def test_a_server_that_takes_schemas_gets_one_each_time() -> None:
    model = ScriptedModel(DOWN, "yes")
    made = asking(model)
    for _ in range(3):
        await ask(made)
    assert all(question.schema is not None for question in model.asked)


async def test_a_server_that_refuses_more_than_schemas_is_asked_with_one_again() -> None:
    refusal = ModelError("status 400", without_schema=True)
    model = ScriptedModel(refusal, ModelError("status 400", is_final=True), "yes")
    made = asking(model)
    with pytest.raises(ModelError):
        await ask(made)
    await ask(made)
    assert [question.schema is None for question in model.asked] == [False, True, False]


async def test_everything_together_has_one_deadline() -> None:
    model = ScriptedModel(None)
    with pytest.raises(ModelError, match="too long"):
        await ask(asking(model, seconds=0.05))
    with pytest.raises(ModelError, match="too long"):
        await pieces(asking(model, seconds=0.05))
    assert len(model.asked) == 2


async def test_an_answer_that_breaks_off_ends_with_an_ellipsis() -> None:
    model = ScriptedModel(["Once ", "upon", DOWN])
    assert await pieces(asking(model)) == ["Once ", "upon", " …"]
    assert len(model.asked) == 1


async def test_an_answer_that_does_not_end_is_cut() -> None:
    made = asking(ScriptedModel(["word "] * 9), policy=RetryPolicy(reply_max_characters=10))
    assert await pieces(made) == ["word ", "word ", "", " …"]


async def test_the_concurrent_calls_are_bounded() -> None:
    model = ScriptedModel("yes")
    slots = model_slots(3)
    first, second = asking(model, slots=slots), asking(model, slots=slots)
    several = enumerate([first, second] * 20)
    await asyncio.gather(*(ask(made, f"caller {number % 4}") for number, made in several))
    assert model.most == 3
    assert len(model.asked) == 40


async def test_too_many_waiting_callers_are_turned_away_and_the_operator_is_notified(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = asking(ScriptedModel(None), seconds=0.1, slots=model_slots(1, waiting_max=2))
    outcomes = await asyncio.gather(*(ask(made) for _ in range(6)), return_exceptions=True)
    words = [str(outcome) for outcome in outcomes]
    for reason in ("too many calls wait for it", "no call got free in time"):
        told = caplog.messages.count(f"the model was not asked: {reason}")
        assert told == words.count(reason) > 0
    assert words.count("too many calls wait for it") == 3
    assert set(words) - {"it took too long"} == {
        "too many calls wait for it",
        "no call got free in time",
    }


async def test_a_call_that_is_free_too_late_is_not_made() -> None:
    model = ScriptedModel("yes")
    made = asking(model, seconds=-1)
    for asked in (ask(made), pieces(made)):
        with pytest.raises(ModelError, match="too long"):
            await asked
    assert not model.asked


async def test_one_caller_leaves_room_for_others() -> None:
    slots = model_slots(4, 2, waiting_per_caller_max=2)
    deadline = asyncio.get_running_loop().time() + 20
    order: list[str] = []
    leave = asyncio.Event()

    async def hold(caller: str) -> None:
        async with slots.slot(caller, deadline=deadline):
            order.append(caller)
            await leave.wait()

    greedy = [asyncio.create_task(hold("ann")) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(ModelError, match="too many"):
        await greedy[4]
    others = [asyncio.create_task(hold(caller)) for caller in ("ben", "cid")]
    await until(lambda: len(order) == 4)
    assert order == ["ann", "ann", "ben", "cid"]
    leave.set()
    await asyncio.gather(*greedy[:4], *others)
    assert order.count("ann") == 4


async def test_a_slot_is_given_back_after_any_outcome() -> None:
    slots = model_slots(1)
    for attempt in (DOWN, None, "yes"):
        made = asking(ScriptedModel(attempt), seconds=0.05, slots=slots)
        await asyncio.gather(ask(made), return_exceptions=True)
    left = asking(ScriptedModel(["a", "b"]), slots=slots).stream(QUESTION, "ann")
    assert await anext(left) == ModelText("a", "scripted")
    await left.aclose()
    assert (await ask(asking(ScriptedModel("yes"), slots=slots)))[0] == "yes"


async def test_a_model_that_keeps_failing_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = ScriptedModel(DOWN)
    made = asking(model)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            await asyncio.gather(ask(made), return_exceptions=True)
            await asyncio.gather(pieces(made), return_exceptions=True)
    assert len(model.asked) <= 6
    assert sum("keeps failing" in line for line in caplog.messages) == 1


async def test_a_failure_that_a_question_may_have_caused_leaves_the_circuit_closed() -> None:
    made = asking(ScriptedModel(ModelError("too long", is_final=True, is_fault=False)))
    for _ in range(FAILURES_MAX + 1):
        with pytest.raises(ModelError, match="too long"):
            await ask(made)


def test_the_circuit_opens_lets_one_through_and_closes() -> None:
    now = [0.0]
    breaker = CircuitBreaker(lambda: now[0])
    for _ in range(FAILURES_MAX):
        breaker.check()
        breaker.failed(DOWN)
    with pytest.raises(ModelError, match="circuit open"):
        breaker.check()
    now[0] += OPEN_SECONDS
    breaker.check()
    with pytest.raises(ModelError):
        breaker.check()
    breaker.succeeded()
    breaker.check()
    breaker.check()
