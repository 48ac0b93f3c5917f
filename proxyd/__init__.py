"""The process: a proxy that sells bandwidth by the byte, and the HTTP API of the marketplace."""

from proxyd.compiled import finder

__version__ = "0.2.0.dev0"  # pyproject.toml takes it from here

finder.install()  # before any module of the data path is imported
