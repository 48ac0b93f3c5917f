"""Check that the machine has a core for each process of `proxy.processes`."""

import os


def too_few_cores(processes: int) -> str:
    """Return a warning if more processes are wanted than there are cores; "" if not.

    One process needs no warning: it is the usual number.
    """
    cores = len(os.sched_getaffinity(0))
    if processes == 1 or processes <= cores:
        return ""
    return (
        f"proxy.processes is {processes}, and this daemon may use {cores} of the machine's cores: "
        "more processes than cores cost memory and gain nothing"
    )
