"""The exits that are attached: by number, by device, and by the network that each comes from."""

from secrets import randbits
from typing import final

from market.base.networks import NetworkCounts, counted_network
from proxyd.exits.attached.attached import ATTACHMENT_BITS, Attached
from proxyd.exits.attached.control import Control


@final
class Roster:
    """The exits that are attached now, each with its control connection.

    `by_number` has them under the numbers that their work connections name. `per_network` counts
    them by the networks that they have attached from. Other classes only read these.
    """

    __slots__ = ("by_device", "by_number", "per_network")

    def __init__(self) -> None:
        self.by_number: dict[int, tuple[Attached, Control]] = {}
        self.by_device: dict[str, Attached] = {}
        self.per_network = NetworkCounts()

    def __len__(self) -> int:
        return len(self.by_number)

    def fresh_number(self) -> int:
        """Return a number that no exit has, and that is as hard to guess as a ticket."""
        while True:
            number = randbits(ATTACHMENT_BITS)
            if number and number not in self.by_number:
                return number

    def add(self, attached: Attached, control: Control) -> None:
        """Add an exit; if a device has two, the later one is found by the device."""
        self.by_number[attached.attachment] = attached, control
        self.by_device[attached.device_id] = attached
        self.per_network.add(counted_network(control.address))

    def remove(self, attached: Attached) -> None:
        """Remove an exit that was added."""
        self.per_network.add(self.home_of(attached), -1)
        del self.by_number[attached.attachment]
        if self.by_device.get(attached.device_id) is attached:
            del self.by_device[attached.device_id]

    def attached_here(self, device_id: str) -> Attached | None:
        """Return the exit of a device, if it is attached to this node."""
        return self.by_device.get(device_id)

    def control_of(self, attached: Attached) -> Control:
        """Return the control connection of an exit that is attached."""
        return self.by_number[attached.attachment][1]

    def controls(self) -> list[Control]:
        """Return the control connections of all exits."""
        return [control for _, control in self.by_number.values()]

    def home_of(self, attached: Attached) -> str:
        """Return the network that an exit has attached from."""
        return counted_network(self.control_of(attached).address)
