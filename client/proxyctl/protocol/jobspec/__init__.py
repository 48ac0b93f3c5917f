"""Job specifications, as buyers write them, the market reads them and devices carry them out."""

from proxyctl.protocol.jobspec.checks import (
    architecture,
    check,
    check_name,
    check_path,
    check_resources,
)
from proxyctl.protocol.jobspec.errors import SpecError
from proxyctl.protocol.jobspec.file_names import (
    LEFT_OUT,
    LEFT_OUT_MAX_BYTES,
    check_file_name,
    download_name,
)
from proxyctl.protocol.jobspec.payload import (
    Capacity,
    Checkpoint,
    Input,
    Output,
    Payload,
    Port,
    Ready,
    Resources,
    as_fields,
    payload_of,
    resources_of,
)

__all__ = [
    "LEFT_OUT",
    "LEFT_OUT_MAX_BYTES",
    "Capacity",
    "Checkpoint",
    "Input",
    "Output",
    "Payload",
    "Port",
    "Ready",
    "Resources",
    "SpecError",
    "architecture",
    "as_fields",
    "check",
    "check_file_name",
    "check_name",
    "check_path",
    "check_resources",
    "download_name",
    "payload_of",
    "resources_of",
]
