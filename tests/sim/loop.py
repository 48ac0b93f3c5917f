"""Virtual time: a world of processes, each with an event loop, stepped one callback at a time.

Inside a process the callbacks run in the order that asyncio gives them. Among processes that are
ready, a seeded draw decides. Each callback takes a microsecond, so that callbacks which poll the
clock come to an end.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from random import Random
from typing import Any

CALLBACK_SECONDS = 1e-6
# Less than a callback takes: sums of floating-point times differ by less.
CLOSE_SECONDS = 1e-8
LINES_KEPT = 200


class SimTask(asyncio.Task):
    """Task with a number as its hash, so that the order of a set is the same in each run."""

    count = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SimTask.count += 1
        self._number = SimTask.count
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class SimTimer(asyncio.TimerHandle):
    """Timer; of two timers with the same time, the one that was set first runs first."""

    count = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SimTimer.count += 1
        self.number = SimTimer.count
        super().__init__(*args, **kwargs)

    def __lt__(self, other: "SimTimer") -> bool:
        return (self._when, self.number) < (other._when, other.number)


def _task(loop: asyncio.AbstractEventLoop, work: Any, **kwargs: Any) -> SimTask:
    return SimTask(work, loop=loop, **kwargs)


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of a process.

    `is_frozen` while the process is stopped or its machine sleeps; `is_dead` once it was killed.
    `slept` are the seconds that its machine has slept: its clock stood still meanwhile.
    """

    def __init__(self, world: "World", name: str) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.slept = 0.0
        # Connects it with other processes; None where it never asks for that.
        self.lines: Any = None
        self.is_frozen = False
        self.is_dead = False
        self.set_task_factory(_task)
        self.set_exception_handler(self._failed)
        world.loops.append(self)

    def time(self) -> float:
        return self.world.now - self.slept

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """Fail: a thread would run in an order that the seed does not decide."""
        raise AssertionError("a thread calls")

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run the function immediately: virtual time has no threads."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    async def create_connection(
        self,
        factory: Any,
        host: Any = None,
        _port: Any = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        **_: Any,
    ) -> Any:
        """Open a line of `tests.sim.lines`."""
        return await self.lines.open(self, factory, host, sock, is_tls=ssl is not None)

    async def connect_accepted_socket(self, factory: Any, sock: Any, **_: Any) -> Any:
        """Take a line over."""
        return await self.lines.accept(factory, sock)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Open a line to a server of pages."""
        await self.lines.connect(self, sock, address[0])

    def wake(self) -> None:
        """Move the timers whose time has come to the ready callbacks."""
        scheduled, ready = self._scheduled, self._ready
        due = self.world.now - self.slept + CLOSE_SECONDS
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= due):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)

    def step(self) -> None:
        """Run one callback."""
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def kill(self) -> None:
        """Stop the loop for good; keep its objects, so that none of their destructors runs."""
        self.is_dead = True
        self.world.loops.remove(self)
        self.world.graves.append(self)
        self._ready = _Grave()
        self._scheduled.clear()

    def bury(self) -> None:
        """Close the tasks and the loop without warnings, at the end of the run."""
        self._ready = _Grave()
        asyncio._set_running_loop(self)
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False
            with suppress(Exception, BaseExceptionGroup):  # of code that runs when it is cut off
                task.get_coro().close()
        asyncio._set_running_loop(None)
        self._scheduled.clear()
        self.close()

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = SimTimer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        if self.world.current is not self:
            self.world.is_stirred = True
        return timer

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if self.world.current is not self:
            self.world.is_stirred = True
        return handle

    def _failed(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.fail(f"{self.name}: {context['message']}: {error!r}", error)


class _Grave(deque):
    """Queue of a dead process, which drops each callback."""

    def append(self, _: object) -> None:
        """Drop the callback."""


class World:
    """Time, the loops of all processes, and events outside them.

    Args:
        seed: decides the order among processes, and names all other draws.
        is_loud: whether each line is printed.
    """

    def __init__(self, seed: int, *, is_loud: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.loops: list[SimLoop] = []
        self.graves: list[SimLoop] = []
        self.callbacks = 0
        self.failures: list[str] = []
        self.error: BaseException | None = None
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._is_loud = is_loud
        self._digest = blake2b(digest_size=8)
        self._order = Random(f"{seed}:order").random
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self.current: SimLoop | None = None
        # Whether another loop than the running one got a callback.
        self.is_stirred = False
        self._next_at = 0.0

    def draw(self, *names: object) -> Random:
        """Return a random stream by its name; draws from other streams do not change it."""
        return Random(":".join(map(str, (self.seed, *names))))

    def numbers(self, *names: object) -> tuple[float, float, float, float]:
        """Return four numbers in [0, 1), decided by the seed and a name; faster than a stream."""
        key = ":".join(map(str, (self.seed, *names))).encode()
        digest = blake2b(key, digest_size=32).digest()
        a, b, c, d = (int.from_bytes(digest[i : i + 6]) / 2**48 for i in (0, 8, 16, 24))
        return a, b, c, d

    # --- lines -----------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Append a line to the trace; the digest of a run covers all lines."""
        line = f"{self.now:11.6f} {text}"
        self._digest.update(line.encode())
        self.lines.append(line)
        if self._is_loud:
            print(line)

    def fail(self, text: str, error: BaseException | None = None) -> None:
        """Record a failure, which ends the run."""
        self.say(f"FAILURE {text}")
        self.failures.append(text)
        if self.error is None:
            self.error = error

    @property
    def digest(self) -> str:
        """Hash of all lines so far, in sixteen hexadecimal digits."""
        return self._digest.hexdigest()

    # --- time ------------------------------------------------------------------------------------

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call outside all processes at a time."""
        self._numbers += 1
        when = max(when, self.now)
        self._next_at = min(self._next_at, when)
        heapq.heappush(self._events, (when, self._numbers, call, args))

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call outside all processes after some seconds."""
        self.at(self.now + seconds, call, *args)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run events and callbacks until a time, a failure, or until `done` returns True."""
        events = self._events
        while not self.failures and self.now < until and not done():
            while events and events[0][0] <= self.now:
                _, _, call, args = heapq.heappop(events)
                call(*args)
            ready, soonest = self._look(min(until, events[0][0]) if events else until)
            if not ready:
                self.now = max(self.now, soonest)
            elif len(ready) == 1:
                self._run_alone(ready[0], soonest)
            else:
                self._run_one(ready[int(self._order() * len(ready))])

    def _look(self, soonest: float) -> tuple[list[SimLoop], float]:
        """Return the loops that are ready, and the time of the next timer of the others, `soonest`
        at most.
        """
        ready = []
        due = self.now + CLOSE_SECONDS
        for loop in self.loops:
            if loop.is_frozen:
                continue
            scheduled = loop._scheduled
            when = soonest
            if scheduled:
                when = scheduled[0]._when + loop.slept
                if when <= due or scheduled[0]._cancelled:
                    loop.wake()
                    when = scheduled[0]._when + loop.slept if scheduled else soonest
            if loop._ready:
                ready.append(loop)
            elif when < soonest:
                soonest = when
        return ready, soonest

    def _run_one(self, loop: SimLoop) -> None:
        self.current = loop
        loop.step()
        self.current = None
        self.now += CALLBACK_SECONDS
        self.callbacks += 1

    def _run_alone(self, loop: SimLoop, until: float) -> None:
        """Run a loop as long as no other loop can be ready, without checking the others."""
        self.is_stirred = False
        self._next_at = until
        while not (self.is_stirred or self.failures or loop.is_dead or loop.is_frozen):
            self._run_one(loop)
            if self.now >= self._next_at:
                break
            scheduled = loop._scheduled
            if scheduled and scheduled[0]._when + loop.slept <= self.now:
                loop.wake()
            if not loop._ready:
                break

    def end(self) -> None:
        """Close all loops."""
        for loop in (*self.loops, *self.graves):
            loop.bury()
