"""The client of the model, against a stand-in over real HTTP."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator

import pytest
from support.targets import upstream as stand_in
from support.targets.upstream import Upstream, completion

from market.assistant.model import ModelError, ModelText, Question, Schema, Turn
from proxyd.outbound import chat_model as module
from proxyd.outbound.chat_model import STREAM_MAX_BYTES, OpenAiModel

QUESTION = Question(
    "small", "Be kind.", (Turn("user", "hi"), Turn("assistant", "hello"), Turn("user", "bye"))
)
SCHEMA = Schema("verdict", {"type": "object"})


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with stand_in.upstream() as running:
        yield running


@pytest.fixture
def stream_max_bytes() -> int:
    return STREAM_MAX_BYTES


@pytest.fixture
async def model(upstream: Upstream, stream_max_bytes: int) -> AsyncIterator[OpenAiModel]:
    made = OpenAiModel(
        upstream.url,
        "sk-secret",
        max_tokens=77,
        connections=4,
        stream_max_bytes=stream_max_bytes,
    )
    yield made
    await made.close()


async def pieces(model: OpenAiModel, seconds: float = 20) -> list[ModelText]:
    return [piece async for piece in model.stream(QUESTION, seconds)]


async def failure(model: OpenAiModel, question: Question = QUESTION) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await model.complete(question, 20)
    return caught.value


async def test_a_question_is_sent_in_the_form_of_the_protocol(
    upstream: Upstream, model: OpenAiModel
) -> None:
    assert await model.complete(QUESTION, 20) == ModelText("Hello from the model.", "small")
    assert upstream.asked == [
        {
            "model": "small",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": "bye"},
            ],
            "stream": False,
            "max_tokens": 77,
        }
    ]
    assert upstream.headers[0]["Authorization"] == "Bearer sk-secret"


async def test_a_photo_and_a_schema_go_along(upstream: Upstream, model: OpenAiModel) -> None:
    question = Question("eye", "Look.", (Turn("user", "what?"),), b"\xff\xd8", SCHEMA)
    await model.complete(question, 20)
    (asked,) = upstream.asked
    assert asked["messages"][1]["content"] == [
        {"type": "text", "text": "what?"},
        {
            "type": "image_url",
            "image_url": {
                "url": "data:image/jpeg;base64," + base64.b64encode(b"\xff\xd8").decode()
            },
        },
    ]
    assert asked["response_format"]["type"] == "json_schema"
    assert asked["response_format"]["json_schema"] == {
        "name": "verdict",
        "strict": True,
        "schema": {"type": "object"},
    }


async def test_without_a_key_or_a_bound_none_is_sent(upstream: Upstream) -> None:
    model = OpenAiModel(upstream.url + "/", "", max_tokens=0, connections=1)
    await model.complete(QUESTION, 20)
    await model.close()
    assert "Authorization" not in upstream.headers[0]
    assert "max_tokens" not in upstream.asked[0]


async def test_a_connection_is_used_again(upstream: Upstream, model: OpenAiModel) -> None:
    for _ in range(5):
        await model.complete(QUESTION, 20)
    assert len(upstream.connections) == 1


async def test_the_server_says_which_model_it_was(upstream: Upstream, model: OpenAiModel) -> None:
    upstream.will(stand_in.answers(json.dumps(completion("x", "small-2027-01")).encode()))
    assert (await model.complete(QUESTION, 20)).model == "small-2027-01"
    for name in ("", "a\nb", "x" * 201):
        upstream.will(stand_in.answers(json.dumps(completion("x", name)).encode()))
        assert (await model.complete(QUESTION, 20)).model == "small"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("<think>hm\nhm</think>\n\nYes.", "Yes."),
        ("  <think></think>Yes.", "Yes."),
        ("hm\nhm</think>\n\nYes.", "Yes."),
        ("a word</think> Yes. And </think> too.", "Yes. And </think> too."),
        ("I <think> so</think>.", "I <think> so</think>."),
        ("I <think> so", "I <think> so"),
        ("<3 to you", "<3 to you"),
    ],
)
async def test_thoughts_are_left_out(
    upstream: Upstream, model: OpenAiModel, said: str, answer: str
) -> None:
    upstream.will(stand_in.says(said))
    assert (await model.complete(QUESTION, 20)).text == answer
    assert "".join(piece.text for piece in await pieces(model)) == answer


async def test_of_a_model_that_speaks_at_once_nothing_is_held_back(
    upstream: Upstream, model: OpenAiModel
) -> None:
    words = [ModelText(word, "small") for word in ("Hello ", "from ", "the ", "model.")]
    assert await pieces(model) == [ModelText("Hello from the model.", "small")]
    assert await pieces(model) == words
    upstream.will(stand_in.says("So be it.</think> Yes."))
    await pieces(model)
    for _ in range(2):
        assert await pieces(model) == [ModelText("Yes.", "small")]
    upstream.will(stand_in.says("Hello from the model."))
    await model.complete(QUESTION, 20)
    assert await pieces(model) == words


async def test_thoughts_that_broke_off_are_not_returned(
    upstream: Upstream, model: OpenAiModel
) -> None:
    upstream.will(stand_in.breaks_off("I wonder ", "whether"))
    stream = model.stream(QUESTION, 20)
    with pytest.raises(ModelError):
        await anext(stream)


async def test_an_answer_without_end_is_not_held_back_for_ever(
    upstream: Upstream, model: OpenAiModel
) -> None:
    upstream.will(stand_in.never_ends)
    stream = model.stream(QUESTION, 20)
    assert len((await anext(stream)).text) > module.REPLY_MAX_CHARACTERS
    assert (await anext(stream)).text == "word "
    await stream.aclose()


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"not JSON", b"{}", b"[]", b'{"choices": []}', b'{"choices": [{}]}', b"\xff"),
        b'{"choices": [{"message": {"content": 7}}]}',
        b"[" * 100_000,
        *(json.dumps(completion(text)).encode() for text in (None, "", " \n", "<think>so</think>")),
        json.dumps({"error": {"message": "loading"}}).encode(),
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_nonsense_is_no_answer(upstream: Upstream, model: OpenAiModel, body: bytes) -> None:
    upstream.will(stand_in.answers(body))
    assert not (await failure(model)).is_final
    with pytest.raises(ModelError):
        await pieces(model)


@pytest.mark.parametrize(
    ("status", "is_final"),
    [(302, True), (400, True), (401, True), (404, True), (429, False), (500, False), (503, False)],
)
async def test_a_refusal_says_whether_to_come_again(
    upstream: Upstream, model: OpenAiModel, status: int, is_final: bool
) -> None:
    upstream.will(stand_in.fails(status, Location=upstream.url))
    error = await failure(model)
    assert str(status) in str(error)
    assert error.is_final is is_final
    assert len(upstream.asked) == 1


async def test_a_server_that_wants_to_be_left_alone_is(
    upstream: Upstream, model: OpenAiModel
) -> None:
    for header, seconds in (("7", 7), ("soon", 0), ("-1", 0), ("", 0), ("٣", 0)):
        upstream.will(stand_in.fails(429, Retry_After=header))
        assert (await failure(model)).retry_after_seconds == seconds


async def test_a_server_that_refuses_schemas_is_told_from_one_that_refuses_all(
    upstream: Upstream, model: OpenAiModel
) -> None:
    upstream.will(stand_in.fails(400))
    refused = await failure(model, Question("m", "i", (Turn("user", "u"),), None, SCHEMA))
    assert refused.without_schema
    assert not refused.is_final


@pytest.mark.parametrize("stream_max_bytes", [100_000])
async def test_an_answer_that_is_too_large_is_refused(
    upstream: Upstream, model: OpenAiModel
) -> None:
    upstream.will(stand_in.never_ends)
    assert "too large" in str(await failure(model))
    with pytest.raises(ModelError, match="too large"):
        await pieces(model)


async def test_a_line_that_does_not_end_is_refused(upstream: Upstream, model: OpenAiModel) -> None:
    async def behave(request: object, question: object) -> object:
        return await stand_in.streaming(request, "m", [], b"data: " + b" " * 1_000_000)  # type: ignore[arg-type]

    upstream.will(behave)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="too large"):
        await pieces(model)


async def test_an_answer_comes_piece_by_piece(upstream: Upstream, model: OpenAiModel) -> None:
    await model.complete(QUESTION, 20)
    assert await pieces(model) == [
        ModelText(word, "small") for word in ("Hello ", "from ", "the ", "model.")
    ]
    assert [asked["stream"] for asked in upstream.asked] == [False, True]


async def test_a_server_that_does_not_stream_answers_at_once(
    upstream: Upstream, model: OpenAiModel
) -> None:
    upstream.will(stand_in.answers(json.dumps(completion("All of it.", "m")).encode()))
    assert await pieces(model) == [ModelText("All of it.", "m")]


async def test_a_stream_that_breaks_off_is_an_error(upstream: Upstream, model: OpenAiModel) -> None:
    await model.complete(QUESTION, 20)
    upstream.will(stand_in.breaks_off("Once ", "upon "))
    stream = model.stream(QUESTION, 20)
    assert [(await anext(stream)).text for _ in range(2)] == ["Once ", "upon "]
    with pytest.raises(ModelError):
        await anext(stream)


async def test_a_server_that_hangs_is_given_up(upstream: Upstream, model: OpenAiModel) -> None:
    upstream.will(stand_in.hangs)
    with pytest.raises(ModelError, match="in time"):
        await model.complete(QUESTION, 0.05)
    with pytest.raises(ModelError, match="in time"):
        await pieces(model, 0.05)


async def test_a_server_that_is_not_there_is_named_without_secrets(upstream: Upstream) -> None:
    for url in ("http://user:password@127.0.0.1:1/v1", "http://no such host/v1", "http://["):
        model = OpenAiModel(url, "sk-secret", max_tokens=1, connections=1)
        error = await failure(model)
        await model.close()
        assert "password" not in str(error)
        assert "sk-secret" not in str(error)


async def test_an_unread_stream_lets_go_of_its_connection(
    upstream: Upstream, model: OpenAiModel
) -> None:
    upstream.will(stand_in.never_ends)
    stream = model.stream(QUESTION, 20)
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(20):
        while upstream.now:
            await asyncio.sleep(0.01)


async def test_closing_an_unopened_stream_is_harmless() -> None:
    model = OpenAiModel("http://127.0.0.1:1/v1", "", max_tokens=1, connections=1)
    await model.close()
    await model.close()
