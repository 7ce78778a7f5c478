"""The scheduler on an API server: what it writes, and how often."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, add_node, merge_patch
from support.embedded_apiserver import Server
from support.polling import wait_until_equal, wait_until_true
from support.running_controller import FakeRecorder, running

from batholith.admission import AdmissionSettings, webhooks
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.model import crds
from batholith.model.names import (
    GROUP_NAME,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    PODS,
    QUEUE_GATE,
    QUEUES,
    WHY,
)
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.writers.status_updater import WriteIntervals

Json = dict[str, Any]
FREQUENT_WRITES = SchedulerSettings(
    pod_scheduler_names=("default-scheduler",),
    write_intervals=WriteIntervals(podgroup=0.05, pod=0.05, queue=0.05),
)


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, crds=crds.load()) as started:
        await open_queue(started)
        yield started


async def open_queue(server: Server, **spec: Any) -> None:
    body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": "default"}}
    await server.create(QUEUES.path(), body | {"spec": {"weight": 1} | spec})
    await merge_patch(server, QUEUES.path("", "default", "status"), {"status": {"state": "Open"}})


@asynccontextmanager
async def scheduling(
    server: Server,
    *,
    settings: SchedulerSettings = FREQUENT_WRITES,
) -> AsyncIterator[FakeRecorder]:
    """Run a scheduler; yields the recorder of its events."""
    recorder = FakeRecorder()
    async with (
        server.client("scheduler") as client,
        running(Scheduler(client, settings=settings, recorder=recorder)),
    ):
        yield recorder


async def add_group(server: Server, name: str, minimum: int, **spec: Any) -> None:
    body = {
        "apiVersion": PODGROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": minimum, "queue": "default"} | spec,
    }
    await server.create(PODGROUPS.path("default"), body)


async def add_pod(
    server: Server,
    name: str,
    group: str = "",
    *,
    cpu: str = "1",
    scheduler: str = "volcano",
    annotations: Json | None = None,
    pvc: str = "",
) -> None:
    mounted = {"name": "d", "persistentVolumeClaim": {"claimName": pvc}}
    resources = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    annotations = (annotations or {}) | ({GROUP_NAME: group} if group else {})
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "busybox", "resources": resources}],
            "volumes": [mounted] if pvc else [],
        },
    }
    await server.create(PODS.path("default"), body)


async def phase_of_pod(server: Server, name: str, phase: str) -> None:
    """Report *phase* as a kubelet does."""
    await merge_patch(server, PODS.path("default", name, "status"), {"status": {"phase": phase}})


async def pod(server: Server, name: str) -> Json:
    found: Json = await server.get(PODS.path("default", name))
    return found


async def group(server: Server, name: str) -> Json:
    found: Json = await server.get(PODGROUPS.path("default", name))
    return found


async def wait_for_phase(server: Server, name: str, phase: str) -> Json:
    async def is_in_phase() -> bool:
        return bool((await group(server, name)).get("status", {}).get("phase") == phase)

    await wait_until_true(is_in_phase)
    return await group(server, name)


async def wait_group_message(server: Server, name: str, message: str) -> None:
    """Wait for *message*; it differs before all pods and nodes are in the cache."""

    async def message_matches() -> str:
        conditions = (await group(server, name)).get("status", {}).get("conditions") or [{}]
        return str(conditions[0].get("message"))

    await wait_until_equal(message_matches, message)


async def wait_bound(server: Server, *names: str) -> list[str]:
    async def is_bound() -> bool:
        pods = [await pod(server, name) for name in names]
        return all(each["spec"].get("nodeName") for each in pods)

    await wait_until_true(is_bound)
    return [(await pod(server, name))["spec"]["nodeName"] for name in names]


async def test_gang_is_bound_and_its_podgroup_follows_its_pods(server: Server) -> None:
    """Scenario complete; the test reports the phases of the kubelet."""
    async with scheduling(server) as recorder:
        await add_node(server, "a")
        await add_group(server, "g", 2)
        await wait_for_phase(server, "g", "Inqueue")
        await add_pod(server, "g-0", "g")
        await add_pod(server, "g-1", "g")
        assert await wait_bound(server, "g-0", "g-1") == ["a", "a"]
        await wait_for_phase(server, "g", "Running")
        for name in ("g-0", "g-1"):
            await phase_of_pod(server, name, "Running")

        async def counted() -> bool:
            return bool((await group(server, "g"))["status"].get("running") == 2)

        await wait_until_true(counted)
        for name in ("g-0", "g-1"):
            await phase_of_pod(server, name, "Succeeded")
        status = (await wait_for_phase(server, "g", "Completed"))["status"]
    assert status["succeeded"] == 2 and "running" not in status
    scheduled = next(each for each in status["conditions"] if each["type"] == "Scheduled")
    assert scheduled["status"] == "True" and scheduled["lastTransitionTime"]
    message = "Successfully assigned default/g-0 to a"
    assert ("Pod", "g-0", "Normal", "Scheduled", message) in recorder.events
    assert ("PodGroup", "g", "Normal", "Scheduled", "pod group is ready") in recorder.events


async def test_gang_that_does_not_fit_has_a_fit_error_and_starts_on_a_new_node(
    server: Server,
) -> None:
    async with scheduling(server) as recorder:
        await add_node(server, "a", cpu="14")
        await add_group(server, "g", 4)
        for i in range(4):
            await add_pod(server, f"g-t-{i}", "g", cpu="5")

        await wait_group_message(
            server,
            "g",
            "2 of 4 pods cannot be scheduled: all nodes together could not take its pods even if "
            "nothing else ran: g-t-2: 0/1 nodes are unavailable: 1 Insufficient cpu (requested 5, "
            "free 4).",
        )
        condition = (await group(server, "g"))["status"]["conditions"][0]
        assert condition["type"] == "Unschedulable"
        assert condition["reason"] == "NotEnoughResources"

        async def pods_have_fit_errors() -> bool:
            pods = [await pod(server, f"g-t-{i}") for i in range(4)]
            conditions = [each.get("status", {}).get("conditions") for each in pods]
            return all(conditions) and "(requested 5, free 4)" in conditions[2][0]["message"]

        await wait_until_true(pods_have_fit_errors)
        scheduled = (await pod(server, "g-t-2"))["status"]["conditions"][0]
        assert (scheduled["type"], scheduled["status"]) == ("PodScheduled", "False")
        assert scheduled["reason"] == "Unschedulable"
        assert "Insufficient cpu (requested 5, free 4)" in scheduled["message"]
        await add_node(server, "b", cpu="14")
        await wait_bound(server, *(f"g-t-{i}" for i in range(4)))
        await wait_for_phase(server, "g", "Running")
    assert any(each[2:4] == ("Warning", "FailedScheduling") for each in recorder.events)
    assert any(each[0] == "PodGroup" and each[3] == "Unschedulable" for each in recorder.events)


async def test_podgroup_rejected_by_enqueue_is_unschedulable_without_pods(
    server: Server,
) -> None:
    """Scenario gang-too-big; Volcano only records an event."""
    async with scheduling(server):
        await add_node(server, "a")
        await add_group(server, "g", 3, minResources={"cpu": "180"})
        await wait_for_phase(server, "g", "Pending")
        await wait_group_message(
            server,
            "g",
            "3 of 3 pods cannot be scheduled: it needs 180 cpu, more than the 8 of all nodes "
            "together: resource in cluster is overused: "
            "insufficient cpu (requested 180, free 9.6, overcommit factor 1.2)",
        )


async def test_waiting_gang_is_explained_in_an_annotation_until_it_starts(server: Server) -> None:
    async def explanation(name: str = "g") -> Any:
        annotations = (await group(server, name))["metadata"].get("annotations", {})
        return json.loads(annotations.get(WHY, "null"))

    async with scheduling(server):
        await add_node(server, "a", cpu="3")
        await add_group(server, "g", 2)
        for i in range(2):
            await add_pod(server, f"g-t-{i}", "g", cpu="2")

        async def is_explained() -> bool:
            return bool(((await explanation()) or {}).get("stage") == "nodes")

        await wait_until_true(is_explained)
        found = await explanation()
        conditions = (await group(server, "g"))["status"]["conditions"]
        assert found["message"] == conditions[0]["message"]
        lacks = {"cpu": {"requested": "2", "free": "1"}}
        assert found["nodes"]["nearest"] == {"name": "a", "lacks": lacks}
        assert found["queue"] == {"name": "default", "position": 1, "waiting": 1}
        version = (await group(server, "g"))["metadata"]["resourceVersion"]
    async with scheduling(server):  # again, with a gang behind it
        await add_group(server, "h", 1)
        await add_pod(server, "h-t-0", "h", cpu="4")

        async def is_second() -> bool:
            return bool(((await explanation("h")) or {}).get("queue", {}).get("position") == 2)

        await wait_until_true(is_second)
        assert (await group(server, "g"))["metadata"]["resourceVersion"] == version
        await add_node(server, "b", cpu="3")
        await wait_bound(server, "g-t-0", "g-t-1")

        async def is_removed() -> bool:
            return await explanation() is None

        await wait_until_true(is_removed)


async def test_starting_gang_needs_few_writes_of_its_podgroup(server: Server) -> None:
    """Phases, and counts of several pods together: not a write for each pod.

    The number of writes depends on the write interval and the time that the pods need to start.
    """
    settings, started = SchedulerSettings(), time.monotonic()
    async with scheduling(server, settings=settings):
        await add_node(server, "a", cpu="32")
        path = PODGROUPS.path("default") + "?watch=true"
        async with server.watch(path) as lines:
            await add_group(server, "g", 10)
            await asyncio.gather(*(add_pod(server, f"g-{i}", "g") for i in range(10)))
            await wait_bound(server, *(f"g-{i}" for i in range(10)))
            await asyncio.gather(*(phase_of_pod(server, f"g-{i}", "Running") for i in range(10)))
            seen = [await lines.next()]
            while seen[-1]["object"].get("status", {}).get("running") != 10:
                seen.append(await lines.next())
    phases = [each["object"].get("status", {}).get("phase") for each in seen]
    assert phases[-1] == "Running"
    intervals = (time.monotonic() - started) / settings.write_intervals.podgroup
    assert len(seen) <= 1 + 4 + intervals, phases


async def test_pods_of_the_default_scheduler_are_bound_without_a_podgroup(
    server: Server,
) -> None:
    async with scheduling(server):
        await add_node(server, "a")
        await add_pod(server, "p", scheduler="default-scheduler")
        assert await wait_bound(server, "p") == ["a"]


async def wait_allocated(server: Server, expected: Json) -> None:
    async def is_expected() -> bool:
        found = await server.get(QUEUES.path("", "default"))
        return bool(found["status"].get("allocated") == expected)

    await wait_until_true(is_expected)


async def test_allocated_of_a_queue_is_written_and_reset(server: Server) -> None:
    """Scenario queue-capability: an empty queue has CPU and memory only."""
    async with scheduling(server):
        await wait_allocated(server, {"cpu": "0", "memory": "0"})
        await add_node(server, "a")
        await add_group(server, "g", 1)
        await add_pod(server, "g-0", "g", cpu="600m")
        running = {"cpu": "600m", "memory": "64Mi", "pods": "1"}
        await wait_allocated(server, running)
        # A write by another client, such as a delayed one of a former leader, is corrected.
        other = {"status": {"allocated": {"cpu": "7"}}}
        await merge_patch(server, QUEUES.path("", "default", "status"), other)
        await wait_allocated(server, running)
        await wait_bound(server, "g-0")
        await phase_of_pod(server, "g-0", "Succeeded")
        await wait_allocated(server, {"cpu": "0", "memory": "0"})
        found = await server.get(QUEUES.path("", "default"))
        assert found["status"]["state"] == "Open"


async def test_scheduler_schedules_what_exists_when_it_starts(server: Server) -> None:
    await add_node(server, "a", cpu="2")
    await add_group(server, "g", 1)
    await add_pod(server, "g-0", "g", cpu="2")
    async with scheduling(server):
        await wait_bound(server, "g-0")
    await add_group(server, "h", 1)
    await add_pod(server, "h-0", "h", cpu="2")
    async with scheduling(server):
        found = await wait_for_phase(server, "h", "Inqueue")
        await wait_until_true(lambda: has_condition(server, "h"))
        assert not (await pod(server, "h-0"))["spec"].get("nodeName")
        found = await group(server, "h")
    assert "Insufficient cpu (requested 2, free 0)" in found["status"]["conditions"][0]["message"]


async def has_condition(server: Server, name: str) -> bool:
    return bool((await group(server, name)).get("status", {}).get("conditions"))


async def test_large_cycle_runs_in_a_thread(
    server: Server,
) -> None:
    settings = SchedulerSettings(inline_cycle_max_tasks=3, max_bindings_in_flight=4)
    async with scheduling(server, settings=settings):
        await add_group(server, "g", 20)
        await asyncio.gather(*(add_pod(server, f"g-{i}", "g") for i in range(20)))
        await add_node(server, "a", cpu="32")
        await wait_bound(server, *(f"g-{i}" for i in range(20)))


async def test_binding_with_the_uid_of_a_deleted_pod_is_rejected(server: Server) -> None:
    """INV-OW-2."""
    await add_node(server, "a")
    await add_pod(server, "p", scheduler="none")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "default", "uid": "deleted-uid"},
        "target": {"kind": "Node", "name": "a"},
    }
    response = await server.request("POST", PODS.path("default", "p", "binding"), body)
    assert response.status == 409
    assert not (await pod(server, "p"))["spec"].get("nodeName")


async def test_pod_has_its_queue_gate_until_its_queue_has_capacity(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """A cluster autoscaler ignores gated pods."""
    annotations = {QUEUE_GATE: "true"}
    rules = [each for each in webhooks(AdmissionSettings(queue_gates=True)) if "/pods" in each.path]
    async with servers.start(tmp_path, webhooks=rules, crds=crds.load()) as server:
        await open_queue(server, capability={"cpu": "2"})
        async with scheduling(server, settings=replace(FREQUENT_WRITES, queue_gates=True)):
            await add_group(server, "g", 1)
            await add_group(server, "h", 1)
            await asyncio.gather(*(add_node(server, name, cpu="1") for name in ("a", "b", "c")))
            await add_pod(server, "g-0", "g", cpu="2", annotations=annotations)

            async def ungated() -> bool:
                return "schedulingGates" not in (await pod(server, "g-0"))["spec"]

            async def over_quota() -> bool:
                conditions = (await group(server, "h")).get("status", {}).get("conditions") or [{}]
                return "queue resource quota insufficient" in conditions[0].get("message", "")

            await wait_until_true(ungated)
            # It fits no node.
            await wait_until_true(lambda: has_condition(server, "g"))
            await add_pod(server, "h-0", "h", cpu="2", annotations=annotations)
            await wait_until_true(over_quota)
            found = await pod(server, "h-0")
            assert found["spec"]["schedulingGates"] == [{"name": QUEUE_GATE}]
            assert [each["reason"] for each in found["status"]["conditions"]] == ["SchedulingGated"]
            await add_node(server, "large", cpu="8")
            await wait_bound(server, "g-0")
            await phase_of_pod(server, "g-0", "Succeeded")
            await wait_bound(server, "h-0")


class SlowConditionClient(Client):
    """A client whose writes of PodScheduled conditions are in flight until released."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials, user_agent="test")
        self.in_flight, self.released = asyncio.Event(), asyncio.Event()
        self.bindings = 0

    async def _send(self, method: str, path: str, *rest: Any) -> bytes:
        if method == "PATCH" and path.endswith("/pods/p/status"):
            self.in_flight.set()
            await self.released.wait()
        self.bindings += path.endswith("/binding")
        return await super()._send(method, path, *rest)


