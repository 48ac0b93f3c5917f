"""The program for the people and the devices of a proxyd marketplace.

It is a distribution of its own, imports nothing of the daemon, and needs only the standard library
of Python 3.9 or later. The daemon imports `proxyctl.protocol` of it, and nothing else.
"""

__version__ = "0.2.0.dev0"
