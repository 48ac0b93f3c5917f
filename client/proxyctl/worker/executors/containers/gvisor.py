"""gVisor under podman: each job has its own kernel, which handles system calls in user space."""

from __future__ import annotations

import os
import shutil
from typing import Any, Final

from proxyctl.worker.executors.base.base import Finding
from proxyctl.worker.executors.bwrap import seccomp
from proxyctl.worker.executors.containers import engine
from proxyctl.worker.executors.containers.podman import Podman

# Its kernel, and the process that opens files for it, are threads of the job's control group:
# some 60 were counted, and a busy job's more.
_SPARE_PROCESSES: Final = 512
_NEEDED: Final = "runsc"


class Gvisor(Podman):
    """podman with gVisor's runtime."""

    def __init__(self) -> None:
        runtime = shutil.which(_NEEDED, path=engine.environment()["PATH"]) or _NEEDED
        # Its way to catch a job's calls. Without a network it is not to look for one; and the
        # filter of calls also holds within.
        flags = ("platform=ptrace", "network=none", "oci-seccomp")
        super().__init__(runtime, name="gvisor", flags=flags, spare_processes=_SPARE_PROCESSES)

    def can_share_network(self) -> bool:
        """Return False."""
        # Its own kernel has a loopback, which no process outside can serve.
        return False

    def can_reach_ports(self) -> bool:
        """Return False, as above."""
        return False

    def profile(self) -> dict[str, Any]:
        """Return the filter of system calls, for its own kernel."""
        profile = seccomp.engine_profile()
        # It has only one error for a refusal of a filter, and libraries would read that error as a
        # failure to make a thread. The call creates its thread only in the sandbox's own kernel.
        for rule in profile["syscalls"]:
            if rule["names"] == ["clone3"]:
                rule["action"] = "SCMP_ACT_ALLOW"
                del rule["errnoRet"]
        return profile

    def needs(self) -> list[Finding]:
        """Return its needs, without starting a container."""
        program = shutil.which(_NEEDED, path=engine.environment()["PATH"])
        findings = [
            Finding(
                id="gvisor-program",
                is_met=program is not None,
                actual=program or "there is no runsc",
                needed="gVisor's runsc",
                why="it is the kernel of the job",
                remedy="" if program else "sudo apt-get install runsc",
            ),
            Finding(
                id="gvisor-root",
                is_met=os.geteuid() == 0,
                actual="root" if os.geteuid() == 0 else "an ordinary user",
                needed="an agent that is root",
                why="podman starts gVisor for root alone",
                remedy="" if os.geteuid() == 0 else "use podman, or bubblewrap",
            ),
        ]
        if not all(each.is_met for each in findings):
            return findings
        return findings + super().needs()
