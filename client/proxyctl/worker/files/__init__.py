"""Files of jobs on a device: inputs, outputs, checkpoints, and their transfer.

`transfers.py` brings files to an attempt and back. `inputs.py` fetches inputs through `web.py`;
`network/outward.py` dials addresses of strangers, `base/watch.py` and `task/patience.py` bound the
time, `room.py` the bytes. `unpacking.py` starts the process `unpacker.py`, which confines itself
(`confinement.py`) and unpacks (`archives.py`), and `inspection.py` checks the result. `outputs.py`
reads the hostile files of a job, `uploads.py` sends them, `packing.py` makes the archive of a
checkpoint while it is sent, and `notes.py` adds lines for the buyer to the job's log.
"""
