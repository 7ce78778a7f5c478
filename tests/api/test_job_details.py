"""Pods, events, timeline and wait of a job over REST, on both API servers."""

import uuid
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from support.agent import container
from support.job_pods import RestSession, in_own_namespace
from support.polling import wait_until_true

from batholith.model.names import BATCH_JOBS, EVENTS, JOBS, PODGROUPS, PODS, QUEUES, WHY
from batholith.store.history import HistoryStore, Timeline

Json = dict[str, Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def rest(shared: RestSession) -> RestSession:
    return await in_own_namespace(shared)


async def record(
    rest: RestSession, kind: str, name: str, uid: str, reason: str, *, at: str = "", **more: Any
) -> None:
    """An Event as a recorder writes it."""
    at = at or "2099-01-01T00:00:00Z"
    about = {"kind": kind, "name": name, "uid": uid, "namespace": rest.cluster.namespace}
    body = {
        "metadata": {"name": f"{name}.{uuid.uuid4().hex[:8]}"},
        "involvedObject": about,
        "type": "Normal",
        "reason": reason,
        "message": f"about {name}",
        "source": {"component": "tests"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 2,
        **more,
    }
    await rest.cluster.create(body, EVENTS)


async def test_pods_of_a_job(rest: RestSession) -> None:
    await rest.create_job(tasks={"b": 1, "a": 2})
    await rest.create_job("other", tasks={"a": 1})
    sidecars = [container("true", name="main"), container("true", name="side")]
    await rest.create_pod("a", 0, *sidecars, run=False, initContainers=[container(name="init")])
    await rest.create_pod("a", 1, container("true"), run=False)
    await rest.create_pod("b", 0, container("true"), run=False)
    await rest.create_pod("a", 0, container("true"), job="other", run=False)
    failed = {"exitCode": 7, "reason": "Error", "finishedAt": "2026-01-01T00:00:09Z"}
    status = {
        "phase": "Failed",
        "startTime": "2026-01-01T00:00:01Z",
        "podIP": "10.0.0.9",
        "containerStatuses": [
            {
                "name": "main",
                "ready": False,
                "restartCount": 3,
                "image": "i",
                "imageID": "",
                "state": {"terminated": failed},
            }
        ],
    }
    await rest.set_pod_status("train-a-0", status)
    waiting = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes",
        }
    ]
    await rest.set_pod_status("train-b-0", {"conditions": waiting})
    path = f"{rest.root}/jobs/train/pods"
    _, body = await rest.get(path)
    first, second, third = body["items"]
    assert [each["name"] for each in body["items"]] == ["train-a-0", "train-a-1", "train-b-0"]
    shown = {key: first[key] for key in first if key not in ("uid", "created_at")}
    assert shown == {
        "name": "train-a-0",
        "task": "a",
        "index": 0,
        "phase": "Failed",
        "ready": False,
        "restarts": 3,
        "node": "",
        "ip": "10.0.0.9",
        "reason": "Error",
        "message": "",
        "scheduled_at": None,
        "started_at": "2026-01-01T00:00:01Z",
        "finished_at": "2026-01-01T00:00:09Z",
        "runs": [],
        "exit_code": 7,
        "containers": ["main", "side"],
        "init_containers": ["init"],
        "deleting": False,
    }
    assert (second["phase"], second["exit_code"]) == ("Pending", None)
    assert (third["reason"], third["message"]) == ("Unschedulable", "0/1 nodes")
    _, body = await rest.get(f"{path}?task=a&phase=Pending")
    assert [each["name"] for each in body["items"]] == ["train-a-1"]
    assert (await rest.get(f"{rest.root}/jobs/none/pods"))[0] == 404


async def test_a_pod_has_the_runs_of_its_containers_and_the_time_of_its_node(
    rest: RestSession,
) -> None:
    await rest.create_job()
    await rest.create_pod("w", 0, container("true"), run=False)
    first = {
        "exitCode": 3,
        "startedAt": "2026-01-01T00:00:02Z",
        "finishedAt": "2026-01-01T00:00:04Z",
    }
    status = {
        "phase": "Running",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "True",
                "lastTransitionTime": "2026-01-01T00:00:01Z",
            }
        ],
        "containerStatuses": [
            {
                "name": "main",
                "ready": True,
                "restartCount": 1,
                "image": "i",
                "imageID": "",
                "lastState": {"terminated": first},
                "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}},
            }
        ],
    }
    await rest.set_pod_status("train-w-0", status)
    _, body = await rest.get(f"{rest.root}/jobs/train/pods")
    (pod,) = body["items"]
    assert pod["scheduled_at"] == "2026-01-01T00:00:01Z"
    assert pod["created_at"]
    assert pod["runs"] == [
        {
            "container": "main",
            "started_at": "2026-01-01T00:00:02Z",
            "finished_at": "2026-01-01T00:00:04Z",
            "exit_code": 3,
        },
        {
            "container": "main",
            "started_at": "2026-01-01T00:00:09Z",
            "finished_at": None,
            "exit_code": None,
        },
    ]


