"""A cluster without webhooks: what authors leave out is filled in when a job is read."""

import re
from pathlib import Path

import pytest
from support.api_servers import real_servers
from support.cel_policies import install
from support.recordings import load_recordings
from support.replay_runner import replay_concurrently

LEAVE_SOMETHING_OUT = frozenset(
    (
        "default-names",
        "partition",
        "plugin-hcclrank",
        "plugin-mpi",
        "plugin-pytorch",
        "plugin-ray",
        "plugin-tensorflow",
        "policy-taskfailed",
        "scale-down",
        "task-fields",
        "task-min-available",
        "zero-replicas",
    )
)
"""Recorded lives of jobs that admission filled something in for."""

_STORED = re.compile(r"/(final/jobs/[^/]+|made/Job/\d+)/spec/")
"""Where the recordings have what admission wrote into a job; here it stays as it was sent."""


@pytest.mark.soak
async def test_jobs_live_as_recorded_with_webhooks(tmp_path: Path) -> None:
    scenarios = [
        each for each in load_recordings("scenarios.jsonl") if each["name"] in LEAVE_SOMETHING_OUT
    ]
    assert len(scenarios) == len(LEAVE_SOMETHING_OUT)
    with real_servers(tmp_path / "kube", prepare=install) as servers:
        found = await replay_concurrently(servers, tmp_path, scenarios, webhooks=())
    wrong = {
        name: [each for each in result if not _STORED.match(each)] for name, result in found.items()
    }
    assert {name: result for name, result in wrong.items() if result} == {}