async def test_binding_waits_for_the_write_of_a_condition_of_its_pod(server: Server) -> None:
    """Else the write would change the resourceVersion, and the binding would be rejected."""
    recorder = FakeRecorder()
    async with SlowConditionClient(server.credentials_of("scheduler")) as client:
        async with running(Scheduler(client, settings=FREQUENT_WRITES, recorder=recorder)):
            await add_group(server, "g", 1)
            await add_pod(server, "p", "g")
            await client.in_flight.wait()
            await add_node(server, "a")
            # The pod is allocated; the condition Scheduled follows its binding.
            await wait_allocated(server, {"cpu": "1", "memory": "64Mi", "pods": "1"})
            assert client.bindings == 0
            client.released.set()
            assert await wait_bound(server, "p") == ["a"]
        assert client.bindings == 1
    assert not any("rejected" in message for *_, message in recorder.events)


async def test_pod_bound_by_another_client_is_kept(server: Server) -> None:
    async with scheduling(server):
        await add_group(server, "g", 2)
        await add_pod(server, "g-0", "g")
        await add_node(server, "a")
        await add_node(server, "b")
        body = {"metadata": {"name": "g-0"}, "target": {"kind": "Node", "name": "b"}}
        path = PODS.path("default", "g-0", "binding")
        binding = {"apiVersion": "v1", "kind": "Binding"} | body
        assert (await server.request("POST", path, binding)).status == 201
        await add_pod(server, "g-1", "g")
        assert (await wait_bound(server, "g-0", "g-1"))[0] == "b"
        await wait_for_phase(server, "g", "Running")


