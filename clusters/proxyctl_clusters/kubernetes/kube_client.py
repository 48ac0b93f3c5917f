"""Runs at the agent's side: lets a pod begin, shows its output, and ends as its job ends.

The supervisor starts this as it would start the job itself, so that to the agent the two are one:
the output here is the job's log, and a signal to this process is for the job. It lives on when the
agent is killed.
"""

from __future__ import annotations

import http.client
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.worker.attempt.supervisor import write
from proxyctl.worker.base import names
from proxyctl_clusters.kubernetes import kube_objects as objects
from proxyctl_clusters.kubernetes.kube_api import KubeApi, KubeError, read_access
from proxyctl_clusters.kubernetes.kube_log import LogFollower
from proxyctl_clusters.kubernetes.kube_objects import End
from proxyctl_clusters.kubernetes.kubernetes import OVER_FILE, POD, ask_to_end

if TYPE_CHECKING:
    from types import FrameType

_ASK_SECONDS: Final = 2.0  # between two looks at a pod; the end of its log also rings
_SOON_SECONDS: Final = 0.2  # the same, of a pod that will begin or end soon
_START_SECONDS: Final = 60.0  # for a node to start a container whose image it has
_LAST_SECONDS: Final = 60.0  # for the rest of a log when its container has ended
_REMOVED: Final = "somebody has removed its pod from the cluster"
# For a node to end a pod that was removed by another program; a node that takes longer has no
# connection to the cluster.
_REMOVED_SECONDS: Final = 90.0


class Client:
    """Client of one pod, from the start order to its end.

    Args:
        exchange: the folder in which the pod looks for that word.
    """

    def __init__(self, exchange: Path) -> None:
        told = files.read(exchange / POD)
        assert told is not None  # noqa: S101 - the executor has written it before it launched this
        self._exchange = exchange
        self._uid = str(told["uid"])
        self._path = f"/api/v1/namespaces/{told['namespace']}/pods/{told['name']}"
        self._api = KubeApi(read_access(str(told["config"])))
        self._is_asked = False  # to end
        self._is_told = False  # so
        self._removed_at = 0.0  # monotonic; the first look that found it removed from outside
        # A signal also rings it, and its handler may take no lock.
        self._rung, self._bell = os.pipe()
        for each in (self._rung, self._bell):
            os.set_blocking(each, False)
        self._log = LogFollower(self._api, f"{self._path}/log", 1, self._ring)

    def run(self) -> int:
        """Return the job's status; end by SIGTERM if the job was ended without one."""
        signal.signal(signal.SIGTERM, self._ask)
        launch = files.read(self._exchange.parent / names.LAUNCH)
        if launch is None:
            return 1
        # This one pod may begin: another one that a cluster makes in its place must not.
        go = self._exchange / f"{objects.GO}{self._uid}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(go, flags, 0o644))
        end = self._follow(float(launch["grace_s"]))
        self._log.finish(_LAST_SECONDS)
        if end.words:
            os.write(2, f"{end.words}\n".encode())
        write(str(self._exchange / OVER_FILE), asdict(end))
        if end.status is None and self._is_asked:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        return 1 if end.status is None else end.status

    def _follow(self, grace_s: float) -> End:
        start_by = time.monotonic() + _START_SECONDS
        while True:
            if self._is_asked and not self._is_told:
                self._is_told = self._tell(grace_s)
            end, pod = self._look()
            if end is not None:
                return end
            if pod is not None and not self._log.has_begun:
                problem = objects.start_problem_of(pod)
                if problem is not None and time.monotonic() >= start_by:
                    return problem
                if objects.is_running(pod):
                    self._log.begin()
            is_soon = self._is_told or not self._log.has_begun
            self._pause(_SOON_SECONDS if is_soon else _ASK_SECONDS)

    def _look(self) -> tuple[End | None, dict[str, Any] | None]:
        """Return the end of the job, and its pod; neither while the server does not answer."""
        try:
            pod = self._api.get(self._path)
        except KubeError as error:
            if error.status != http.client.NOT_FOUND:
                return None, None
            pod = {"metadata": {}}
        if pod["metadata"].get("uid") != self._uid:
            return End(None, lost=_REMOVED), None
        end = objects.end_of(pod)
        if pod["metadata"].get("deletionTimestamp") and not self._is_told:
            return self._end_of_removed(end), pod
        return end, pod

    def _end_of_removed(self, end: End | None) -> End | None:
        """Return the end of a pod that was removed from outside: by a drained node, or a person."""
        if end is not None:
            is_whole = end.status == 0  # it had ended just before
            return end if is_whole else End(None, lost=f"{_REMOVED}, which has ended it")
        self._removed_at = self._removed_at or time.monotonic()
        if time.monotonic() - self._removed_at > _REMOVED_SECONDS:
            return End(None, lost=f"{_REMOVED}, and its node is not heard of")
        return None

    def _tell(self, grace_s: float) -> bool:
        """Ask the job to end; return False if the cluster does not answer."""
        try:
            ask_to_end(self._api, self._path, self._uid, grace_s)
        except KubeError:
            return False
        return True

    def _pause(self, seconds: float) -> None:
        select.select([self._rung], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._rung, 4096)

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it has rung often enough
            os.write(self._bell, b"\0")

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's
        self._is_asked = True
        self._ring()


def main(arguments: list[str]) -> None:
    """Follow one job to its end."""
    os.umask(0o077)
    sys.exit(Client(Path(arguments[0])).run())
