"""Containers of a real node that are resized in place, or restarted together."""

import json

import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster
from support.resizes import is_resized, requests, resize, resize_conditions

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]


async def test_a_running_container_gets_other_resources_and_is_not_restarted(
    cluster: AgentCluster,
) -> None:
    given = {**requests("1"), "limits": {"memory": "256Mi"}}
    await cluster.run(manifest("p", container("sleep", "600", resources=given)))
    before = await cluster.wait_pod("p", lambda seen: is_resized(seen, "1"))
    identity = before["status"]["containerStatuses"][0]["containerID"]
    await resize(cluster, "p", {"requests": {"cpu": "2"}, "limits": {"memory": "128Mi"}})
    done = await cluster.wait_pod("p", lambda seen: is_resized(seen, "2"))
    (status,) = done["status"]["containerStatuses"]
    assert (status["containerID"], status["restartCount"]) == (identity, 0)
    assert status["allocatedResources"] == {"cpu": "2", "memory": "64Mi"}
    assert status["resources"]["limits"] == {"memory": "128Mi"}
    event = await cluster.wait_event("p", "ResizeCompleted")
    what, _, text = event["message"].partition(": ")
    assert what == "Pod resize completed"
    assert json.loads(text)["containers"][0]["resources"]["limits"] == {"memory": "128Mi"}


async def test_a_smaller_memory_limit_kills_a_container_only_above_it(
    cluster: AgentCluster,
) -> None:
    take = "import time; x = b'1' * (100 << 20); print('up', flush=True); time.sleep(600)"
    given = {**requests("100m"), "limits": {"memory": "1Gi"}}
    await cluster.run(
        manifest("p", container("python3", "-c", take, resources=given), restartPolicy="Never")
    )
    await cluster.phase("p", "Running")
    await cluster.wait_log("p", "up")
    await resize(cluster, "p", {"limits": {"memory": "64Mi"}})
    seen = await cluster.wait_pod(
        "p", lambda seen: resize_conditions(seen).get("PodResizeInProgress", ("",))[0] == "Error"
    )
    why = resize_conditions(seen)["PodResizeInProgress"][1]
    assert why.startswith("attempting to set pod memory limit (67108864) below current usage (")
    assert seen["status"]["containerStatuses"][0]["resources"]["limits"] == {"memory": "1Gi"}
    await resize(cluster, "p", {"limits": {"memory": "512Mi"}})
    await cluster.wait_pod("p", lambda seen: is_resized(seen, "100m"))


async def test_a_container_restarts_for_the_resources_that_its_policy_names(
    cluster: AgentCluster,
) -> None:
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    trap = "trap 'exit 0' TERM; sleep 600 & wait"
    one = container("sh", "-c", trap, resources=requests("1"), resizePolicy=policy)
    await cluster.run(manifest("p", one, restartPolicy="OnFailure"))
    await cluster.wait_pod("p", lambda seen: is_resized(seen, "1"))
    await resize(cluster, "p", requests("1", "96Mi"))
    seen = await cluster.wait_pod(
        "p", lambda seen: is_resized(seen, "1") and "96Mi" in str(seen["status"])
    )
    assert seen["status"]["containerStatuses"][0]["restartCount"] == 0
    await resize(cluster, "p", requests("2", "96Mi"))
    seen = await cluster.wait_pod("p", lambda seen: is_resized(seen, "2"))
    assert seen["status"]["containerStatuses"][0]["restartCount"] == 1


async def test_all_containers_restart_after_an_exit_and_volumes_stay(cluster: AgentCluster) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    script = "test $(wc -l < /v/runs) = 2 || exit 42"
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]
    main = container(
        "sh", "-c", script, volumeMounts=mounts, restartPolicy="Never", restartPolicyRules=rules
    )
    first = container("sh", "-c", "echo run >> /v/runs", name="first", volumeMounts=mounts)
    other = container("sh", "-c", "sleep 1", name="other")
    volumes = [{"name": "v", "emptyDir": {}}]
    pod = manifest("p", main, other, initContainers=[first], volumes=volumes, restartPolicy="Never")
    await cluster.run(pod)
    done = await cluster.phase("p", "Succeeded", "Failed")
    status = done["status"]
    assert status["phase"] == "Succeeded"
    every = (*status["initContainerStatuses"], *status["containerStatuses"])
    assert {each["name"]: each["restartCount"] for each in every} == {
        "first": 1, "c": 1, "other": 1,
    }  # fmt: skip
