"""The yardstick of uploads: an aiohttp handler that appends each body to one file, and no more."""

import asyncio
import sys
from pathlib import Path

import uvloop
from aiohttp import web

LIMIT_BYTES = 8 * 1024 * 1024  # then the file is begun anew: its size stays that of a log


async def serve(port: int, path: str) -> None:
    with Path(path).open("wb", buffering=0) as file:

        async def respond(request: web.Request) -> web.Response:
            if file.tell() > LIMIT_BYTES:
                file.seek(0)
            while piece := await request.content.readany():
                file.write(piece)
            return web.json_response({"ok": True})

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", respond)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