async def test_pods_are_listed_in_pages(rest: RestSession) -> None:
    await rest.create_job(tasks={"w": 5})
    for index in range(5):
        await rest.create_pod("w", index, container("true"), run=False)
    found, cursor = [], ""
    while True:
        status, body = await rest.get(f"{rest.root}/jobs/train/pods?limit=2{cursor}")
        assert status == 200, body
        found += [each["name"] for each in body["items"]]
        if body["next_cursor"] is None:
            break
        cursor = f"&cursor={body['next_cursor']}"
    assert found == [f"train-w-{index}" for index in range(5)]
    status, body = await rest.get(f"{rest.root}/jobs/train/pods?cursor=none")
    assert (status, body["errors"][0]["field"]) == (422, "cursor")


@pytest.mark.parametrize("replicas", [1, 20])
async def test_events_of_a_job(rest: RestSession, replicas: int) -> None:
    """With field selectors for few objects, from all of the namespace for many."""
    await rest.create_job(tasks={"w": replicas})
    uid = rest.job_uids["train"]
    pod = await rest.create_pod("w", 0, container("true"), run=False)
    owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "train", "uid": uid}
    meta = {"name": "train-g", "ownerReferences": [{**owner, "controller": True}]}
    group = await rest.cluster.create({"metadata": meta, "spec": {"minMember": 1}}, PODGROUPS)
    await rest.wait_podgroup()
    await record(rest, "Job", "train", uid, "Mine", at="2099-01-01T00:00:03Z")
    await record(rest, "Job", "train", "earlier", "Foreign")
    await record(rest, "PodGroup", "train-g", group["metadata"]["uid"], "Gang")
    await record(rest, "Pod", "train-w-0", pod["metadata"]["uid"], "Own", at="2099-01-01T00:00:02Z")
    await record(rest, "Pod", "train-w-0", "replaced", "Before", at="2099-01-01T00:00:01Z")
    await record(rest, "Pod", "train-w-0", "ancient", "Ancient", at="2001-01-01T00:00:00Z")
    await record(rest, "Pod", "other-w-0", "x", "Foreign")
    newer: Json = {
        "lastTimestamp": None,
        "firstTimestamp": None,
        "count": None,
        "source": {},
        "eventTime": "2099-01-01T00:00:04.000001Z",
        "reportingComponent": "new",
        "reportingInstance": "new-1",
        "action": "Run",
        "series": {"count": 5, "lastObservedTime": "2099-01-01T00:00:05.000002Z"},
    }
    await record(rest, "Pod", "train-w-0", pod["metadata"]["uid"], "Series", **newer)
    path = f"{rest.root}/jobs/train/events"
    status, body = await rest.get(path)
    assert status == 200, body
    reasons = [each["reason"] for each in body["items"]]
    assert (reasons, body["total"]) == (["Gang", "Before", "Own", "Mine", "Series"], 5)
    assert body["items"][-1] == {
        "type": "Normal",
        "reason": "Series",
        "message": "about train-w-0",
        "count": 5,
        "first_at": "2099-01-01T00:00:04.000001Z",
        "last_at": "2099-01-01T00:00:05.000002Z",
        "object": {"kind": "Pod", "name": "train-w-0"},
        "source": "new",
    }
    _, body = await rest.get(f"{path}?limit=2")
    assert [each["reason"] for each in body["items"]] == ["Mine", "Series"]
    assert body["total"] == 5
    assert (await rest.get(f"{rest.root}/jobs/none/events"))[0] == 404


async def test_timeline_of_a_job(rest: RestSession) -> None:
    await rest.create_job()
    times = [f"2026-01-02T03:04:0{second}Z" for second in range(3)]
    phases = ("Pending", "Running", "Failed")
    status = {
        "state": {"phase": "Failed", "reason": "PodFailed", "lastTransitionTime": times[2]},
        "conditions": [
            {"status": phase, "lastTransitionTime": at}
            for phase, at in zip(phases, times, strict=True)
        ],
        "taskStatusCount": {"w": {"phase": {"Failed": 1, "Succeeded": 1}}},
    }
    await rest.set_job_status(status)
    _, body = await rest.get(f"{rest.root}/jobs/train/timeline")
    expected = zip(phases, times, (*times[1:], None), ("", "", "PodFailed"), strict=True)
    assert body == {
        "phases": [
            {
                "phase": phase,
                "entered_at": entered,
                "left_at": left,
                "reason": reason,
                "message": "",
            }
            for phase, entered, left, reason in expected
        ],
        "pods": {"Failed": 1, "Succeeded": 1},
        "recorded": False,
        "incomplete_reason": "",
    }
    assert (await rest.get(f"{rest.root}/jobs/none/timeline"))[0] == 404


