"""gVisor under podman: a kernel of its own for each job, which answers its calls in user space."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.executors.base.base import Finding
from proxyctl.worker.executors.bwrap import seccomp
from proxyctl.worker.executors.containers import engine
from proxyctl.worker.executors.containers.podman import Podman

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxyctl.worker.executors.containers.engine import Owner

# Its kernel, and the process that opens files for it, are threads of the job's control group:
# some 60 were counted, and a busy job's more.
_SPARE_PROCESSES: Final = 512
_NEEDED: Final = "runsc"


class Gvisor:
    """podman with gVisor's runtime.

    Args:
        platform: how it catches a job's calls: "systrap", "ptrace" or "kvm".
    """

    name = "gvisor"

    def __init__(self, platform: str = "ptrace") -> None:
        runtime = shutil.which(_NEEDED, path=engine.environment()["PATH"]) or _NEEDED
        # Without a network it is not to look for one; and the filter of calls also holds within.
        flags = (f"platform={platform}", "network=none", "oci-seccomp")
        self._podman = Podman(
            runtime, name=self.name, flags=flags, spare_processes=_SPARE_PROCESSES
        )

    def command(self) -> tuple[str, ...]:
        """Return podman with the runtime."""
        return self._podman.command()

    def environment(self) -> Mapping[str, str]:
        """Return podman's."""
        return self._podman.environment()

    def can_share_network(self) -> bool:
        """Return False."""
        # Its own kernel has a loopback, which no process outside can serve.
        return False

    def can_reach_ports(self) -> bool:
        """Return False, as above."""
        return False

    def options(self, *, shows_devices: bool, has_network: bool = False) -> tuple[str, ...]:
        """Return podman's."""
        return self._podman.options(shows_devices=shows_devices, has_network=has_network)

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

    def owner(self) -> Owner:
        """Return podman's."""
        return self._podman.owner()

    def spare_processes(self) -> int:
        """Return the number of processes that gVisor's kernel needs."""
        return self._podman.spare_processes()

    def end_in_runtime(self, container: str) -> None:
        """See `Podman.end_in_runtime`."""
        self._podman.end_in_runtime(container)

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
        return findings + self._podman.needs()
