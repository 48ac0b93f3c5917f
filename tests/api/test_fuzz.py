"""schemathesis holds the API against its own document: no 5xx, no undocumented status or shape.

Here it tries each operation once. `make fuzz-api` also runs the phases of edge cases and of
sequences, for as long as they take (PROXYD_FUZZ_EXAMPLES per operation).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemons import process

EXAMPLES = int(os.environ.get("PROXYD_FUZZ_EXAMPLES", "0"))
BRIEFLY = ["--phases", "fuzzing", "--max-examples", "1"]
CHECKS = (
    "not_a_server_error,status_code_conformance,"
    "content_type_conformance,response_schema_conformance"
)
NO_LIMITS = {
    "PROXYD_LIMITS__LOGIN_FAILURES_PER_EMAIL": "0",
    "PROXYD_LIMITS__LOGIN_FAILURES_PER_CLIENT": "0",
    # A device that waits for work in vain would be a minute of waiting for each such request.
    "PROXYD_JOBS__WAIT_SECONDS": "0.2",
}
# They end the login of all other requests; a stream does not end by itself.
LEFT_OUT = ["/auth/logout", "/auth/password/change", "/api/events/stream"]


@pytest.mark.early
@pytest.mark.timeout(0)
def test_the_document_is_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    email, password = process.funded(url, "1000000")
    process.run(url, "wallet", "deposit", email, "--credits", "1000000")
    with process.serving(url, **NO_LIMITS) as daemon:
        token = daemon.log_in(email, password)
        _, device = daemon.call("POST", "/api/worker/token/create", {"name": "rig"}, token)
        left_out = [option for path in LEFT_OUT for option in ("--exclude-path", path)]
        done = subprocess.run(
            [
                *(str(Path(sys.executable).with_name("schemathesis")), "run"),
                f"{daemon.api}/openapi.json",
                *("-H", f"Authorization: Bearer {token}"),
                *("-H", f"X-Worker-Token: {device['token']}"),
                *("--checks", CHECKS),
                *(["--max-examples", str(EXAMPLES)] if EXAMPLES else BRIEFLY),
                *("--generation-deterministic", "--request-timeout", "30", *left_out),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert "ERROR" not in daemon.output
    process.assert_audit(url)
