"""The names of files in the agent's folder, and in the folder of an attempt."""

from __future__ import annotations

from typing import Final

from proxyctl.protocol.jobspec.checks import SCRIPT_NAME

# In the agent's folder.
CONSENT: Final = "worker.json"
CONTROL: Final = "worker-control.json"  # the owner's requests to a running agent
STATE: Final = "worker-state.json"  # the state of a running agent
PORTS: Final = "worker-ports.json"  # the bytes through ports of jobs today
AGENT: Final = "worker-agent.json"  # the name of the agent; the daemon distinguishes agents by it
LOCK: Final = "worker.lock"
ATTEMPTS: Final = "attempts"
READY: Final = "ready"  # the sandbox that waits for an attempt
BELL: Final = "bell"  # a socket; supervisors tell the agent there that something has happened
OF_LOG: Final = "+"  # behind the name of an attempt at the bell: only its logs have changed

# In the folder of a sandbox that waits.
MADE: Final = "made"  # it is whole, and its folders may be moved

# In the folder of an attempt.
ENTRY: Final = "entry.json"  # of the journal
LAUNCH: Final = "launch.json"  # the launch for the supervisor
BEGUN: Final = "begun.json"  # its maker has the attempt: a supervisor, or an agent that starts none
IMAGE: Final = "image.json"  # the image that it runs on, if it has one
RUNNING: Final = "running.json"
ENDED: Final = "ended.json"
LOGS: Final = {"out": "out.log", "err": "err.log"}  # by the name of the stream
BALLAST: Final = "ballast"  # room on the disk, for the end of an attempt that has filled it
SUPERVISOR_LOG: Final = "supervisor.log"
SCRIPT: Final = SCRIPT_NAME  # in the folder of inputs
