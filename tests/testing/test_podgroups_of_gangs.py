"""Jobs of one pod without a PodGroup, in a cluster with all components."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from batholith.job_ctrl.creation import described_podgroups
from batholith.local.agent.settings import SimulationSettings
from batholith.model.names import (
    COMMANDS,
    EVENTS,
    JOBS,
    PODGROUP,
    PODGROUPS,
    PODGROUPS_OF_JOB,
    PODS,
    PRIORITYCLASSES,
    QUEUE_GATE,
    QUEUES,
    WHY,
)
from batholith.testing import Cluster, RequestMatcher

Json = dict[str, Any]
CLAIM = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "1Mi"}},
}
EPHEMERAL = {"volumeClaimTemplate": {"spec": CLAIM}}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=2, podgroups="gangs") as started:
        yield started


def job(name: str, *, replicas: int = 1, cpu: str = "1", **more: Any) -> Json:
    container = {
        "name": "main",
        "image": "busybox",
        "command": more.pop("command", ["sleep", "600"]),
        "resources": {"requests": {"cpu": cpu}},
    }
    template = {
        "metadata": more.pop("template", {}),
        "spec": {"containers": [container], "restartPolicy": "Never", **more.pop("pod", {})},
    }
    task = {"name": "t", "replicas": replicas, "template": template}
    metadata = {"name": name, "annotations": more.pop("annotations", {})}
    spec = {"schedulerName": "volcano", "minAvailable": replicas, "tasks": [task], **more}
    return {"apiVersion": JOBS.api_version, "kind": "Job", "metadata": metadata, "spec": spec}


def groups(cluster: Cluster) -> list[str]:
    """The names of the jobs that have a PodGroup."""
    found = cluster.objects(PODGROUPS).values()
    return sorted(each["metadata"]["ownerReferences"][0]["name"] for each in found)


def stored(cluster: Cluster, name: str) -> Json:
    return cluster.objects(JOBS)[f"default/{name}"]


def writes(cluster: Cluster) -> Counter[str]:
    """The writes of controllers and scheduler for pods, jobs and PodGroups."""
    return Counter(
        f"{each.verb} {each.resource}{'/' if each.subresource else ''}{each.subresource}"
        for each in cluster.faults.requests
        if each.user_agent.removeprefix("batholith-") in ("controllers", "scheduler")
        and each.verb in ("create", "update", "patch", "delete")
        and each.resource in ("pods", "jobs", "podgroups")
    )


async def running(cluster: Cluster, *names: str) -> None:
    for name in names:
        await cluster.wait_for_phase(JOBS, name, "Running")


def queue_counts(cluster: Cluster, **wanted: int) -> Callable[[], bool]:
    """Whether the default queue has these counts, and no others."""

    def holds() -> bool:
        status = cluster.objects(QUEUES)["default"]["status"]
        counts = ("pending", "inqueue", "running", "unknown", "completed")
        return {name: status[name] for name in counts if status.get(name)} == wanted

    return holds


async def test_a_job_of_one_pod_completes_without_a_podgroup(cluster: Cluster) -> None:
    await cluster.create(JOBS, job("j", command=["sleep", "0.1"]))
    await cluster.wait_for_phase(JOBS, "j", "Completed")
    assert not groups(cluster)
    found = writes(cluster)
    assert found["create pods"] == found["create pods/binding"] == 1
    assert not found.keys() & {"create podgroups", "patch podgroups", "patch pods/status"}


KEPT = {
    "two-pods": job("two-pods", replicas=2),
    "plugin": job("plugin", plugins={"env": []}),
    "annotated": job("annotated", annotations={PODGROUPS_OF_JOB: "all"}),
    "large": job("large", annotations={"example.com/large": "x" * 9000}),
    "volume": job("volume", volumes=[{"mountPath": "/d", "volumeClaim": CLAIM}]),
    "claim": job("claim", pod={"volumes": [{"name": "v", "ephemeral": EPHEMERAL}]}),
    "foreign": job("foreign", pod={"schedulerName": "default-scheduler"}),
    "on-node": job("on-node", pod={"nodeName": "sim-1"}),
    "gate": job("gate", pod={"schedulingGates": [{"name": "example.com/gate"}]}),
    "queue-gate": job("queue-gate", template={"annotations": {QUEUE_GATE: "true"}}),
    "topology": job("topology", networkTopology={"mode": "soft"}),
}


async def test_what_may_need_a_podgroup_gets_one(cluster: Cluster) -> None:
    for each in KEPT.values():
        await cluster.create(JOBS, each)
    await cluster.wait_until(lambda: groups(cluster) == sorted(KEPT))
    await cluster.create(JOBS, job("other"))
    await running(cluster, "other")
    assert groups(cluster) == sorted(KEPT)
    described = [
        pod["metadata"]["name"]
        for pod in cluster.objects(PODS).values()
        if PODGROUP in pod["metadata"]["annotations"]
    ]
    assert described == ["other-t-0"]


async def test_a_description_in_the_template_of_a_gang_is_dropped(cluster: Cluster) -> None:
    forged = json.dumps({"spec": {"minMember": 1}})
    marks = {"annotations": {PODGROUP: forged}, "labels": {PODGROUP: "none"}}
    await cluster.create(JOBS, job("j", replicas=2, template=marks))
    await running(cluster, "j")
    for pod in cluster.pods_of("j"):
        assert PODGROUP not in pod["metadata"]["annotations"]
        assert PODGROUP not in pod["metadata"]["labels"]


async def test_a_job_that_waits_shows_why(cluster: Cluster) -> None:
    await cluster.create(JOBS, job("j", cpu="1000"))
    shown = await cluster.wait_for(
        JOBS, "j", lambda it: it["status"]["state"]["reason"] == "PodGroupPending"
    )
    assert "insufficient cpu" in shown["status"]["state"]["message"]
    pod = cluster.pods_of("j")[0]
    why = json.loads(pod["metadata"]["annotations"][WHY])
    assert (why["stage"], why["queue"]["name"]) == ("quota", "default")
    (condition,) = pod["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert condition["message"] in shown["status"]["state"]["message"]
    events = [
        (each["involvedObject"]["kind"], each["reason"])
        for each in cluster.objects(EVENTS).values()
    ]
    assert ("Pod", "FailedScheduling") in events
    assert ("Job", "PodGroupPending") in events
    assert not any(kind == "PodGroup" for kind, _ in events)


async def test_the_reason_disappears_once_the_job_runs(cluster: Cluster) -> None:
    await cluster.create(JOBS, job("first", cpu="32"))
    await cluster.create(JOBS, job("second", cpu="32"))
    await running(cluster, "first", "second")
    await cluster.create(JOBS, job("third", cpu="16"))
    await cluster.wait_for(JOBS, "third", lambda it: it["status"]["state"]["reason"])
    await cluster.delete(JOBS, "first")
    await running(cluster, "third")
    assert not stored(cluster, "third")["status"]["state"].get("reason")


async def test_a_closed_queue_admits_none_and_closes_when_its_jobs_have_ended(
    cluster: Cluster,
) -> None:
    await cluster.create(QUEUES, {"metadata": {"name": "q"}, "spec": {"weight": 1}})
    await cluster.wait_for_phase(QUEUES, "q", "Open")
    await cluster.create(JOBS, job("j", queue="q"))
    await running(cluster, "j")
    await cluster.wait_for(QUEUES, "q", lambda it: it["status"]["running"] == 1)
    await cluster.create(COMMANDS, command("close", "CloseQueue", "Queue", "q"))
    await cluster.wait_for_phase(QUEUES, "q", "Closing")
    await cluster.set_pod_phase("j-t-0", "Succeeded")
    await cluster.wait_for_phase(QUEUES, "q", "Closed")


def command(name: str, action: str, kind: str, target: str) -> Json:
    group = QUEUES.api_version if kind == "Queue" else JOBS.api_version
    return {
        "metadata": {"name": name, "namespace": "default"},
        "action": action,
        "target": {"apiVersion": group, "kind": kind, "name": target, "uid": ""},
    }


async def test_queues_count_jobs_without_a_podgroup(cluster: Cluster) -> None:
    for number in range(3):
        await cluster.create(JOBS, job(f"j{number}"))
    await cluster.create(JOBS, job("large", cpu="1000"))
    await cluster.create(JOBS, job("gang", replicas=2))
    await cluster.wait_until(queue_counts(cluster, running=4, pending=1))
    await cluster.delete(JOBS, "large")
    for number in range(3):
        await cluster.set_pod_phase(f"j{number}-t-0", "Succeeded")
    await cluster.wait_until(queue_counts(cluster, running=1))


async def test_a_job_scaled_to_two_pods_gets_a_podgroup_and_its_pod_stays(
    cluster: Cluster,
) -> None:
    await cluster.create(JOBS, job("j"))
    await running(cluster, "j")
    uid = cluster.pods_of("j")[0]["metadata"]["uid"]
    await scale(cluster, 2)
    await cluster.wait_for(JOBS, "j", lambda it: it["status"]["running"] == 2)
    await cluster.wait_until(lambda: group_phase(cluster) == "Running")
    assert uid in [pod["metadata"]["uid"] for pod in cluster.pods_of("j")]
    await scale(cluster, 1)
    await cluster.wait_until(lambda: len(cluster.pods_of("j")) == 1)
    assert groups(cluster) == ["j"]
    await cluster.wait_until(queue_counts(cluster, running=1))


async def scale(cluster: Cluster, replicas: int) -> None:
    tasks = stored(cluster, "j")["spec"]["tasks"]
    tasks[0] |= {"replicas": replicas, "minAvailable": replicas}
    await cluster.patch(JOBS, "j", {"spec": {"tasks": tasks, "minAvailable": replicas}})


def group_phase(cluster: Cluster) -> str:
    (group,) = cluster.objects(PODGROUPS).values()
    return str(group.get("status", {}).get("phase", ""))


async def test_another_priority_class_leads_to_a_podgroup(cluster: Cluster) -> None:
    await cluster.create(PRIORITYCLASSES, {"metadata": {"name": "high"}, "value": 1000})
    await cluster.create(JOBS, job("j", cpu="1000"))
    await cluster.wait_until(lambda: cluster.pods_of("j"))
    assert not groups(cluster)
    await cluster.patch(JOBS, "j", {"spec": {"priorityClassName": "high"}})
    await cluster.wait_until(lambda: groups(cluster) == ["j"])


async def test_a_restart_and_an_abort_leave_no_podgroup(cluster: Cluster) -> None:
    await cluster.create(JOBS, job("j"))
    await running(cluster, "j")
    first = cluster.pods_of("j")[0]["metadata"]["uid"]
    await cluster.create(COMMANDS, command("restart", "RestartJob", "Job", "j"))
    await cluster.wait_until(
        lambda: first not in [pod["metadata"]["uid"] for pod in cluster.pods_of("j")]
    )
    await running(cluster, "j")
    await cluster.create(COMMANDS, command("abort", "AbortJob", "Job", "j"))
    await cluster.wait_for_phase(JOBS, "j", "Aborted")
    await cluster.create(COMMANDS, command("resume", "ResumeJob", "Job", "j"))
    await running(cluster, "j")
    assert not groups(cluster)


async def test_a_failed_pod_is_retried_without_a_podgroup(cluster: Cluster) -> None:
    policy = [{"event": "PodFailed", "action": "RestartJob"}]
    await cluster.create(JOBS, job("j", policies=policy))
    await running(cluster, "j")
    await cluster.set_pod_phase("j-t-0", "Failed", exit_code=1)
    await cluster.wait_for(JOBS, "j", lambda it: it["status"]["retryCount"] == 1)
    await running(cluster, "j")
    assert not groups(cluster)


WRITES = [
    RequestMatcher("create", PODS),
    RequestMatcher("create", "pods/binding"),
    RequestMatcher("patch", "jobs.batch.volcano.sh/status"),
]


@pytest.mark.parametrize("write", WRITES, ids=["pod", "binding", "status"])
async def test_a_write_without_a_response_is_carried_out_once(
    cluster: Cluster, write: RequestMatcher
) -> None:
    lost = cluster.faults.lose_response(write)
    await cluster.create(JOBS, job("j"))
    await running(cluster, "j")
    assert lost.injected == 1
    assert len(cluster.pods_of("j")) == 1
    assert not groups(cluster)


# -- restarts and switches: the state outlives the cluster ------------------------------------


async def test_switched_off_every_job_gets_a_podgroup_and_keeps_its_pod(tmp_path: Path) -> None:
    nodes = SimulationSettings(nodes=1)
    async with Cluster(data_dir=tmp_path, nodes=nodes, podgroups="gangs") as cluster:
        await cluster.create(JOBS, job("runs", cpu="10"))
        await cluster.create(JOBS, job("waits", cpu="1000"))
        await running(cluster, "runs")
        await cluster.wait_until(lambda: cluster.pods_of("waits"))
        uids = pod_uids(cluster)
        assert not groups(cluster)
    async with Cluster(data_dir=tmp_path, nodes=nodes) as cluster:
        await cluster.wait_until(lambda: groups(cluster) == ["runs", "waits"])
        await cluster.wait_until(queue_counts(cluster, running=1, pending=1))
        assert pod_uids(cluster) == uids
    async with Cluster(data_dir=tmp_path, nodes=nodes, podgroups="gangs") as cluster:
        await cluster.create(JOBS, job("new"))
        await running(cluster, "new")
        assert groups(cluster) == ["runs", "waits"]
        assert stored(cluster, "runs")["status"]["state"]["phase"] == "Running"


def pod_uids(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["uid"] for pod in cluster.objects(PODS).values()}


async def test_pods_without_a_podgroup_outlive_the_components(tmp_path: Path) -> None:
    nodes = SimulationSettings(nodes=1)
    async with Cluster(data_dir=tmp_path, nodes=nodes, podgroups="gangs") as cluster:
        await cluster.create(JOBS, job("runs", cpu="10"))
        await running(cluster, "runs")
        await cluster.create(JOBS, job("waits", cpu="30"))
        await cluster.wait_for(JOBS, "waits", lambda it: it["status"]["state"]["reason"])
        uids = pod_uids(cluster)
    async with Cluster(data_dir=tmp_path, nodes=nodes, podgroups="gangs") as cluster:
        await cluster.wait_until(queue_counts(cluster, running=1, pending=1))
        await cluster.delete(JOBS, "runs")
        await running(cluster, "waits")
        assert pod_uids(cluster) < uids
        assert not groups(cluster)


async def test_without_a_scheduler_for_such_pods_podgroups_are_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scheduler that does not know the annotation waits for the PodGroup, and so does the pod."""
    monkeypatch.setattr(described_podgroups, "SILENCE", 1.0)
    async with Cluster(scheduler=False, podgroups="gangs") as cluster:
        await cluster.create(JOBS, job("j"))
        await cluster.wait_until(lambda: cluster.pods_of("j"))
        await cluster.wait_until(lambda: groups(cluster) == ["j"])
        assert len(cluster.pods_of("j")) == 1
        await cluster.wait_until(
            lambda: (
                "PodGroupNeeded" in [each["reason"] for each in cluster.objects(EVENTS).values()]
            )
        )


