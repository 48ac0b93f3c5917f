"""The yardstick: an aiohttp handler that gives the answer that it was shown, and does nothing else.

It gives it to every request to one path, once its body has been read.
"""

import asyncio
import json
import sys
from pathlib import Path

import uvloop
from aiohttp import web


async def serve(port: int, path: str, answer: Path) -> None:
    headers, text = json.loads(answer.read_text())
    body = text.encode()

    async def respond(request: web.Request) -> web.Response:
        if request.body_exists:
            await request.read()
        return web.Response(body=body, headers=headers)

    app = web.Application()
    app.router.add_route("*", path, respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
