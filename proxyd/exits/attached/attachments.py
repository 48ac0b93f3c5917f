"""The life of each exit on this node: its attachment, changes of its offer, and its end."""

import logging
from typing import Final, Protocol, final

from market.exits.consents import ExitGrant
from proxyctl.protocol.frames import FrameError, Hello, encode
from proxyd.counters import ExitCounters
from proxyd.exits.attached.admission import Admission, limits_of
from proxyd.exits.attached.attached import HARMLESS, Attached
from proxyd.exits.attached.control import (
    AGAIN_SECONDS,
    SOON_SECONDS,
    Control,
)
from proxyd.exits.attached.detached import Detached
from proxyd.exits.attached.heartbeats import Heartbeats
from proxyd.exits.attached.loaner import Loaner
from proxyd.exits.attached.neighbours import Neighbours
from proxyd.exits.attached.notices import Notices
from proxyd.exits.attached.offers import Offers
from proxyd.exits.attached.origins import Origins
from proxyd.exits.attached.roster import Roster
from proxyd.limits import ExitLimits

FLOOD: Final = "flood"
# The last words for a device when another one with the same token attaches, here or elsewhere.
_DISPLACED: Final = (
    "attached_again",
    "The same device has attached again; if it was not you, revoke its token.",
    AGAIN_SECONDS,
)
_logger = logging.getLogger("exits")


class Watch(Protocol):
    """Checks whether exits are honest; without a watch, all count as honest."""

    def admit(self, attached: Attached) -> None:
        """Take note of an exit that attaches, before it may be chosen."""

    def suspect(self, attached: Attached, kind: str, evidence: str) -> None:
        """Take note of an act of an exit that is not honest; it may be gone already."""


@final
class Attachments:
    """Attaches exits, applies the changes of the marketplace and of owners, and detaches exits.

    Args:
        watch: checks whether they are honest; None if all count as honest.
    """

    def __init__(
        self,
        roster: Roster,
        admission: Admission,
        heartbeats: Heartbeats,
        offers: Offers,
        detached: Detached,
        origins: Origins,
        notices: Notices,
        neighbours: Neighbours,
        loaner: Loaner,
        watch: Watch | None,
        counters: ExitCounters,
    ) -> None:
        self._roster = roster
        self._admission = admission
        self._heartbeats = heartbeats
        self._offers = offers
        self._detached = detached
        self._origins = origins
        self._notices = notices
        self._neighbours = neighbours
        self._loaner = loaner
        self._watch = watch
        self._counters = counters
        self._is_draining = False

    def drain(self, seconds: float) -> None:
        """Notify all exits that the daemon stops, and attach no more; dials and relays continue."""
        self._is_draining = True
        for control in self._roster.controls():
            control.drain(max(1, round(seconds)))

    def displace(self, device_id: str) -> None:
        """Release an exit that has since attached again, here or at another node."""
        older = self._roster.by_device.get(device_id)
        if older is not None:
            self._roster.control_of(older).refuse(*_DISPLACED)

    def recheck(self, device_id: str) -> None:
        """Look up the rights of a device again."""
        attached = self._roster.by_device.get(device_id)
        if attached is not None:
            self._roster.control_of(attached).check_again()
        else:
            self._detached.recheck(device_id)

    def change_limits(self, limits: ExitLimits) -> None:
        """Apply new limits; no exit is detached because of them."""
        self._admission.change_limits(limits)
        self._heartbeats.seconds = limits.heartbeat_seconds

    def close(self) -> None:
        """Stop watching all exits."""
        self._heartbeats.close()

    # --- calls of control connections ----------------------------------------------------------

    def attach(self, control: Control, grant: ExitGrant, hello: Hello) -> None:
        """Attach an exit, or refuse it."""
        if self._is_draining:
            control.refuse("stopping", "The service stops here; come again.", SOON_SECONDS)
            return
        self.displace(grant.device_id)
        refusal = self._admission.why_not(control.address)
        if refusal is not None:
            control.refuse(*refusal)
            return
        attached = self._admission.make(control, grant, self._heartbeats.beat)
        welcome = self._admission.welcome_of(attached)
        try:
            encode(welcome)
        except FrameError as error:  # the device would wait for it in vain, and count as attached
            _logger.error("exit %s: cannot be attached: %s", attached.device_id, error)
            control.refuse("unavailable", "The service cannot welcome this device.", AGAIN_SECONDS)
            return
        attached.join(
            self._neighbours.since(grant.device_id),
            self._admission.features_of(hello, attached.address),
            hello.capacity,
        )
        control.accepted(attached)
        self._roster.add(attached, control)
        self._heartbeats.add(attached)
        self._origins.arrived(attached)
        self._counters.attached += 1
        control.send(welcome)
        self._notices.greet(control)
        attached.pulse.ping()
        self._admission.open_pools(attached, control, hello)
        attached.carried_before(grant.bytes_today, self._heartbeats.today)
        self._detached.rejoin(attached)
        attached.pause(hello.paused)
        attached.hold(is_held=grant.paused)
        if self._watch is not None:
            self._watch.admit(attached)
        self._offers.begin(attached)
        _logger.info("exit %s: attached from %s", attached.device_id, attached.address)

    def lost(self, attached: Attached, reason: str) -> None:
        """Act on the end of a control connection: an exit is gone."""
        self._origins.departed(attached)
        self._roster.remove(attached)
        self._heartbeats.discard(attached)
        self._offers.end(attached)
        self._counters.cut[reason] += 1
        _logger.info("exit %s: gone: %s", attached.device_id, reason)
        attached.close()
        if reason == FLOOD:
            self.suspected(attached, FLOOD, "more bytes or states than it may send")
        self._loaner.ended(attached, reason)
        if reason not in HARMLESS:
            attached.cut()
            self._detached.cut(attached.device_id)
        elif attached.relays:
            self._detached.keep(attached)

    def paused(self, attached: Attached, words: str) -> None:
        """Pause an exit, or let it take connections again."""
        was_open = attached.is_open
        attached.pause(words)
        self._offers.change(attached, was_open=was_open)

    def changed(self, attached: Attached, grant: ExitGrant) -> None:
        """Apply the present grant of an exit."""
        was_open = attached.is_open
        attached.hold(is_held=grant.paused)
        attached.terms.set_price(self._admission.least_price(grant, attached.place))
        limits = limits_of(grant)
        if limits != attached.granted._replace(paused=limits.paused):
            attached.grant(limits)
            self._roster.control_of(attached).send(limits)
        self._offers.change(attached, was_open=was_open)
        if attached.terms.is_held:
            attached.interrupt()
            attached.cut()
            self._loaner.ended(attached, "paused")
            self._detached.cut(attached.device_id)

    def suspected(self, attached: Attached, kind: str, evidence: str) -> None:
        """Pass on an act of an exit that is not honest."""
        if self._watch is not None:
            self._watch.suspect(attached, kind, evidence)
