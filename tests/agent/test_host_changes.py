"""Pods whose plan of the root is outdated when it is executed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import agent_cluster
from support.api_servers import ServerFactory
from support.sandbox import detected_isolation

from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.runtime import rootfs
from batholith.local.agent.runtime.runs import IsolationLevel

pytestmark = [pytest.mark.process]


class OutdatedPlans:
    """Plans of which the first ones have a mount point that does not exist."""

    def __init__(self, outdated: int) -> None:
        self.remaining = outdated
        self._plan = rootfs.mount_plan

    def __call__(self, *arguments: Any, **more: Any) -> Sequence[rootfs.Step]:
        steps = self._plan(*arguments, **more)
        if not self.remaining:
            return steps
        self.remaining -= 1
        return [*steps, ("rw", "/usr", "/usr/removed/after/the/plan", "")]


@pytest.fixture(autouse=True)
def sandbox() -> None:
    """Skip without a sandbox, which has no plan."""
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("no sandbox here")


async def test_outdated_plan_is_replaced_and_is_no_failure_of_the_pod(
    servers: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = manifest("p", container("sh", "-c", "echo up; sleep 60"), restartPolicy="Never")
    async with agent_cluster(servers, tmp_path) as cluster:
        async with cluster.agent():
            monkeypatch.setattr(rootfs, "mount_plan", OutdatedPlans(3))
            await cluster.run(pod)
            await cluster.phase("p", "Running", "Failed")
            await cluster.wait_log("p", "up")
        async with cluster.agent():  # recovers from what the first one left
            running = await cluster.phase("p", "Running", "Failed", "Succeeded")
            assert running["status"]["phase"] == "Running"
            assert running["status"]["containerStatuses"][0]["restartCount"] == 0
            response = await cluster.server.request(
                "GET", "/api/v1/namespaces/default/pods/p/log?previous=true"
            )
            assert response.status == 400, "the outdated runs have no logs"
        (found,) = PodDir.all(cluster.settings.data_dir)
        assert len(found[0].runs("c")) == 4


async def test_pod_whose_plans_stay_outdated_waits_and_does_not_fail(
    servers: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = manifest("p", container("true"), restartPolicy="Never")
    async with agent_cluster(servers, tmp_path) as cluster, cluster.agent():
        monkeypatch.setattr(rootfs, "mount_plan", OutdatedPlans(1000))
        await cluster.run(pod)
        waiting = await cluster.wait_pod(
            "p", lambda pod: "/usr/removed/after/the/plan" in str(pod["status"])
        )
        assert waiting["status"]["phase"] == "Pending"
        state = waiting["status"]["containerStatuses"][0]["state"]["waiting"]
        assert state["reason"] == "CreateContainerConfigError"
