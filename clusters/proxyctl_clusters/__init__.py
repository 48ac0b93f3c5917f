"""A whole cluster as one device: executors of `proxyctl worker` for Slurm and for Kubernetes.

It is a distribution of its own, beside `proxyctl` of the same version, which finds it by its entry
points. It needs only the standard library of Python 3.9 or later.
"""

__version__ = "0.2.0.dev0"
