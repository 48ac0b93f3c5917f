"""The plug-ins that this distribution registers by its entry points."""

from __future__ import annotations

from typing import Final

from proxyctl.worker.base.plugins import Plugin
from proxyctl_clusters import __version__
from proxyctl_clusters.kubernetes import kubernetes
from proxyctl_clusters.kubernetes.kube_settings import SETTINGS, settings_of
from proxyctl_clusters.kubernetes.kubernetes import Kubernetes
from proxyctl_clusters.slurm import slurm
from proxyctl_clusters.slurm.slurm import Slurm

SLURM: Final = Plugin(
    made_for=__version__,
    make=lambda folder, sandbox: Slurm(folder, limits=sandbox.limits),
    capacity=lambda _, __: slurm.capacity(),
    runs_images=False,
    has_private_folder=True,
)
KUBERNETES: Final = Plugin(
    made_for=__version__,
    make=lambda folder, sandbox: Kubernetes(folder, settings_of(sandbox)),
    capacity=lambda folder, sandbox: kubernetes.capacity(folder, settings_of(sandbox)),
    runs_images=True,
    has_private_folder=False,  # on a volume of a cluster there are no such users
    settings=SETTINGS,
)
