"""Pods that are resized in place, on a real node and on simulated ones."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.agent import BACKOFF, START, PodStatusSimulator, after, container, decode_pod, manifest
from support.agent_cluster import agent_cluster
from support.api_servers import ServerFactory
from support.resizes import is_resized, requests, resize, resize_conditions

from batholith.kube.errors import ForbiddenError
from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.settings import SimulationSettings
from batholith.local.agent.state import resizes
from batholith.local.agent.state.resizes import Rejection
from batholith.local.agent.state.status import (
    RESIZE,
    Exited,
    Resized,
    ResizeReviewed,
    Started,
    apply,
)
from batholith.model.pod_resources import Resources

NODE = {"cpu": "4", "memory": "4Gi"}


def pod(name: str, cpu: str, **more: Any) -> Any:
    one = container("sleep", "600", resources=requests(cpu), **more)
    body = manifest(name, one)
    body["metadata"] |= {"uid": name, "generation": 2}
    return decode_pod(body)


# --- what a node allocates ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "memory", "rejection"),
    [
        ("2", "2Gi", None),
        ("2001m", "2Gi", ("Deferred", "cpu, requested: 2001, used: 2000, capacity: 4000")),
        ("5", "2Gi", ("Infeasible", "cpu, requested: 5000, capacity: 4000")),
        ("1", "5Gi", ("Infeasible", "memory, requested: 5368709120, capacity: 4294967296")),
    ],
)
def test_a_node_allocates_what_is_free_and_never_more_than_it_has(
    cpu: str, memory: str, rejection: tuple[str, str] | None
) -> None:
    desired = decode_pod(manifest("p", container(resources=requests(cpu, memory))))
    finished = decode_pod({**manifest("f"), "status": {"phase": "Failed"}})
    found = resizes.find_rejection(desired, [pod("other", "2"), finished], NODE)
    if rejection is None:
        assert found is None
    else:
        assert found is not None
        assert found.reason == rejection[0]
        assert found.message.endswith(rejection[1])


def test_a_pending_resize_is_a_condition_until_it_is_allocated() -> None:
    story = PodStatusSimulator(pod("p", "1"))
    story.apply(ResizeReviewed(Rejection("Deferred", "no")))
    (shown,) = [each for each in story.status()["conditions"] if "Resize" in each["type"]]
    assert shown == {
        "type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no",
        "lastTransitionTime": "2026-01-02T03:20:45Z", "observedGeneration": 2,
    }  # fmt: skip
    story.apply(ResizeReviewed())
    assert resize_conditions({"status": story.status()}) == {}


def test_a_resize_is_in_progress_until_the_container_has_its_resources() -> None:
    story = PodStatusSimulator(pod("p", "2"))
    old, new = Resources(requests={"cpu": "1"}), story.pod.containers["c"].resources
    story.apply(Started("c", START, resources=old))
    (status,) = story.status()["containerStatuses"]
    assert status["allocatedResources"] == {"cpu": "2", "memory": "64Mi"}
    assert status["resources"] == {"requests": {"cpu": "1"}}
    assert resize_conditions({"status": story.status()}) == {"PodResizeInProgress": ("", "")}
    story.apply(Resized("c", new))
    assert resize_conditions({"status": story.status()}) == {}


def test_a_condition_that_was_reported_is_removed() -> None:
    known = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
    body = {**manifest("p"), "status": {"conditions": [known]}}
    shown = PodStatusSimulator(decode_pod(body), Started("c", START)).status()
    assert {"type": "PodResizePending", "$patch": "delete"} in shown["conditions"]


def test_a_container_that_was_stopped_for_its_resources_starts_at_once() -> None:
    for policy in ("Always", "OnFailure"):
        story = PodStatusSimulator(decode_pod(manifest("p", restartPolicy=policy)))
        for second in (0, 2):
            story.apply(Started("c", after(second)), Exited("c", after(second + 1), 1))
        story.apply(Started("c", after(4)), Exited("c", after(5), 0, restart=RESIZE))
        (action,) = story.next_actions(5).actions
        assert action.name == "c"  # type: ignore[union-attr]
        state = apply(story.state, Started("c", after(5)), BACKOFF)
        assert state.of("c").restarts == 3


# --- on a real node -------------------------------------------------------------------------


@pytest.mark.process
async def test_a_resize_waits_for_resources_and_one_beyond_the_node_is_rejected(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with agent_cluster(servers, tmp_path, cpus=4, memory="64Gi") as cluster:
        async with cluster.agent():
            for name, cpu in (("first", "1"), ("other", "2")):
                one = container("sleep", "600", resources=requests(cpu))
                await cluster.run(manifest(name, one))
            await cluster.wait_pod("other", lambda seen: is_resized(seen, "2"))
            await cluster.wait_pod("first", lambda seen: is_resized(seen, "1"))
            with pytest.raises(ForbiddenError, match="enough allocatable resources: cpu"):
                await resize(cluster, "first", requests("5"))
            await resize(cluster, "first", requests("3"))
            seen = await cluster.wait_pod(
                "first", lambda seen: "Deferred" in str(resize_conditions(seen))
            )
            (status,) = seen["status"]["containerStatuses"]
            assert status["allocatedResources"]["cpu"] == status["resources"]["requests"]["cpu"]
            assert status["allocatedResources"]["cpu"] == "1"
        async with cluster.agent():  # it finds what the earlier one has allocated
            await cluster.delete("other", grace=0)
            done = await cluster.wait_pod("first", lambda seen: is_resized(seen, "3"))
            assert done["status"]["containerStatuses"][0]["restartCount"] == 0
            # The directory of the other pod is removed later.
            pods = PodDir.all(cluster.settings.data_dir)
            (found,) = [record.resources for _, record in pods if record.name == "first"]
            assert found == {"c": Resources(requests={"cpu": "3", "memory": "64Mi"})}


# --- on simulated nodes ---------------------------------------------------------------------


async def test_simulated_pods_are_resized(servers: ServerFactory, tmp_path: Path) -> None:
    simulation = SimulationSettings(nodes=1, cpus=4)
    async with (
        agent_cluster(servers, tmp_path, simulation=simulation) as cluster,
        cluster.agent(),
    ):
        for name, cpu in (("first", "1"), ("other", "2")):
            body = manifest(name, container("sleep", "600", resources=requests(cpu)))
            body["spec"]["nodeName"] = "sim-0"
            await cluster.create(body)
            await cluster.wait_pod(name, partial(is_resized, cpu=cpu))
        await resize(cluster, "first", requests("3"))
        await cluster.wait_pod("first", lambda seen: "PodResizePending" in resize_conditions(seen))
        await cluster.delete("other", grace=0)
        await cluster.wait_pod("first", lambda seen: is_resized(seen, "3"))


def test_a_container_of_an_older_agent_is_neither_resized_nor_without_a_limit() -> None:
    story = PodStatusSimulator(pod("p", "2"), Started("c", START))
    assert resize_conditions({"status": story.status()}) == {}
    (status,) = story.status()["containerStatuses"]
    assert status["resources"] == requests("2")
