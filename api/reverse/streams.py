"""Streams into apps: bounded by app, ended when idle or no longer allowed, counted.

A stream is a request that a job answers, or a connection that has become a WebSocket.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from time import monotonic

COUNTED_MAX = 10_000  # apps whose bytes are remembered; the longest unused ones go first


class Traffic:
    """Traffic of an app since this daemon counts it, in bytes of bodies.

    `received` went to the job, `sent` came from it; `requests` were answered by it.
    """

    __slots__ = ("received", "requests", "sent")

    def __init__(self) -> None:
        self.requests = self.received = self.sent = 0


class Stream:
    """A stream into an app.

    Attributes:
        app_id: the app that its client was let in to.
        key_hash: the hash of the key that admitted the client.
        job_id: the job that it leads to.

    Args:
        end: ends it; called once at most.
    """

    __slots__ = ("_end", "_streams", "_totals", "app_id", "job_id", "key_hash", "moved_at")

    def __init__(
        self, streams: "Streams", app_id: str, key_hash: str, end: Callable[[], None]
    ) -> None:
        self.app_id = app_id
        self.key_hash = key_hash
        self.job_id = ""
        self.moved_at = monotonic()
        self._streams = streams
        self._totals = (streams.totals, streams.traffic(app_id))
        self._end = end

    def received(self, size: int) -> None:
        """Count bytes that have come from the client."""
        self.moved_at = monotonic()
        for each in self._totals:
            each.received += size

    def sent(self, size: int) -> None:
        """Count bytes that were sent to the client."""
        self.moved_at = monotonic()
        for each in self._totals:
            each.sent += size

    def reaches(self, job_id: str) -> None:
        """Note the job that now receives the request."""
        self._streams.move(self, job_id)

    def answered(self) -> None:
        """Count an answer of the job."""
        self.moved_at = monotonic()
        for each in self._totals:
            each.requests += 1

    def cut(self) -> None:
        """End it."""
        self._end()


class Streams:
    """All streams of a daemon.

    `refused` is how many requests reached no job, `ended` how many streams were ended from here.
    """

    def __init__(self, most_per_app: int) -> None:
        self.most_per_app = most_per_app
        self.totals = Traffic()
        self.refused = self.ended = 0
        self._of_app: dict[str, set[Stream]] = {}
        self._of_job: dict[str, int] = {}
        self._traffic: OrderedDict[str, Traffic] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(each) for each in self._of_app.values())

    def __iter__(self) -> Iterator[Stream]:
        return iter([stream for each in self._of_app.values() for stream in each])

    @property
    def apps(self) -> list[str]:
        """The apps that have streams."""
        return list(self._of_app)

    def of(self, app_id: str) -> int:
        """Return the number of streams of an app."""
        return len(self._of_app.get(app_id, ()))

    def of_job(self, job_id: str) -> int:
        """Return how many streams lead to a job, through all apps."""
        return self._of_job.get(job_id, 0)

    def has_room(self, app_id: str) -> bool:
        """Return whether an app may have one more."""
        return self.of(app_id) < self.most_per_app

    def take(self, stream: Stream) -> None:
        """Count a stream, until `give`."""
        self._of_app.setdefault(stream.app_id, set()).add(stream)

    def give(self, stream: Stream) -> None:
        """Stop counting a stream."""
        self.move(stream, "")
        theirs = self._of_app[stream.app_id]
        theirs.discard(stream)
        if not theirs:
            del self._of_app[stream.app_id]

    def move(self, stream: Stream, job_id: str) -> None:
        """Count a stream for another job; "" for none."""
        if stream.job_id:
            left = self._of_job[stream.job_id] - 1
            if left:
                self._of_job[stream.job_id] = left
            else:
                del self._of_job[stream.job_id]
        stream.job_id = job_id
        if job_id:
            self._of_job[job_id] = self._of_job.get(job_id, 0) + 1

    def traffic(self, app_id: str) -> Traffic:
        """Return the counts of an app."""
        traffic = self._traffic.get(app_id)
        if traffic is None:
            traffic = self._traffic[app_id] = Traffic()
        self._traffic.move_to_end(app_id)
        while len(self._traffic) > COUNTED_MAX:
            self._traffic.popitem(last=False)
        return traffic

    def end_app(self, app_id: str, but: str = "") -> int:
        """End the streams of an app, except those of a key with this hash. Return the count."""
        theirs = [each for each in self._of_app.get(app_id, ()) if each.key_hash != but]
        for stream in theirs:
            stream.cut()
        self.ended += len(theirs)
        return len(theirs)

    def end_idle(self, idle_seconds: float) -> int:
        """End streams in which nothing has moved for `idle_seconds`. Return the number ended."""
        since = monotonic() - idle_seconds
        idle = [each for each in self if each.moved_at < since]
        for stream in idle:
            stream.cut()
        self.ended += len(idle)
        return len(idle)
