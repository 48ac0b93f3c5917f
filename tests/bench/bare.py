"""The yardstick: an aiohttp handler that answers so many constant bytes and does nothing else."""

import asyncio
import sys

import uvloop
from aiohttp import web


async def serve(port: int, size: int) -> None:
    body = b"x" * size

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