async def test_timeline_of_a_recorded_job(
    rest: RestSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history has each entry of a phase, and jobs that were deleted."""
    await rest.create_job()
    phases = ("Pending", "Running", "Restarting", "Running")
    recorded = {
        "job": {
            "uid": rest.job_uids["train"],
            "kind": "jobs",
            "namespace": rest.cluster.namespace,
            "name": "train",
            "queue": "default",
            "user": "ann",
            "phase": "Running",
            "reason": "",
            "message": "",
            "labels": {},
            "tasks": [{"name": "w", "replicas": 2, "phases": {"Succeeded": 2}}],
            "created_at": "2026-01-01T00:00:00Z",
            "started_at": None,
            "finished_at": None,
            "deleted_at": None,
            "complete": True,
            "incomplete_reason": "",
        },
        "phases": [
            {
                "phase": phase,
                "entered_at": f"2026-01-01T00:00:0{at}Z",
                "left_at": None,
                "reason": "",
                "message": "",
            }
            for at, phase in enumerate(phases)
        ],
    }

    async def timeline(store: HistoryStore, namespace: str, kind: str, name: str) -> Timeline:
        assert (namespace, kind, name) == (rest.cluster.namespace, "jobs", "train")
        return msgspec.convert(recorded, Timeline)

    async def is_recorded() -> tuple[bool, int]:
        _, body = await rest.get(f"{rest.root}/jobs/train/timeline")
        return body["recorded"], len(body["phases"])

    monkeypatch.setattr(HistoryStore, "timeline", timeline)
    assert await is_recorded() == (False, 1), "the job is Pending: the history lags behind"
    await rest.set_job_phase("Running")
    assert await is_recorded() == (True, 4)
    await rest.cluster.client.delete(JOBS, "train", namespace=rest.cluster.namespace)
    assert await is_recorded() == (True, 4)
    _, body = await rest.get(f"{rest.root}/jobs/train/timeline")
    assert body["pods"] == {"Succeeded": 2}


async def test_why_a_job_waits(rest: RestSession) -> None:
    await rest.create_job()
    uid = rest.job_uids["train"]
    path = f"{rest.root}/jobs/train/why"
    _, body = await rest.get(path)
    assert (body["waiting"], body["reason"]) == (True, "NoPodGroup")
    owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "train", "uid": uid}
    meta = {"name": "train-g", "ownerReferences": [{**owner, "controller": True}]}
    await rest.cluster.create({"metadata": meta, "spec": {"minMember": 2}}, PODGROUPS)
    await rest.wait_podgroup()
    _, body = await rest.get(path)
    assert (body["waiting"], body["reason"], body["conditions"]) == (True, "NotReported", [])
    why = (
        '{"stage":"nodes","reason":"NotEnoughResources",'
        '"message":"2 of 2 pods cannot be scheduled",'
        '"queue":{"name":"default","position":3,"waiting":12},'
        '"pods":{"needed":2,"existing":2,"ready":0,"fitting":0},"pod":"train-w-0",'
        '"nodes":{"total":1,"excluded":{"Insufficient cpu":1},'
        '"nearest":{"name":"n1","lacks":{"cpu":{"requested":"5","free":"4"}}}}}'
    )
    condition = {
        "type": "Unschedulable",
        "status": "True",
        "reason": "NotEnoughResources",
        "message": "2 of 2 pods cannot be scheduled",
        "transitionID": "1",
        "lastTransitionTime": "2026-01-01T00:00:01Z",
    }
    await rest.cluster.client.patch(
        PODGROUPS,
        "train-g",
        {
            "metadata": {"annotations": {WHY: why}},
            "status": {"phase": "Inqueue", "conditions": [condition]},
        },
        namespace=rest.cluster.namespace,
    )
    _, body = await rest.get(path)
    assert body == {
        "waiting": True,
        "reason": "Unschedulable",
        "summary": "2 of 2 pods cannot be scheduled",
        "cause": "not enough cpu is free (1 of 1 nodes): it requests 5, most free 4",
        "next_step": "wait until other jobs have ended, or ask for less",
        "failed_pod": "",
        "last_lines": [],
        "conditions": [
            {
                "type": "Unschedulable",
                "status": "True",
                "reason": "NotEnoughResources",
                "message": "2 of 2 pods cannot be scheduled",
                "at": "2026-01-01T00:00:01Z",
            }
        ],
        "explanation": {
            "stage": "nodes",
            "reason": "NotEnoughResources",
            "message": "2 of 2 pods cannot be scheduled",
            "queue": {"name": "default", "position": 3, "waiting": 12},
            "pods": {"needed": 2, "existing": 2, "ready": 0, "fitting": 0},
            "limits": {},
            "pod": "train-w-0",
            "nodes": {
                "total": 1,
                "excluded": {"Insufficient cpu": 1},
                "nearest": {
                    "name": "n1",
                    "lacks": {"cpu": {"requested": "5", "free": "4"}},
                    "reason": "",
                },
            },
            "start": None,
            "budget": None,
        },
        "competition": None,
        "competition_error": body["competition_error"],
    }
    assert "no scheduler" in body["competition_error"]
    await rest.set_job_phase("Completed")
    _, body = await rest.get(path)
    assert (body["waiting"], body["reason"], body["explanation"]) == (False, "Finished", None)
    assert (await rest.get(f"{rest.root}/jobs/none/why"))[0] == 404


async def test_a_closed_queue_is_the_reason(rest: RestSession) -> None:
    name = f"q-{rest.cluster.namespace}"
    assert (await rest.call("POST", "/v1/queues", {"name": name}))[0] == 201
    await rest.set_queue_state(name, "Open")
    await rest.create_job(queue=name)
    await rest.set_queue_state(name, "Closed")

    async def is_closed() -> bool:
        _, body = await rest.get(f"{rest.root}/jobs/train/why")
        return bool(body["reason"] == "QueueNotOpen")

    await wait_until_true(is_closed)
    _, body = await rest.get(f"{rest.root}/jobs/train/why")
    assert body["summary"] == f"queue {name!r} is Closed, not Open"
    await rest.cluster.client.delete(QUEUES, name)


async def test_details_of_a_job_of_batch_v1(rest: RestSession) -> None:
    """A job of another kind, with pods that are scheduled one by one."""
    template = {"spec": {"containers": [container("true")], "restartPolicy": "Never"}}
    status, created = await rest.call(
        "POST",
        f"{rest.root}/batchjobs",
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "plain"},
            "spec": {"template": template, "suspend": True},
        },
    )
    assert status == 201, created
    path = f"{rest.root}/batchjobs/plain"
    assert (await rest.get(f"{path}/pods"))[1]["items"] == []
    assert (await rest.get(f"{path}/events"))[0] == 200
    assert await rest.text(f"{path}/logs") == ""
    _, body = await rest.get(f"{path}/timeline")
    assert body["phases"][-1]["phase"] == "Suspended"
    _, body = await rest.get(f"{path}/why")
    assert (body["waiting"], body["reason"]) == (True, "Suspended")


async def test_why_a_failed_job_of_batch_v1_failed(rest: RestSession) -> None:
    """The condition has the text of kube-controller-manager; the reason is in the pods."""
    template = {"spec": {"containers": [container("true")], "restartPolicy": "Never"}}
    spec = {"template": template, "managedBy": "example.com/none"}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bad"}, "spec": spec}
    status, created = await rest.call("POST", f"{rest.root}/batchjobs", manifest)
    assert status == 201, created
    client, namespace = rest.cluster.client, rest.cluster.namespace
    job = await client.get(BATCH_JOBS, "bad", namespace=namespace, view=dict)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "bad", "controller": True}
    labels = job["spec"]["template"]["metadata"]["labels"]
    meta = {"name": "bad-x", "labels": labels}
    meta["ownerReferences"] = [owner | {"uid": job["metadata"]["uid"]}]
    await client.create(PODS, {"metadata": meta, **template}, namespace=namespace)
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": None}}
    container_status = {"name": "c", "state": ended, "image": "", "imageID": "", "ready": False}
    pod_status = {"phase": "Failed", "containerStatuses": [container_status | {"restartCount": 0}]}
    await client.patch(
        PODS, "bad-x", {"status": pod_status}, namespace=namespace, subresource="status"
    )
    text = "Job has reached the specified backoff limit"
    times = {"lastTransitionTime": job["metadata"]["creationTimestamp"]}
    failed = {"status": "True", "reason": "BackoffLimitExceeded", "message": text} | times
    conditions = [failed | {"type": "FailureTarget"}, failed | {"type": "Failed"}]
    started = {"startTime": job["metadata"]["creationTimestamp"], "conditions": conditions}
    await client.patch(
        BATCH_JOBS, "bad", {"status": started}, namespace=namespace, subresource="status"
    )
    _, body = await rest.get(f"{rest.root}/batchjobs/bad/why")
    cause = "bad-x: OOMKilled (exit code 137)"
    assert body["summary"] == f"the job has finished: Failed: {text}: {cause}"
