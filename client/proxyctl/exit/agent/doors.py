"""Addresses where the exit attaches: the agreed one, and those of the service's other nodes.

The attached daemon names the other nodes and their certificates. It is believed, because it has
proved itself by the certificate that the owner agreed to, or that such a daemon has told; so the
list outlives a restart, in a file that only the owner can read.

A certificate of the same daemon is renewed in the same way: while the one before is in use, the
daemon tells its own place with the next one. Both are good from then on, until the exit has
attached by the next one; after that the one before is good for nothing.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.protocol.frames import NODES_MAX, PORT_MAX, Node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HOST: Final = re.compile(r"[0-9A-Za-z.:_%-]{1,255}")  # a name or an address
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

_logger = logging.getLogger("exit")


class Doors:
    """The nodes where the exit may attach, and the next node to try.

    Args:
        home: where its owner agreed to; tried first after each start.
        path: of the file that keeps the others.
    """

    def __init__(self, home: Node, path: Path) -> None:
        self._agreed = home.certificate
        self._home = home
        self._path = path
        self._others: tuple[Node, ...] = ()
        self._load()
        self._turn = 0
        self._failures = 0  # since one of them answered
        self._ahead: tuple[Node, ...] = ()  # which ones follow, after one was left
        self._untried = 0  # of the others, since one was left in a hurry

    @property
    def current(self) -> Node:
        """Address of the present or next attachment."""
        return self._all[self._turn]

    @property
    def is_agreed(self) -> bool:
        """Whether its owner has named this place; all others a daemon has."""
        return self.current[:2] == self._home[:2]

    @property
    def has_others(self) -> bool:
        """Whether there is another node than the one where it is attached."""
        here = self.current
        return any(each[:2] != here[:2] for each in self._all)

    @property
    def is_exhausted(self) -> bool:
        """Whether every node was tried without success since the exit was attached last."""
        return self._failures % len(self._all) == 0

    @property
    def is_untried(self) -> bool:
        """Whether to try the present door without a pause: another one was left in a hurry."""
        return self._untried > 0

    def learn(self, nodes: Sequence[Node]) -> None:
        """Keep where else it may attach, as the daemon that it is attached to says."""
        here = self.current
        others = tuple(each for each in nodes if _is_sound(each))[:NODES_MAX]
        if here != self._home and here not in others:
            others = (here, *others)[:NODES_MAX]
        if others == self._others:
            return
        self._others = others
        known = self._all
        same = [each[:2] for each in known].index(here[:2])
        self._turn = known.index(here) if here in known else same
        self._save()

    def attached(self) -> None:
        """The present door has let the exit in."""
        self._failures = self._untried = 0
        self._ahead = ()
        here, home = self.current, self._home
        if here[:2] == home[:2] and here != home:
            _logger.info("the daemon is known by its next certificate from now on")
            self._home = here
            self._turn = 0
            self._save()

    def fail(self) -> None:
        """The present one does not answer, or does not let the exit in now: take the next one."""
        self._failures += 1
        self._untried = max(self._untried - 1, 0)
        known = self._all
        self._ahead = tuple(each for each in self._ahead if each in known)
        if self._ahead:
            self._turn = known.index(self._ahead[0])
            self._ahead = self._ahead[1:]
        else:
            self._turn = (self._turn + 1) % len(known)

    def leave(self, *, in_a_hurry: bool = True) -> None:
        """Move on from a node that stops or is lost: the others follow in the order of the daemon.

        Args:
            in_a_hurry: whether each of them is to be tried once without waiting for long.
        """
        here, known = self.current, self._all
        others = tuple(each for each in known if each[:2] != here[:2])
        if not others:
            return
        self._turn = known.index(others[0])
        self._ahead = (*others[1:], here)
        self._untried = len(others) if in_a_hurry else 0

    @property
    def _all(self) -> tuple[Node, ...]:
        home = self._home
        renewed = [each for each in self._others if each[:2] == home[:2] and each != home]
        places = {each[:2]: each for each in self._others if each[:2] != home[:2]}
        return (home, *renewed[:1], *places.values())

    def _load(self) -> None:
        try:
            fields: dict[str, Any] = files.read(self._path) or {}
            nodes = tuple(Node(*each) for each in fields.get("nodes", ()))
        except (files.FileError, TypeError):
            return  # the daemon tells them again
        self._others = tuple(each for each in nodes if _is_sound(each))[:NODES_MAX]
        home = self._home._replace(certificate=fields.get("certificate", ""))
        # It stands for the one that the owner agreed to: a new consent replaces it.
        if _is_sound(home):
            self._home = home

    def _save(self) -> None:
        fields: dict[str, Any] = {"nodes": [list(each) for each in self._others]}
        if self._home.certificate != self._agreed:
            fields["certificate"] = self._home.certificate
        try:
            files.write(self._path, fields)
        except files.FileError as error:  # it knows them all the same, until it is started anew
            _logger.warning("%s", error)


def _is_sound(node: Node) -> bool:
    """Return whether a node may be dialled; one without a certificate could be anybody."""
    return (
        isinstance(node.host, str)
        and isinstance(node.port, int)
        and isinstance(node.certificate, str)
        and _HOST.fullmatch(node.host) is not None
        and 0 < node.port <= PORT_MAX
        and _SHA256.fullmatch(node.certificate) is not None
    )
