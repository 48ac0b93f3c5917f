"""A whole cluster as one device: executors of `proxyctl worker` for Slurm and for Kubernetes.

It is a distribution of its own, beside `proxyctl` of the same version, which finds it by its entry
points. It runs on Python 3.9 or later with the standard library alone.
"""

__version__ = "0.2.0.dev0"
