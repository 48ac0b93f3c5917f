"""The bounds of the parts of a process: times and numbers that the code keeps, not the operator.

Each part has a type of its own for them, with the reasons; here they are together, so that `build`
hands each part its own.
"""

from dataclasses import dataclass
from typing import Final

from api.http.limits import USUAL as API
from api.http.limits import ConnectionTimes
from proxyd.exits.attached.listener import USUAL as PORT
from proxyd.exits.attached.listener import PortBounds
from proxyd.exits.choosing.bounds import USUAL as DIRECTORY
from proxyd.exits.choosing.bounds import DirectoryBounds
from proxyd.exits.choosing.labels import USUAL as LABELS
from proxyd.exits.choosing.labels import LabelBounds
from proxyd.exits.dialling.dial import USUAL as DIALS
from proxyd.exits.dialling.dial import DialTimes
from proxyd.exits.dialling.origin import CALL_SECONDS
from proxyd.exits.dialling.tunnels import USUAL as TUNNELS
from proxyd.exits.dialling.tunnels import TunnelBounds
from proxyd.exits.nodes.borrowing import USUAL as BORROWING
from proxyd.exits.nodes.borrowing import BorrowingBounds
from proxyd.exits.nodes.lending import USUAL as LENDING
from proxyd.exits.nodes.lending import LendingBounds
from proxyd.exits.nodes.peers import USUAL as MESH
from proxyd.exits.nodes.peers import MeshBounds
from proxyd.exits.processes.asking import USUAL as ASKING
from proxyd.exits.processes.asking import AskingTimes
from proxyd.exits.watching.bounds import USUAL as CANARIES
from proxyd.exits.watching.bounds import CanaryBounds
from proxyd.gateway import USUAL as CLIENTS
from proxyd.gateway import ClientBounds
from proxyd.metering.meter import USUAL as METERING
from proxyd.metering.meter import MeterBounds
from proxyd.wiring.market_work import USUAL as CHECKS
from proxyd.wiring.market_work import CheckTimes
from storage.engines.open import READERS


@dataclass(frozen=True, slots=True)
class ExitBounds:
    """The bounds of the parts for exits.

    Attributes:
        call_seconds: the time of a call that shows the source address of an exit's connections.
    """

    port: PortBounds = PORT
    directory: DirectoryBounds = DIRECTORY
    dials: DialTimes = DIALS
    labels: LabelBounds = LABELS
    mesh: MeshBounds = MESH
    borrowing: BorrowingBounds = BORROWING
    lending: LendingBounds = LENDING
    asking: AskingTimes = ASKING
    canaries: CanaryBounds = CANARIES
    tunnels: TunnelBounds = TUNNELS
    call_seconds: float = CALL_SECONDS


EXITS: Final = ExitBounds()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a process.

    Attributes:
        sqlite_readers: the number of connections that read from SQLite.
    """

    clients: ClientBounds = CLIENTS
    metering: MeterBounds = METERING
    exits: ExitBounds = EXITS
    checks: CheckTimes = CHECKS
    api: ConnectionTimes = API
    sqlite_readers: int = READERS


USUAL: Final = Bounds()
