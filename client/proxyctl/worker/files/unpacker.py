"""Unpacks one archive, as a process that can change nothing but the folder it unpacks into.

`unpacking.py` starts it. The archive is its standard input. On its standard output are two lines of
JSON: the walls around it, before it reads the first byte of the archive, and the result. Each is an
object with one of the names below. Decompressors and parsers run here on a stranger's bytes, and
may have a fault that hands this process to the stranger. So the agent checks every answer.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import sys
import traceback
from dataclasses import asdict
from typing import Any, Final

from proxyctl.worker.base.beneath import Folder
from proxyctl.worker.files.archives import ArchiveError, UnpackOptions, unpack
from proxyctl.worker.files.confinement import Bounds, ConfinementError, confine

WALLS: Final = "walls"  # the fields of `Walls`
UNCONFINED: Final = "unconfined"  # in the place of `WALLS`: a sentence for the device's owner
DONE: Final = "done"  # the archive is unpacked
REFUSED: Final = "refused"  # the archive is at fault: a sentence for the buyer
FAILED: Final = "failed"  # the device is at fault: the number of an error

# Codecs that the libraries look up by name while they read; the files of Python are out of reach
# by then.
_CODECS: Final = ("utf-8", "cp437", "ascii", "latin-1", "iso8859-1", "utf-8-sig")


def main(arguments: list[str]) -> None:
    """Unpack the archive by the request in the first argument.

    Its fields: `folder` (a descriptor), `parent` (a process), `user` (a number, or null), `bounds`
    (of `Bounds`), `options` (of `UnpackOptions`).
    """
    request = json.loads(arguments[0])
    for name in _CODECS:
        codecs.lookup(name)
    archive = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115 - to the end
    folder = Folder(int(request["folder"]))
    options = UnpackOptions(**request["options"])
    try:
        walls = confine(
            folder.descriptor,
            int(request["parent"]),
            Bounds(**request["bounds"]),
            request["user"],
        )
    except (ConfinementError, OSError) as error:
        _say({UNCONFINED: str(error)})
    else:
        _say({WALLS: asdict(walls)})
        try:
            unpack(archive, folder, options)
            _say({DONE: True})
        except ArchiveError as error:
            _say({REFUSED: str(error)})
        except OSError as error:
            _say({FAILED: error.errno})
        except (ImportError, NameError):  # a fault of this program
            traceback.print_exc()
            _say({FAILED: errno.EIO})
        except Exception as error:  # noqa: BLE001 - faults of libraries that an archive has found
            # The archive is at fault, because a stranger could otherwise have the device blamed.
            traceback.print_exc()
            _say({REFUSED: f"it is broken: {type(error).__name__}"})
    # Nothing is left to be closed or written, and a module that is needed for it is out of reach.
    sys.stderr.flush()
    os._exit(0)


def _say(answer: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), f"{json.dumps(answer)}\n".encode())
