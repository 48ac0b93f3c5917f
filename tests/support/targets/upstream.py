"""A stand-in for the model: a real HTTP server that speaks OpenAI's chat completions."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

VERDICT = {
    "is_real": True,
    "goodness_type": "giving",
    "confidence": 0.95,
    "addresses_you": False,
    "description": "Somebody hands a bag of food to a neighbour.",
}


class Upstream:
    """The requests, and the behaviours of the next answers: the last behaviour continues."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.behaviours: list[Behaviour] = [says("Hello from the model.")]
        self.now = 0
        self.most = 0
        self.connections: set[object] = set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one question."""
        self.headers.append(dict(request.headers))
        self.connections.add(request.transport)
        question = await request.json()
        self.asked.append(question)
        behaviour = self.behaviours[0]
        if len(self.behaviours) > 1:
            self.behaviours.pop(0)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await behaviour(request, question)
        finally:
            self.now -= 1

    def will(self, *behaviours: Behaviour) -> None:
        """Set the behaviour for later requests."""
        self.behaviours = list(behaviours)


def completion(text: str | None, model: str = "stand-in") -> dict[str, Any]:
    """Return an answer as such servers write it."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "1", "object": "chat.completion", "model": model, "choices": [choice]}


def says(text: str) -> Behaviour:
    """Answer with a text, word by word where the request asks for a stream."""

    async def behave(request: web.Request, question: dict[str, Any]) -> web.StreamResponse:
        if not question.get("stream"):
            return web.json_response(completion(text, question["model"]))
        words = [word + " " for word in text.split(" ")]
        words[-1] = words[-1].rstrip(" ")
        return await streaming(request, question["model"], words, b"data: [DONE]\n\n")

    return behave


def judges(**changes: Any) -> Behaviour:
    """Answer with a verdict."""
    return says(json.dumps({**VERDICT, **changes}))


def fails(status: int, **headers: str) -> Behaviour:
    """Refuse."""

    async def behave(request: web.Request, question: dict[str, Any]) -> web.StreamResponse:
        answer = {"error": {"message": "no"}}
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(answer, status=status, headers=sent)

    return behave


def answers(body: bytes) -> Behaviour:
    """Answer with these bytes, in any form."""

    async def behave(request: web.Request, question: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return behave


async def hangs(request: web.Request, question: dict[str, Any]) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def hangs_up(request: web.Request, question: dict[str, Any]) -> web.StreamResponse:
    """Close the connection instead of answering."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def never_ends(request: web.Request, question: dict[str, Any]) -> web.StreamResponse:
    """Answer without end, by events or in one body."""
    response = web.StreamResponse()
    events = question.get("stream")
    response.content_type = "text/event-stream" if events else "application/json"
    await response.prepare(request)
    piece = _event("stand-in", "word ") if events else b" " * 10_000
    while True:
        await response.write(piece)
        await asyncio.sleep(0)


def breaks_off(*words: str) -> Behaviour:
    """Send the beginning of an answer, then close the connection."""

    async def behave(request: web.Request, question: dict[str, Any]) -> web.StreamResponse:
        response = await streaming(request, question["model"], words, b"")
        assert request.transport is not None
        request.transport.close()
        return response

    return behave


async def streaming(request: web.Request, model: str, words: Any, end: bytes) -> web.StreamResponse:
    """Send words as events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for word in words:
        await response.write(_event(model, word))
    await response.write(end)
    return response


def _event(model: str, text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    data = json.dumps({"object": "chat.completion.chunk", "model": model, "choices": [choice]})
    return f"data: {data}\n\n".encode()


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """Run a stand-in."""
    made = Upstream()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    made.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield made
    finally:
        await runner.cleanup()