async def test_pods_wait_for_their_pvc_and_have_a_fit_error(server: Server) -> None:
    pvcs = PERSISTENTVOLUMECLAIMS.path("default")
    await add_node(server, "n")
    async with scheduling(server):
        await add_group(server, "g", 1)
        await add_pod(server, "p", "g", pvc="c")

        async def has_fit_error(message: str) -> bool:
            conditions = (await pod(server, "p"))["status"].get("conditions") or ()
            return any(
                (each["type"], each["reason"]) == ("PodScheduled", "Unschedulable")
                and message in each["message"]
                for each in conditions
            )

        await wait_until_true(lambda: has_fit_error('persistentvolumeclaim "c" not found'))
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": "c"}, "spec": {**spec, "storageClassName": "none"}}
        await server.create(pvcs, body)
        await wait_until_true(lambda: has_fit_error('persistentvolumeclaim "c" is not bound'))
        conditions = (await group(server, "g"))["status"]["conditions"]
        assert any('claim "c"' in each.get("message", "") for each in conditions)
        await merge_patch(server, f"{pvcs}/c", {"spec": {"volumeName": "v"}})
        await merge_patch(server, f"{pvcs}/c/status", {"status": {"phase": "Bound"}})

        async def scheduled() -> bool:
            return bool((await pod(server, "p"))["spec"].get("nodeName") == "n")

        await wait_until_true(scheduled)