@pytest.mark.parametrize("write", WRITES, ids=["pod", "binding", "status"])
@pytest.mark.parametrize("carried_out", [True, False])
async def test_components_that_end_at_a_write_continue(
    tmp_path: Path, write: RequestMatcher, carried_out: bool
) -> None:
    nodes = SimulationSettings(nodes=1)
    async with Cluster(data_dir=tmp_path, nodes=nodes, podgroups="gangs") as cluster:
        faults = cluster.faults
        held = faults.hold_response(write) if carried_out else faults.hold(write)
        await cluster.create(JOBS, job("j"))
        await held.wait_held()
    async with Cluster(data_dir=tmp_path, nodes=nodes, podgroups="gangs") as cluster:
        await running(cluster, "j")
        await cluster.wait_until(queue_counts(cluster, running=1))
        assert len(cluster.pods_of("j")) == 1
        assert not groups(cluster)


async def test_a_scheduler_that_starts_late_schedules_pods_without_a_podgroup(
    tmp_path: Path,
) -> None:
    async with Cluster(data_dir=tmp_path, scheduler=False, podgroups="gangs") as cluster:
        await cluster.create(JOBS, job("j"))
        await cluster.wait_until(lambda: cluster.pods_of("j"))
    async with Cluster(data_dir=tmp_path, controllers=False) as cluster:
        await cluster.wait_until(lambda: cluster.pods_of("j")[0]["spec"].get("nodeName"))
        assert not groups(cluster)
