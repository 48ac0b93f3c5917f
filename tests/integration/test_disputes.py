"""Disputes decided each way: the evidence with its log, a reason to both sides, and the money.

The daemon and the commands of the staff are processes. The device is its requests over HTTP.
"""

import json
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.base.brief import brief
from support.daemons import process
from support.daemons.process import Process

LOG = b"step one\n" * 300 + b"No space left on device\nbye\n"
OBJECTION = "the file is empty"
JOB = {
    "title": "train",
    "description": "sum all numbers",
    "requirements": "",
    "job_type": "script",
    "price_credit": 10,
    "duration_hrs": 1,
    "payload": {"script": "print(1)"},
}
PASSWORD = "long enough"


class Way(NamedTuple):
    """A decision, and the credits that both sides have by it, of a price of 10."""

    words: tuple[str, ...]
    decision: str
    of_buyer: float
    of_worker: float
    opposite: str


WAYS = [
    Way(("uphold",), "uphold", 0, 9, "reverse"),
    Way(("reverse",), "reverse", 10, 0, "uphold"),
    Way(("split", "40"), "split", 4, 5.4, "reverse"),
]


class Story:
    """A daemon with a buyer and the owner of a device, and the commands of the staff beside it."""

    def __init__(self, url: str, folder: Path, daemon: Process) -> None:
        self.url = url
        self.folder = folder
        self.daemon = daemon
        self.buyer = daemon.log_in("buyer@example.com", PASSWORD)
        self.owner = daemon.log_in("owner@example.com", PASSWORD)
        made = self.asked("/api/worker/token/create", {"name": "rig"}, self.owner)
        self.device_id, self.device = made["token_id"], {"X-Worker-Token": made["token"]}

    def staff(self, *words: str, status: int = 0) -> Any:
        """Run a command of the staff; return its document, or its one line of an error."""
        folder = {"PROXYD_WORK__FOLDER": str(self.folder)}
        done = process.run(self.url, *words, "--json", **folder)
        assert done.returncode == status, done
        return json.loads(done.stdout) if status == 0 else done.stderr

    def asked(
        self, path: str, body: Any, token: str = "", headers: dict[str, str] | None = None
    ) -> Any:
        """Post to the API, and return the answer."""
        status, answer = self.daemon.call("POST", path, body, token, headers)
        assert status == 200, (path, answer)
        return answer

    def credits(self, token: str) -> float:
        """Return the credits that a user can spend."""
        return float(self.daemon.call("GET", "/api/wallet", token=token)[1]["credit_balance"])

    def disputed(self) -> str:
        """Have a job done with a log, and let its buyer dispute it."""
        job_id = str(self.asked("/api/jobs", JOB, self.buyer)["job_id"])
        self.asked(f"/api/jobs/{job_id}/accept", {}, headers=self.device)
        request = urllib.request.Request(
            f"{self.daemon.api}/api/worker/jobs/{job_id}/log?attempt=1&offset=0&stream=out",
            data=LOG,
            headers=self.device,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        result = {"result": "the sum is 7"}
        self.asked(f"/api/worker/jobs/{job_id}/complete", result, headers=self.device)
        self.asked(f"/api/jobs/{job_id}/dispute", {"reason": OBJECTION}, self.buyer)
        return job_id


def judged(story: Story, way: Way) -> None:
    """Find a dispute, read its evidence, decide it, and tell both sides."""
    before = story.credits(story.owner), story.credits(story.buyer)
    job_id = story.disputed()
    [waits] = story.staff("jobs", "disputes")["disputes"]
    assert (waits["job"], waits["reason"]) == (job_id, OBJECTION)
    objection = {"text": f"{OBJECTION} to {way.decision}"}
    story.asked(f"/api/jobs/{job_id}/answer", objection, story.owner)
    shown = story.staff("jobs", "show", job_id, "--search", "no SPACE")
    assert [each["answer"] for each in shown["answers"]] == [objection["text"]]
    assert shown["order"]["description"] == JOB["description"]
    assert shown["result"]["text"] == "the sum is 7"
    assert shown["statements"][0]["reason"] == OBJECTION
    assert shown["attempts"][0]["outcome"] == "completed"
    assert [each["text"] for each in shown["logs"][0]["stdout"] if each["hit"]] == [
        "No space left on device"
    ]
    assert [each["device"] for each in shown["devices"]] == [story.device_id]
    why = f"read line 301 for {way.decision}"
    story.staff("jobs", *way.words[:1], job_id, *way.words[1:], "--reason", why)
    after = story.credits(story.owner), story.credits(story.buyer)
    assert after == pytest.approx(
        (before[0] + way.of_worker, before[1] - JOB["price_credit"] + way.of_buyer)
    )
    for token in (story.buyer, story.owner):
        _, answer = story.daemon.call("GET", "/api/events?types=job.decided", token=token)
        assert [why in json.dumps(each) for each in answer["events"]].count(True) == 1
    refused = story.staff("jobs", way.opposite, job_id, "--reason", "again", status=1)
    assert "final" in refused
    assert (story.credits(story.owner), story.credits(story.buyer)) == after


@pytest.mark.parametrize("engine", brief(["sqlite", "postgres"]))
@pytest.mark.both_engines
def test_a_dispute_is_decided_each_way_and_both_sides_read_why(
    store_url: str, tmp_path: Path
) -> None:
    process.funded(store_url, "0", "buyer", credit="30")
    process.funded(store_url, "0", "owner")
    folder = tmp_path / "work"
    with process.serving(store_url, PROXYD_WORK__FOLDER=str(folder)) as daemon:
        story = Story(store_url, folder, daemon)
        for way in WAYS:
            judged(story, way)
        decided = story.staff("log", "--action", "job.decide")["log"]
        assert len(decided) == len(WAYS)
        assert daemon.stop() == 0
    process.assert_audit(store_url)
