"""Executors that another distribution brings: found by its entry points, and loaded on demand.

A distribution registers each executor under its name in the group `proxyctl.executors`; the entry
point leads to a `Plugin`. ARCHITECTURE.md lists the names that a plug-in may import.

Loading runs the code of the distribution. So an executor comes only from the distribution of this
project, in the version of this program; other distributions are ignored.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from proxyctl import __version__
from proxyctl.status import InVainError

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from proxyctl.worker.base.record import Sandbox
    from proxyctl.worker.executors.base.base import Executor

GROUP: Final = "proxyctl.executors"
# The executors that the marketplace knows and this program does not have, in the order in which
# they are tried, and the distribution that brings each of them.
DISTRIBUTIONS: Final = {"slurm": "proxyctl-clusters", "kubernetes": "proxyctl-clusters"}


class PluginError(InVainError):
    """A plug-in cannot be used here; the message names the package to install.

    Args:
        name: of the executor.
        words: the state of its distribution here.
    """

    def __init__(self, name: str, words: str) -> None:
        distribution = DISTRIBUTIONS[name]
        super().__init__(
            f"the executor {name} is a part of {distribution}, {words};"
            f" install {distribution} {__version__} beside proxyctl,"
            f" or run {distribution}.pyz of that version in its place"
        )


@dataclass(frozen=True)
class Setting:
    """A setting of a cluster: an option of `setup`, and a field of the record's sandbox.

    Attributes:
        name: in the record, like `kube_image`; the option is `--kube-image` then.
        check: returns a value as it is kept; raises `ValueError` for one that cannot be. An empty
            one is not kept.
        words: for the list of options.
        is_list: of texts; the option may be repeated.
    """

    name: str
    check: Callable[[object], Any]
    words: str
    is_list: bool = False


@dataclass(frozen=True)
class Plugin:
    """An executor for a whole cluster, which is one device.

    Attributes:
        made_for: the version of proxyctl that the plug-in was made for.
        make: returns the executor, given the agent's folder and its owner's wishes.
        capacity: returns the cores and the bytes of memory of all nodes together, given the same;
            raises `TaskError` where that is not known.
        runs_images: runs a job with an image, and a job without one; else only jobs without one.
        has_private_folder: refuses an agent's folder that other users of the machine can write to.
        settings: of only this executor.
    """

    made_for: str
    make: Callable[[Path, Sandbox], Executor]
    capacity: Callable[[Path, Sandbox], tuple[int, int]]
    runs_images: bool
    has_private_folder: bool
    settings: tuple[Setting, ...] = ()


@cache
def find(name: str) -> Plugin:
    """Return the plug-in for an executor.

    Args:
        name: one of `DISTRIBUTIONS`.

    Raises:
        PluginError: it is not installed, not for this version, or broken.
    """
    try:
        point = _entry_point(name)
        found = point.load()
    except PluginError:
        raise
    except Exception as error:  # noqa: BLE001 - the import of another distribution raises anything
        raise PluginError(name, f"which cannot be loaded ({error})") from None
    if not isinstance(found, Plugin):
        raise PluginError(name, f"whose entry point {point.value} is no plug-in")
    if found.made_for != __version__:
        raise PluginError(name, _other_version(found.made_for))
    return found


def problem(executor: object) -> str:
    """Return why an executor's plug-in cannot be used; empty if it can, or if it needs none."""
    if not isinstance(executor, str) or executor not in DISTRIBUTIONS:
        return ""
    try:
        find(executor)
    except PluginError as error:
        return str(error)
    return ""


def settings() -> dict[str, Setting]:
    """Return the settings of all plug-ins that can be used here, by name."""
    known = {}
    for name in DISTRIBUTIONS:
        with suppress(PluginError):
            known.update({each.name: each for each in find(name).settings})
    return known


def needs_private_folder(executor: str) -> bool:
    """Return whether no other user of the machine may write to the agent's folder.

    Raises:
        PluginError: as `find`.
    """
    return executor not in DISTRIBUTIONS or find(executor).has_private_folder


def _entry_point(name: str) -> EntryPoint:
    """Return the entry point of an executor in its distribution, and in no other one."""
    from importlib import metadata  # noqa: PLC0415 - a device that is no cluster is spared this

    for each in metadata.distributions(name=DISTRIBUTIONS[name]):
        for point in each.entry_points:
            if (point.group, point.name) == (GROUP, name):
                if each.version != __version__:  # a plug-in of that version may not even import
                    raise PluginError(name, _other_version(each.version))
                return point
    raise PluginError(name, "which is not installed here")


def _other_version(version: str) -> str:
    return f"which is here for proxyctl {version}, and this is {__version__}"
