"""The names of files in the agent's folder, and in the folder of an attempt."""

from __future__ import annotations

from typing import Final

from proxyctl.protocol.jobspec.checks import SCRIPT_NAME

# In the agent's folder.
CONSENT: Final = "worker.json"
CONTROL: Final = "worker-control.json"  # what its owner asks of a running agent
STATE: Final = "worker-state.json"  # what a running agent says of itself
PORTS: Final = "worker-ports.json"  # what has gone through ports of jobs today
AGENT: Final = "worker-agent.json"  # the name by which the daemon tells two agents apart
LOCK: Final = "worker.lock"
ATTEMPTS: Final = "attempts"
BELL: Final = "bell"  # a socket; supervisors tell the agent there that something has happened

# In the folder of an attempt.
ENTRY: Final = "entry.json"  # the journal's
LAUNCH: Final = "launch.json"  # what the supervisor is to start
BEGUN: Final = "begun.json"  # whoever makes this file has the attempt: its supervisor, or nobody
IMAGE: Final = "image.json"  # what it runs on, if that is an image
RUNNING: Final = "running.json"
ENDED: Final = "ended.json"
LOGS: Final = {"out": "out.log", "err": "err.log"}  # by the name of the stream
BALLAST: Final = "ballast"  # room on the disk, for the end of an attempt that has filled it
SUPERVISOR_LOG: Final = "supervisor.log"
SCRIPT: Final = SCRIPT_NAME  # in the folder of inputs
