"""The settings of a cluster, by its owner."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base.plugins import Setting
from proxyctl.worker.base.record import matching, texts

if TYPE_CHECKING:
    from proxyctl.worker.base.record import Sandbox

_PREFIX: Final = "kube_"  # of the names in the record, and of the options
# Kubernetes' form of most names; an empty name is left out.
_NAME: Final = r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?"
_LABEL: Final = re.compile(
    r"([a-z0-9.-]{1,200}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
    r"=([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
)
SETTINGS: Final = (
    Setting(
        "kube_config",
        matching(r"(/.*)?", "must be a whole path, like /home/ada/kube.json"),
        "path of a kubeconfig in JSON; without one, the pod's own",
    ),
    Setting(
        "kube_namespace",
        matching(_NAME, "must be the name of a namespace"),
        "where jobs run in the cluster",
    ),
    Setting(
        "kube_claim",
        matching(
            r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?:/.*)?",
            "must be the name of a claim and where it is here, like proxyd:/shared",
        ),
        "claim of the agent's folder, like proxyd:/where/it/is/here",
    ),
    Setting(
        "kube_image",
        matching(r"([A-Za-z0-9][A-Za-z0-9._/:@-]{0,499})?", "must be the name of an image"),
        "that scripts run on, with python3 and bash",
    ),
    Setting(
        "kube_nodes",
        texts(_LABEL.fullmatch, "must be a list of labels of nodes like pool=strangers"),
        "label of nodes for jobs, like pool=strangers; may be repeated",
        is_list=True,
    ),
    Setting(
        "kube_runtime",
        matching(_NAME, "must be the name of a class of runtimes"),
        "class of runtimes for jobs, like gvisor",
    ),
)


@dataclass(frozen=True)
class Settings:
    """A cluster, as its owner names it.

    Attributes:
        config: path of the file, in JSON, that says where the cluster is; "" in a pod of it.
        namespace: where jobs run; "" for the one that the file names.
        claim: name of the volume that has this agent's folder, and where it is here, like
            `proxyd:/shared`.
        image: that scripts run on; it has python3 and bash.
        nodes: labels that a node must have to be given jobs, like `pool=strangers`.
        runtime: class of runtimes for jobs, like `gvisor`; "" for the cluster's own.
    """

    config: str = ""
    namespace: str = ""
    claim: str = ""
    image: str = ""
    nodes: tuple[str, ...] = ()
    runtime: str = ""


def settings_of(sandbox: Sandbox) -> Settings:
    """Return the settings of a cluster in the record of an owner."""
    named = {each.name: each.name[len(_PREFIX) :] for each in SETTINGS}
    said = sandbox.settings.items()
    return Settings(**{named[name]: value for name, value in said if name in named})
