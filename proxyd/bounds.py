"""What the parts of a process bear, beside the operator's limits: times and numbers of the code.

Each part has a type of its own for them, with the reasons; here they are together, so that `build`
hands each part its own.
"""

from dataclasses import dataclass
from typing import Final

from proxyd.gateway import USUAL as CLIENTS
from proxyd.gateway import ClientBounds
from proxyd.metering.meter import USUAL as METERING
from proxyd.metering.meter import MeterBounds


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a process.

    Attributes:
        clients: of the proxy.
        metering: of sessions and their bytes.
    """

    clients: ClientBounds = CLIENTS
    metering: MeterBounds = METERING


USUAL: Final = Bounds()
