"""Unpacks one archive, as a process that reaches nothing but the folder it unpacks into.

`unpacking.py` starts it. The archive is its standard input. Its standard output is one object of
JSON with one of the names below. Decompressors and parsers run here on a stranger's bytes, and may
have a fault that hands this process to the stranger. So the agent checks every answer.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from dataclasses import asdict
from typing import Any, Final

from proxyctl.worker.beneath import Folder
from proxyctl.worker.files.archives import ArchiveError, UnpackOptions, unpack
from proxyctl.worker.files.confinement import ConfinementError, confine

SIZE: Final = "size_bytes"  # of all files; the archive is unpacked
WALLS: Final = "walls"  # beside `SIZE`: the walls around this process
REFUSED: Final = "refused"  # the archive is at fault: a sentence for the buyer
FAILED: Final = "failed"  # the device is at fault: [errno, message]
UNCONFINED: Final = "unconfined"  # this device cannot hold this process: a sentence for its owner

# Codecs that the libraries look up by name while they read; the files of Python are out of reach
# by then.
_CODECS: Final = ("utf-8", "cp437", "ascii", "latin-1", "iso8859-1", "utf-8-sig")


def main(arguments: list[str]) -> None:
    """Unpack the archive as the request in the first argument says.

    Its fields: `folder` (a descriptor), `parent` (a process), `user` (a number, or null), `options`
    (of `UnpackOptions`).
    """
    request = json.loads(arguments[0])
    os.write(sys.stdout.fileno(), json.dumps(_answer(request)).encode())
    # Nothing is left to be closed or written, and a module that is needed for it is out of reach.
    os._exit(0)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    options = UnpackOptions(**request["options"])
    for name in _CODECS:
        codecs.lookup(name)
    try:
        archive = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115 - until the end
        folder = Folder(int(request["folder"]))
        walls = confine(
            folder.descriptor, int(request["parent"]), options.max_bytes, request["user"]
        )
        return {SIZE: unpack(archive, folder, options), WALLS: asdict(walls)}
    except ArchiveError as error:
        return {REFUSED: str(error)}
    except ConfinementError as error:
        return {UNCONFINED: str(error)}
    except OSError as error:
        return {FAILED: [error.errno, str(error.strerror)]}
    except Exception as error:  # noqa: BLE001 - faults of libraries that an archive has found
        # The archive is at fault, because a stranger could otherwise have the device blamed.
        return {REFUSED: f"it is broken: {type(error).__name__}"}
