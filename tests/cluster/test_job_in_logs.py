"""The logs of all components show the lifecycle of a job when searched for its key."""

import asyncio
import contextlib
import re
from operator import itemgetter
from pathlib import Path

import aiohttp
import msgspec
import pytest
from support.embedded_cluster import EmbeddedCluster, embedded_cluster
from support.polling import DEFAULT_TIMEOUT
from support.polling import wait_for as logged_in_time

from batholith.model.job import Job
from batholith.model.names import JOBS, SECRETS

pytestmark = pytest.mark.process

KEY = "default/followed"
JOB = {
    "metadata": {"name": "followed"},
    "spec": {
        "schedulerName": "volcano",
        "minAvailable": 2,
        "plugins": {"ssh": []},
        "tasks": [
            {
                "name": "t",
                "replicas": 2,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": 0,
                        "containers": [
                            {"name": "main", "image": "busybox:1", "command": ["sleep", "1000"]}
                        ],
                    }
                },
            }
        ],
    },
}
EXPECTED_LINES = {
    "controllers": [
        "job created job=default/followed queue=default",
        "job phase job=default/followed phase=Pending",
        "podgroup created job=default/followed",
        "pods created job=default/followed pods=2",
        "job phase job=default/followed phase=Running",
        "command done job=default/followed action=CompleteJob",
        "job phase job=default/followed phase=Completing",
        "pods deleted job=default/followed pods=2",
        "job phase job=default/followed phase=Completed",
    ],
    "scheduler": ["gang admitted", "gang planned", "gang phase"],
    "agent": ["phase=Running"],
    "api": ["command accepted", "command finished"],
}
"""Log lines of each component, in order. Lines of two components may differ by less than a
millisecond.

A pod that starts at once is never reported as pending.
"""


async def until(cluster: EmbeddedCluster, phase: str) -> None:
    async with asyncio.timeout(DEFAULT_TIMEOUT):
        async for event in cluster.client.watch(JOBS, namespace="default", view=Job):
            if event.object.status.state.phase == phase:
                return


def lines(cluster: EmbeddedCluster) -> list[str]:
    """All log lines by time, each component's in its own order: ``component: line``."""
    found = [
        (line.split(" ", 1)[0], f"{path.stem}: {line}")
        for path in cluster.data_dir.logs.glob("*.log")
        for line in path.read_text().splitlines()
        if re.match(r"\d{4}-", line)
    ]
    return [line for _, line in sorted(found, key=itemgetter(0))]


def missing_lines(found: list[str]) -> list[str]:
    """Expected lines that are missing or out of order."""
    missing = []
    for component, texts in EXPECTED_LINES.items():
        reported = iter(line for line in found if line.startswith(f"{component}: ") and KEY in line)
        missing += [text for text in texts if not any(text in line for line in reported)]
    return missing


async def test_the_way_of_a_job_can_be_read_by_its_key(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "data") as cluster:
        await cluster.client.create(JOBS, JOB, namespace="default")
        await until(cluster, "Running")
        url = f"{cluster.rest}/v1/namespaces/default/jobs/followed/commands"
        headers = {"Authorization": f"Bearer {cluster.token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(url, json={"action": "complete"}) as response,
        ):
            assert response.status == 202
        await until(cluster, "Completed")
        secrets = (await cluster.client.list(SECRETS, view=dict)).items
        with contextlib.suppress(AssertionError):  # missing lines are shown below
            await logged_in_time(lambda: not missing_lines(lines(cluster)))
        found = lines(cluster)
    mine = [line for line in found if KEY in line]
    assert missing_lines(found) == [], "\n".join(mine)
    assert "job created" in mine[0]
    # Lines about its pods and its gang contain the job's key, too.
    assert all(f"job={KEY} " in f"{line} " for line in mine)
    assert len(mine) < 40, mine
    text = "\n".join(found)
    assert cluster.token not in text
    for secret in secrets:
        for value in msgspec.convert(secret.get("data", {}), dict[str, str]).values():
            assert value not in text
