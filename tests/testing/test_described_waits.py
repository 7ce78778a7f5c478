"""Why jobs without a PodGroup wait, over REST, before and after a restart of all components."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from support.rest import running_api, sqlite

from batholith.local.agent.settings import SimulationSettings
from batholith.model.names import JOBS, PODGROUPS
from batholith.testing import Cluster

Json = dict[str, Any]


def job(name: str) -> Json:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "2"}},
    }
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    task = {"name": "t", "replicas": 1, "template": template}
    spec = {"schedulerName": "volcano", "minAvailable": 1, "tasks": [task]}
    return {"metadata": {"name": name}, "spec": spec}


class Rest:
    """A caller of the REST API."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = f"{url}/v1/namespaces/default/jobs"
        self._session = session

    async def why(self, name: str) -> Json:
        """Why a job waits."""
        async with self._session.get(f"{self._url}/{name}/why") as response:
            found: Json = await response.json()
            return found


@asynccontextmanager
async def rest(cluster: Cluster, directory: Path) -> AsyncIterator[Rest]:
    token = cluster.credentials.token
    async with (
        cluster.client() as client,
        running_api(client, sqlite(directory)) as url,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
    ):
        yield Rest(url, session)


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Cluster]:
    nodes = SimulationSettings(nodes=1, cpus=2)
    data = directory / "cluster"
    async with Cluster(data_dir=data, nodes=nodes, podgroups="gangs") as cluster:
        yield cluster
        assert not cluster.objects(PODGROUPS)


async def wait_reported(cluster: Cluster, *names: str) -> None:
    for name in names:
        await cluster.wait_for(
            JOBS, name, lambda it: it["status"]["state"].get("reason") == "PodGroupPending"
        )


async def test_waiting_jobs_are_explained_before_and_after_a_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as cluster, rest(cluster, tmp_path) as api:
        await cluster.create(JOBS, job("runs"))
        await cluster.wait_for_phase(JOBS, "runs", "Running")
        for name in ("first", "second"):
            await cluster.create(JOBS, job(name))
            await wait_reported(cluster, name)
        before = {name: await api.why(name) for name in ("runs", "first", "second")}
    assert (before["runs"]["waiting"], before["runs"]["reason"]) == (False, "NotWaiting")
    for position, name in enumerate(("first", "second"), start=1):
        found = before[name]
        assert (found["waiting"], found["reason"]) == (True, "Unschedulable")
        assert "insufficient cpu" in found["summary"].lower()
        queue = found["explanation"]["queue"]
        assert (queue["name"], queue["position"]) == ("default", position)
        assert found["explanation"]["pods"]["needed"] == 1
    async with started(tmp_path) as cluster, rest(cluster, tmp_path) as api:
        assert {name: await api.why(name) for name in before} == before
        await cluster.set_pod_phase("runs-t-0", "Succeeded")
        await cluster.wait_for_phase(JOBS, "first", "Running")
        assert (await api.why("first"))["reason"] == "NotWaiting"
        assert (await api.why("runs"))["reason"] == "Finished"
        assert (await api.why("second"))["waiting"]
