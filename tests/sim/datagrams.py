"""Clients that use a session otherwise than by streams: datagrams, and wrong passwords.

`Datagrams` stands for an association of `proxyd.relay.udp`: its calls of the session are the same.
"""

from dataclasses import replace
from random import Random

from tests.sim.clients import ClientPlan
from tests.sim.relays import Relay

SHARE = 0.25
DATAGRAM_MOST = 1_400
LARGE_MOST = 60_000


def otherwise(draw: Random, clients: list[ClientPlan]) -> list[ClientPlan]:
    """Let some clients get datagrams, or send a wrong password; in most runs none."""
    if draw.random() > SHARE:
        return clients
    changed = []
    for each in clients:
        kind = draw.random()
        most = LARGE_MOST if draw.random() < 0.2 else DATAGRAM_MOST
        if kind < 0.3:
            chunk = 1 + int(most * draw.random())
            changed.append(replace(each, is_datagrams=True, chunk=chunk, rests=0.1 + each.rests))
        elif kind < 0.4:
            changed.append(replace(each, is_wrong=True, rests=0.5 + each.rests))
        else:
            changed.append(each)
    return changed


class Datagrams(Relay):
    """Datagrams from a target to a client: each goes as a whole, or is dropped."""

    def _turn(self) -> None:
        self._timer = None
        if self.is_closed:
            return
        size = min(self.plan.chunk, self._left) or 1
        payer, session = self.payer, self.session
        is_allowed = payer is session or payer.allowance(self) > 0
        if is_allowed and session.affords(size, self):
            self._books.takes(self)
            session.take(size, self)
            self._delivered += size
            self._left -= size
            self._moved_at = self.life.loop.time()
            self._books.hands(self, size)
            payer.deliver(size)
        if self.is_closed:
            return
        if self._left <= 0:
            if self._release():
                self._closed("complete")
            return
        self._later(self.plan.pause or 1e-3)
