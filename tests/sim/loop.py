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
from contextvars import Context, copy_context
from hashlib import blake2b
from math import inf
from random import Random
from struct import Struct
from typing import Any
from weakref import WeakSet

CALLBACK_SECONDS = 1e-6
# Less than a callback takes: sums of floating-point times differ by less.
CLOSE_SECONDS = 1e-8
LINES_KEPT = 200
_FOUR = Struct(">4Q")
_SHARE = 2.0**-48

# An event: its time, number, call and arguments; no call once it is cancelled.
Event = list[Any]
# A timer: its time, number, loop and handle.
Timer = tuple[Any, ...]


class SimTask(asyncio.Task):
    """Task with a number as its hash, so that the order of a set is the same in each run."""

    count = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SimTask.count += 1
        self._number = SimTask.count
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class SimHandle(asyncio.Handle):
    """Callback of a loop, with only what the simulation needs."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._callback: Callable[..., Any] | None = callback
        self._args: tuple[Any, ...] | None = args
        self._context: Context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        """See `asyncio.Handle.cancel`."""
        self._cancelled = True
        self._callback = self._args = None


class SimTimer(SimHandle):
    """Callback at a time of its loop."""

    __slots__ = ("_when",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        # As `SimHandle` does, without a call: a run makes thousands of timers.
        self._when = when
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def when(self) -> float:
        """See `asyncio.TimerHandle.when`."""
        return self._when


def _task(loop: "SimLoop", work: Any, **kwargs: Any) -> SimTask:
    task = SimTask(work, loop=loop, **kwargs)
    loop.tasks.add(task)
    return task


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
        # Without them `bury` would look through the tasks of all loops.
        self.tasks: WeakSet[SimTask] = WeakSet()
        # Its timers while it is frozen; `World.timers` has them otherwise.
        self._frozen: list[Timer] = []
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

    def freeze(self) -> None:
        """Stop the callbacks for a while, with the clock still running."""
        self.is_frozen = True
        self.world.is_stirred = True
        timers = self.world.timers
        self._frozen = [each for each in timers if each[2] is self]
        timers[:] = [each for each in timers if each[2] is not self]
        heapq.heapify(timers)

    def thaw(self, slept: float) -> None:
        """Let the callbacks go on; the clock stood still for the seconds that the machine slept."""
        self.is_frozen = False
        self.world.is_stirred = True
        self.slept += slept
        for when, number, loop, timer in self._frozen:
            heapq.heappush(self.world.timers, (when + slept, number, loop, timer))
        self._frozen = []

    def kill(self) -> None:
        """Stop the loop for good; keep its objects, so that none of their destructors runs."""
        self.is_dead = True
        self.world.is_stirred = True
        self.world.loops.remove(self)
        self.world.graves.append(self)
        self._ready = _Grave()

    def bury(self) -> None:
        """Close the tasks and the loop without warnings, at the end of the run."""
        self._ready = _Grave()
        asyncio._set_running_loop(self)
        for task in sorted((each for each in self.tasks if not each.done()), key=hash):
            task._log_destroy_pending = False
            with suppress(Exception, BaseExceptionGroup):  # of code that runs when it is cut off
                task.get_coro().close()
        asyncio._set_running_loop(None)
        self.close()

    def get_debug(self) -> bool:
        return False

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> SimTimer:
        return self._set(self.world.now - self.slept + delay, callback, args, context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> SimTimer:
        return self._set(when, callback, args, context)

    def _set(self, when: float, callback: Any, args: tuple[Any, ...], context: Any) -> SimTimer:
        world = self.world
        world.numbered += 1
        timer = SimTimer(when, callback, args, context)
        # Of two timers with the same time, the one that was set first runs first.
        entry = (when + self.slept, world.numbered, self, timer)
        if self.is_frozen:
            self._frozen.append(entry)
        else:
            heapq.heappush(world.timers, entry)
        return timer

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> SimHandle:
        handle = SimHandle(callback, args, context)
        self._ready.append(handle)
        world = self.world
        if world.current is not self:
            world.is_stirred = True
        return handle

    def broke(self, handle: SimHandle, error: BaseException) -> None:
        """Fail: a callback has raised an exception."""
        self._failed(self, {"message": f"exception in {handle._callback!r}", "exception": error})

    def _failed(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.fail(f"{self.name}: {context['message']}: {error!r}", error)


class _Grave(deque):
    """Queue of a dead process, which drops each callback."""

    def append(self, _: object) -> None:
        """Drop the callback."""


def _nothing() -> None:
    """Do nothing: an event at which the world looks around."""


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
        # Both are heaps; the last entries are never reached.
        self._events: list[Event] = [[inf, 0, _nothing, ()]]
        self.timers: list[Timer] = [(inf, 0, None, None)]
        self.numbered = 0
        self.current: SimLoop | None = None
        # Whether a loop other than the running one got a callback, or a loop stops.
        self.is_stirred = False
        self.is_over = False

    def draw(self, *names: object) -> Random:
        """Return a random stream by its name; draws from other streams do not change it."""
        return Random(":".join(map(str, (self.seed, *names))))

    def numbers(self, *names: object) -> tuple[float, float, float, float]:
        """Return four numbers in [0, 1), decided by the seed and a name; faster than a stream."""
        return self.numbers_of(self.name_of(*names))

    def name_of(self, *names: object) -> str:
        """Return the name of a draw, for `numbers_of`."""
        return ":".join([str(self.seed), *map(str, names)])

    @staticmethod
    def numbers_of(name: str) -> tuple[float, float, float, float]:
        """Return the four numbers of a name of `name_of`."""
        a, b, c, d = _FOUR.unpack(blake2b(name.encode(), digest_size=32).digest())
        return (a >> 16) * _SHARE, (b >> 16) * _SHARE, (c >> 16) * _SHARE, (d >> 16) * _SHARE

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
        self.is_stirred = True
        if self.error is None:
            self.error = error

    @property
    def digest(self) -> str:
        """Hash of all lines so far, in sixteen hexadecimal digits."""
        return self._digest.hexdigest()

    # --- time ------------------------------------------------------------------------------------

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> Event:
        """Schedule a call outside all processes at a time; return the event, for `cancel`."""
        self.numbered += 1
        event: Event = [max(self.now, when), self.numbered, call, args]
        heapq.heappush(self._events, event)
        return event

    def after(self, seconds: float, call: Callable[..., Any], *args: Any) -> Event:
        """Schedule a call outside all processes after some seconds."""
        return self.at(self.now + seconds, call, *args)

    def cancel(self, event: Event) -> None:
        """Drop an event."""
        event[2], event[3] = None, ()

    def stop(self) -> None:
        """End `run`."""
        self.is_over = self.is_stirred = True

    def run(self, until: float) -> None:
        """Run events and callbacks until a time, a failure, or a call of `stop`."""
        self.at(until, _nothing)
        events, timers, order = self._events, self.timers, self._order
        failures = self.failures
        self.is_stirred = True
        while not (failures or self.is_over) and self.now < until:
            if events[0][0] <= self.now:
                self._strike()
            if timers[0][0] <= self.now + CLOSE_SECONDS:
                self._ring()
            if not self.is_stirred:  # no loop has got a callback since none was ready
                self._wait()
                continue
            ready = [each for each in self.loops if each._ready and not each.is_frozen]
            if not ready:
                self.is_stirred = False
                self._wait()
            elif len(ready) == 1:
                self._run_callbacks(ready[0])
            else:
                self._run_callback(ready[int(order() * len(ready))])

    def _strike(self) -> None:
        """Run the events that are due."""
        events, now, pop = self._events, self.now, heapq.heappop
        while events[0][0] <= now:
            _, _, call, args = pop(events)
            if call is not None:
                call(*args)

    def _ring(self) -> None:
        """Give their loops the timers that are due."""
        timers, due, pop = self.timers, self.now + CLOSE_SECONDS, heapq.heappop
        while timers[0][0] <= due:
            _, _, loop, timer = pop(timers)
            if not timer._cancelled:
                loop._ready.append(timer)
                self.is_stirred = True

    def _wait(self) -> None:
        """Let time pass until the next timer or event: no loop is ready."""
        events, timers, pop = self._events, self.timers, heapq.heappop
        while timers[0][3] is not None and timers[0][3]._cancelled:
            pop(timers)
        while events[0][2] is None:
            pop(events)
        at, rings_at = events[0][0], timers[0][0]
        if rings_at < at:
            at = rings_at
        if at > self.now:
            self.now = at

    def _run_callbacks(self, loop: SimLoop) -> None:
        """Run callbacks of a loop until another loop, an event or a timer can be next."""
        events, timers, queue = self._events, self.timers, loop._ready
        take, now, count = queue.popleft, self.now, 0
        self.is_stirred = False
        self.current = loop
        asyncio._set_running_loop(loop)
        try:
            while True:
                handle = take()
                count += 1
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        loop.broke(handle, error)
                self.now = now = now + CALLBACK_SECONDS
                if self.is_stirred or not queue or events[0][0] <= now or timers[0][0] <= now:
                    break
        finally:
            asyncio._set_running_loop(None)
            self.current = None
            self.callbacks += count
        if queue:
            self.is_stirred = True

    def _run_callback(self, loop: SimLoop) -> None:
        """Run a callback of a loop; others are ready too."""
        self.is_stirred = True
        self.current = loop
        asyncio._set_running_loop(loop)
        try:
            handle = loop._ready.popleft()
            if not handle._cancelled:
                handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            loop.broke(handle, error)
        finally:
            asyncio._set_running_loop(None)
            self.current = None
            self.now += CALLBACK_SECONDS
            self.callbacks += 1

    def end(self) -> None:
        """Close all loops."""
        self.is_over = True
        for loop in (*self.loops, *self.graves):
            loop.bury()
