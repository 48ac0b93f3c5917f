"""Calls of the files of logs in threads, so that the proxy does not wait for disks."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from storage.logs.files import LogFiles

THREADS = 4

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class LogDisk:
    """Calls methods of the files in threads of its own."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="logs")

    async def run(
        self,
        method: Callable[Concatenate[LogFiles, _Arguments], _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Call a method of the files in a thread; return its result, or raise its error."""
        loop = asyncio.get_running_loop()
        call = partial(method, self._files, *args, **kwargs)
        return await loop.run_in_executor(self._threads, call)

    def close(self) -> None:
        """Wait for the calls that are under way."""
        self._threads.shutdown()
