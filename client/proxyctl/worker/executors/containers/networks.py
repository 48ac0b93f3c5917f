"""The networks of jobs in containers: each is of a container that does nothing else.

A job shares the network of such a container. So the network is there before the job is, and its way
out is served when the job starts.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from proxyctl.worker.executors.base.base import Task, TaskError
from proxyctl.worker.executors.base.gate import make_gate, open_gate
from proxyctl.worker.executors.containers import trial
from proxyctl.worker.executors.containers.engine import Engine, EngineError, call, remove
from proxyctl.worker.executors.containers.naming import network_name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxyctl.worker.executors.bwrap.egress import Egress
    from proxyctl.worker.executors.containers.creation import Creation


class Networks:
    """Gives the jobs of one engine their networks.

    Args:
        network: serves the way out of jobs; None if the owner does not want that.
    """

    def __init__(self, engine: Engine, creation: Creation, network: Egress | None) -> None:
        self._engine = engine
        self._creation = creation
        self._network = network

    def create(self, task: Task) -> Mapping[str, str] | None:
        """Start the container with the network of an attempt, if its job wants a network.

        Returns:
            the variables of the way out; None if the job wants no network.

        Raises:
            TaskError: the job can have no network here.
        """
        if task.network == "none":
            return None
        network = self._wanted()
        name = network_name_of(task.attempt_id)
        try:
            trial.add_image(self._engine)
            self._creation.create_idle(name, trial.BOUNDS)
            call(self._engine, "start", name)
        except EngineError as error:
            raise TaskError("host", str(error)) from None
        make_gate(task.folder)
        return network.env()

    def refuse_if_unable(self, task: Task) -> None:
        """Refuse a job that wants a network, if this device gives none.

        Raises:
            TaskError: in that case.
        """
        if task.network == "none":
            return
        self._wanted()
        if not self._engine.can_share_network():
            raise self._refusal()

    def open(self, task: Task) -> None:
        """Serve the way out of a job, and let the job begin.

        Raises:
            TaskError: the network is not there.
        """
        if task.network == "none":
            return
        network = self._wanted()
        name = network_name_of(task.attempt_id)
        try:
            text = call(self._engine, "inspect", "--format", "{{.State.Pid}}", name)
        except EngineError as error:
            raise TaskError("host", str(error)) from None
        network.open(task.attempt_id, int(text))
        open_gate(task.folder)

    def close(self, attempt_id: str) -> None:
        """End the network of an attempt, if it has one."""
        if self._network is None:
            return
        self._network.close(attempt_id)
        with suppress(EngineError):  # most jobs have none; a container left over runs no job
            remove(self._engine, network_name_of(attempt_id))

    def _wanted(self) -> Egress:
        if self._network is None:
            raise self._refusal()
        return self._network

    def _refusal(self) -> TaskError:
        return TaskError("refused", f"this device gives jobs in {self._engine.name} no network")
