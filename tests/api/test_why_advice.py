"""The dominant reason why a job waits or has failed, and the next step: golden texts."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from batholith.api.jobs.kinds import BATCH, VOLCANO
from batholith.api.jobs.pod_views import JobPod
from batholith.api.jobs.waits import WaitView, explain_wait
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.scheduler.plugins import nodegroup, pod_filters, predicates, tdm, usage

NOW = datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
CREATED = "2026-01-01T00:00:00Z"
WAIT = "wait until other jobs have ended, or ask for less"
OTHER_QUEUE = "submit it to another queue; `batholith queues` lists them"


def advice(
    phase: str = "Pending",
    *,
    reason: str = "",
    message: str = "",
    why: dict[str, Any] | None = None,
    group: str | None = "Pending",
    pods: list[dict[str, Any]] | None = None,
    queue: dict[str, Any] | None = None,
    created: str = CREATED,
    counts: dict[str, Any] | None = None,
    **spec: Any,
) -> tuple[str, str]:
    """Cause and next step of a job of four pods, two minutes after its creation."""
    body = {
        "metadata": {"name": "train", "uid": "u", "creationTimestamp": created},
        "spec": {"queue": "gpu", "tasks": [{"name": "w", "replicas": 4}], **spec},
        "status": {
            "state": {"phase": phase, "reason": reason, "message": message},
            **(counts or {}),
        },
    }
    groups = []
    if group is not None:
        annotations = {} if why is None else {"batholith.io/why": json.dumps(why)}
        meta = {"creationTimestamp": created, "annotations": annotations}
        groups = [msgspec.convert({"metadata": meta, "status": {"phase": group}}, PodGroup)]
    found = {"metadata": {"name": "gpu"}, "status": {"state": "Open"}} if queue is None else queue
    view = WaitView(
        job=VOLCANO.summarize(msgspec.convert(body, VOLCANO.view)),
        podgroups=tuple(groups),
        queue=msgspec.convert(found, Queue) if found else None,
        now=NOW,
        pods=[msgspec.convert(pod, JobPod) for pod in pods or ()],
    )
    given = explain_wait(view).advice
    return given.cause, given.next_step


def explained(stage: str, message: str = "", **more: Any) -> tuple[str, str]:
    """The advice for what the scheduler has written."""
    why = {"stage": stage, "message": message, "queue": {"name": "gpu"}, **more}
    return advice(why=why)


def limits(requested: str, limit: str, used: str, **more: Any) -> dict[str, Any]:
    return {"cpu": {"requested": requested, "limit": limit, "used": used, **more}}


def nodes(excluded: dict[str, int], lacks: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "total": 10,
        "excluded": excluded,
        "nearest": {"name": "n1", "lacks": lacks or {}},
    }


# -- waiting ---------------------------------------------------------------------------------------


def test_queue_full() -> None:
    assert explained("quota", limits=limits("8", "64", "60")) == (
        "queue 'gpu' is full: 8 cpu requested, 60 of 64 used",
        WAIT,
    )


def test_queue_full_with_a_planned_start() -> None:
    start = {"earliest": "2026-01-01T10:00:00Z", "basis": "limits"}
    assert explained("quota", limits=limits("8", "64", "60"), start=start)[1] == (
        "wait: it is expected to start at 2026-01-01T10:00:00Z (by limits), or ask for less"
    )
    start["expected"] = "2026-01-01T11:00:00Z"
    assert "11:00:00Z" in explained("quota", limits=limits("8", "64", "60"), start=start)[1]


def test_a_start_that_waits_for_unknown_ends_has_no_time() -> None:
    """The earliest time is that of the estimate, which has passed when it is read."""
    start = {"earliest": "2026-01-01T10:00:00Z", "basis": "unknown"}
    assert explained("quota", limits=limits("8", "64", "60"), start=start)[1] == WAIT


def test_larger_than_the_queue_may_have() -> None:
    assert explained("quota", limits=limits("128", "64", "0")) == (
        "it requests more cpu than queue 'gpu' may have: 128 cpu requested, 0 of 64 used",
        f"ask for less, or {OTHER_QUEUE}",
    )
    message = "4 of 4 pods cannot be scheduled: it needs 128 cpu, more than the capability 64 of"
    assert explained("quota", f"{message} queue 'gpu'; 2 more")[0] == (
        "it needs 128 cpu, more than the capability 64 of queue 'gpu'"
    )


def test_cluster_full() -> None:
    found = explained("quota", limits=limits("8", "64", "60", overcommitFactor=1.2))
    assert found == ("the cluster is full: 8 cpu requested, 60 of 64 used", WAIT)


def test_limit_of_a_queue_above() -> None:
    found = explained("quota", limits=limits("8", "64", "60", queue="research"))
    assert found == ("queue 'research' is full: 8 cpu requested, 60 of 64 used", WAIT)


def test_limit_of_a_user() -> None:
    """A ResourceQuota of the user's namespace."""
    found = explained("quota", limits=limits("8", "16", "12", resourceQuota="alice"))
    assert found == (
        "the ResourceQuota 'alice' of its namespace is used up: 8 cpu requested, 12 of 16 used",
        WAIT,
    )
    found = explained("quota", limits=limits("32", "16", "0", resourceQuota="alice"))
    assert found == (
        "it requests more cpu than the ResourceQuota 'alice' of its namespace permits: "
        "32 cpu requested, 0 of 16 used",
        "ask for less, or for a larger ResourceQuota",
    )


def test_budget_used_up() -> None:
    budget = {"queue": "gpu", "resource": "cpu", "used": "9", "limit": "8", "until": "T"}
    assert explained("quota", "m", budget=budget) == (
        "queue 'gpu' has used its budget of cpu until T",
        f"wait until then, or {OTHER_QUEUE}",
    )


@pytest.mark.parametrize("state", ["Closed", "Closing", "Unknown"])
def test_queue_closed(state: str) -> None:
    queue = {"metadata": {"name": "gpu"}, "status": {"state": state}}
    assert advice(queue=queue) == (
        f"queue 'gpu' is {state}, not Open",
        f"ask for the queue to be opened, or {OTHER_QUEUE}",
    )
    text = f'queue "gpu" takes no jobs: its state is {state}'
    assert explained("queue", text, reason="QueueNotOpen") == (
        text,
        f"ask for the queue to be opened, or {OTHER_QUEUE}",
    )


def test_queue_missing() -> None:
    cause, step = advice(queue={}, group=None)
    assert cause == "queue 'gpu' does not exist"
    assert step.startswith("ask for the queue to be created")


def test_larger_than_all_nodes() -> None:
    message = "4 of 4 pods cannot be scheduled: it needs 200 cpu, more than the 128 of all nodes"
    assert explained("nodes", f"{message} together; w-0: 0/3 nodes are unavailable") == (
        "it needs 200 cpu, more than the 128 of all nodes together",
        "ask for fewer or smaller pods: waiting does not help",
    )
    message = "4 of 4 pods cannot be scheduled: it needs 8 nvidia.com/gpu, and no node has any"
    assert explained("nodes", message)[0] == "it needs 8 nvidia.com/gpu, and no node has any"
    message = "1 of 1 pods cannot be scheduled: it needs 200 cpu, more than the 128 of all nodes"
    assert explained("quota", f"{message} together: resource in cluster is overused") == (
        "it needs 200 cpu, more than the 128 of all nodes together",
        "ask for fewer or smaller pods: waiting does not help",
    )
    together = "all nodes together could not take its pods even if nothing else ran"
    assert explained("nodes", together, nodes=nodes({"Insufficient cpu": 10}))[0] == together


def test_what_excludes_all_nodes_is_the_reason_why_they_could_not_take_the_job_together() -> None:
    together = "all nodes together could not take its pods even if nothing else ran"
    selector = "node(s) didn't match Pod's node affinity/selector"
    cause, step = explained("nodes", together, nodes=nodes({selector: 10}))
    assert (cause, step) == explained("nodes", nodes=nodes({selector: 10}))
    assert "10 of 10 nodes" in cause


def test_larger_than_any_node() -> None:
    text = "all nodes together could not take its pods even if nothing else ran"
    assert explained("nodes", f"4 of 4 pods cannot be scheduled: {text}")[0] == text


def test_nodes_full() -> None:
    found = nodes({"Insufficient cpu": 7, "x": 3}, {"cpu": {"requested": "8", "free": "4"}})
    assert explained("nodes", nodes=found) == (
        "not enough cpu is free (7 of 10 nodes): it requests 8, most free 4",
        WAIT,
    )


TAINT = "node(s) had untolerated taint {team: vision}"


@pytest.mark.parametrize(
    ("reason", "cause", "step"),
    [
        (
            TAINT,
            "nodes have a taint that it does not tolerate (10 of 10 nodes: team: vision)",
            "add a toleration",
        ),
        (
            predicates.NODE_AFFINITY_MISMATCH,
            "no node has the labels that it selects (10 of 10 nodes)",
            "correct its node selector or affinity (`--constraint`)",
        ),
        (
            pod_filters.AFFINITY_MISMATCH,
            "no node has the pods that it must run next to (10 of 10 nodes)",
            "relax its pod affinity",
        ),
        (
            pod_filters.ANTI_AFFINITY_MISMATCH,
            "pods that it must not run next to are on all other nodes (10 of 10 nodes)",
            "wait until they have ended, or relax the anti-affinity (`--exclusive`)",
        ),
        (
            pod_filters.SPREAD_MISMATCH,
            "its pods would not be spread as it demands (10 of 10 nodes)",
            "relax its topology spread constraints",
        ),
        (
            predicates.NO_FREE_PORTS,
            "its host ports are in use (10 of 10 nodes)",
            "use another host port, or none",
        ),
        (
            predicates.VOLUME_AFFINITY_MISMATCH,
            "its volume can be used on other nodes only (10 of 10 nodes)",
            "use another claim, or wait until the nodes of the volume are free",
        ),
        (
            predicates.NODE_UNSCHEDULABLE,
            "nodes are cordoned (10 of 10 nodes)",
            "wait, or ask for them to be uncordoned",
        ),
    ],
)
def test_reasons_that_exclude_nodes(reason: str, cause: str, step: str) -> None:
    assert explained("nodes", nodes=nodes({reason: 10})) == (cause, step)


def test_each_reason_of_the_scheduler_has_a_next_step() -> None:
    reasons = [
        text
        for module in (nodegroup, pod_filters, predicates, tdm, usage)
        for name, text in vars(module).items()
        if name.isupper() and isinstance(text, str) and text.startswith("node")
        if text.startswith(("node(s)", "node has"))
    ]
    assert len(reasons) > 12
    for reason in reasons:
        cause, step = explained("nodes", nodes=nodes({reason: 10}))
        assert step, reason
        assert not cause.startswith("node("), reason


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (
            'persistentvolumeclaim "data" not found',
            "create the claim, or correct its name in the job",
        ),
        (
            'persistentvolumeclaim "data" is not bound',
            "wait until the claim is bound; `kubectl describe pvc` shows why it is not",
        ),
        ('persistentvolumeclaim "data" is being deleted', "use another claim"),
    ],
)
def test_claims(message: str, step: str) -> None:
    assert explained("pod", message, pod="train-w-0") == (message, step)
    assert explained("pod", "x is not supported", pod="train-w-0")[1] == (
        "remove the field that the message names from pod train-w-0"
    )


def test_a_claim_that_the_job_controller_cannot_find() -> None:
    cause = "PVC data does not exist"
    found = advice(reason="PVCError", message=cause)
    assert found == (cause, "create the claim, or correct its name in the job")


def test_depends_on_another_job() -> None:
    cause = "waits for the end of jobs/first"
    found = advice(reason="WaitingToBegin", message=cause, group=None)
    assert found == (cause, "wait, or cancel it and submit it without the dependency")


def test_begins_later() -> None:
    cause = "begins at 2026-01-31T16:00:00Z"
    found = advice(reason="WaitingToBegin", message=cause, group=None)
    assert found == (cause, "wait, or cancel it and submit it without a time to begin")


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (
            'resourceclaim.resource.k8s.io "gpu" not found',
            "create the claim, or correct its name in the job",
        ),
        (
            'pod "default/train-w-0": ResourceClaim not created yet',
            "wait until the claim is created; `kubectl describe pod` shows why it is not",
        ),
        (
            "device class gpus does not exist",
            "create the DeviceClass, or correct its name in the claim",
        ),
        ("resourceclaim in use", "wait until the claim is free, or use another one"),
        ('resourceclaim "gpu" is being deleted', "use another claim"),
    ],
)
def test_claims_of_devices(message: str, step: str) -> None:
    assert explained("pod", message, pod="train-w-0") == (message, step)


def test_gang_incomplete() -> None:
    pods = {"needed": 4, "existing": 3, "ready": 0, "fitting": 3}
    cause, step = explained("gang", "3 of the 4 pods", reason="NotEnoughTasks", pods=pods)
    assert cause == "only 3 of the 4 pods that have to start together exist"
    assert step.startswith("see the reason and the events of the job")


def test_held_by_gates() -> None:
    cause = "train-w-0: held back by the scheduling gate example.com/license"
    found = explained("gang", cause, reason="SchedulingGated")
    assert found == (cause, "ask who removes the scheduling gates of its pods")


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (
            'admission webhook "policy.example.com" denied the request: no',
            "ask who runs that webhook, or change what it refuses",
        ),
        (
            'pods "train-w-0" is forbidden: exceeded quota: team, requested: cpu=4',
            "wait until others of the namespace have ended, or ask for a larger ResourceQuota",
        ),
        (
            'pods "train-w-0" is forbidden: failed quota: team: must specify cpu for: main',
            "specify in the containers of the job what the message names",
        ),
        (
            'pods "train-w-0" is forbidden: violates PodSecurity "baseline:latest": hostPort',
            "change what the message names, or ask for another level of the namespace",
        ),
        (
            'pods is forbidden: User "team" cannot create resource "pods"',
            "ask for a role that permits that, or change what is refused",
        ),
        (
            'pods "train-w-0" is forbidden: no PriorityClass with name high was found',
            "create what the message names, or correct its name in the job",
        ),
        (
            'pods "train-w-0" is forbidden: error looking up service account team/builder:'
            ' serviceaccount "builder" not found',
            "create what the message names, or correct its name in the job",
        ),
        (
            "spec.containers[0].image: Required value",
            "correct what the message names, then use `batholith restart`",
        ),
    ],
)
def test_pods_that_cannot_be_created(message: str, step: str) -> None:
    found = advice(reason="FailedCreate", message=message, group="Inqueue")
    assert found == (message, step)


def test_a_plugin_of_the_scheduler_that_failed() -> None:
    assert explained("scheduler", "plugin x failed")[1] == (
        "report it to the operator: the log of the scheduler has the error"
    )


RAN = [{"status": "Running", "lastTransitionTime": CREATED}]


def test_suspended_and_aborted() -> None:
    assert advice("Aborted", suspend=True, counts={"conditions": RAN}) == (
        "the job is suspended by its spec; it starts once suspend is false",
        "use `batholith resume`",
    )
    assert advice("Aborted", counts={"conditions": RAN}) == (
        "the job is aborted; it starts again once it is resumed",
        "use `batholith resume`",
    )


@pytest.mark.parametrize("suspend", [True, False], ids=["by its manifest", "by a Command"])
def test_held(suspend: bool) -> None:
    assert advice("Aborted", suspend=suspend) == (
        "the job is held: it has not started, and waits for its release",
        "use `batholith release`",
    )


def test_controller_not_running() -> None:
    assert advice(group=None) == (
        "no controller has reacted to the job for 120 s: it does not run, or fails",
        "check `batholith status`, or on Kubernetes the Deployment batholith-controllers",
    )
    recent = advice(group=None, created="2026-01-01T00:01:30Z")
    assert recent == (
        "the PodGroup of the job does not exist yet",
        "wait: the controllers have not seen the job yet",
    )


def test_scheduler_not_running() -> None:
    assert advice() == (
        "no scheduler has reacted to the job for 120 s: it does not run, or fails",
        "check `batholith status`, or on Kubernetes the Deployment batholith-scheduler",
    )
    assert advice(created="2026-01-01T00:01:30Z")[1] == (
        "wait: the scheduler has not seen the job yet"
    )


# -- slow to start ---------------------------------------------------------------------------------


def pod(
    name: str = "train-w-0",
    phase: str = "Pending",
    *,
    node: str = "n1",
    conditions: list[dict[str, str]] | None = None,
    reason: str = "",
    message: str = "",
    **state: Any,
) -> dict[str, Any]:
    status = {"name": "main", "state": state.get("state", {}), "lastState": state.get("last", {})}
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {
            "phase": phase,
            "reason": reason,
            "message": message,
            "conditions": conditions or [],
            "containerStatuses": [status],
        },
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def test_image_failing() -> None:
    pods = [
        pod("train-w-1", node="", conditions=[{"type": "PodScheduled", "message": "full"}]),
        pod(state=waiting("ImagePullBackOff", 'Back-off pulling image "x"')),
        pod("train-w-2", "Running"),
    ]
    found = advice("Running", group="Running", pods=pods, counts={"running": 1, "pending": 2})
    assert found == (
        "2 of 4 pods do not run: train-w-0 cannot pull its image: ImagePullBackOff: Back-off"
        ' pulling image "x"',
        "correct the name of the image",
    )


def test_command_failing_to_start() -> None:
    pods = [pod(state=waiting("CreateContainerError", "no such file"))]
    assert advice(group="Running", pods=pods) == (
        "1 of 4 pods do not run: train-w-0 cannot start: CreateContainerError: no such file",
        "correct its command or configuration",
    )


@pytest.mark.parametrize(
    "message", ['secret "login" not found', "couldn't find key user in Secret default/login"]
)
def test_configuration_that_does_not_exist(message: str) -> None:
    pods = [pod(state=waiting("CreateContainerConfigError", message))]
    assert advice(group="Running", pods=pods) == (
        f"1 of 4 pods do not run: train-w-0 cannot start: CreateContainerConfigError: {message}",
        "create what the message names, or correct its name in the job",
    )


def test_crash_loop() -> None:
    last = {"terminated": {"exitCode": 3}}
    pods = [pod(state=waiting("CrashLoopBackOff", "back-off"), last=last)]
    assert advice("Running", group="Running", pods=pods) == (
        "1 of 4 pods do not run: train-w-0 is in a crash loop: container main failed last with exit"
        " code 3",
        "see `batholith logs train --pod train-w-0`",
    )


def test_pods_without_a_node_and_pods_that_start() -> None:
    conditions = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]
    pods = [pod(node="", conditions=conditions), pod("train-w-1", state=waiting("Creating"))]
    assert advice(group="Running", pods=pods) == (
        "2 of 4 pods do not run: train-w-0 has no node: 0/3 nodes",
        "wait until nodes are free",
    )
    assert advice(group="Running", pods=pods[1:])[0] == (
        "1 of 4 pods do not run: train-w-1 is being started on node n1"
    )


def test_a_job_whose_pods_all_run_has_no_next_step() -> None:
    found = advice("Running", group="Running", pods=[pod(phase="Running")])
    assert found == ("the job runs: 0 of 4 pods", "")


# -- finished --------------------------------------------------------------------------------------


def ended(code: int, reason: str = "Error", message: str = "", at: str = CREATED) -> dict[str, Any]:
    found = {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}
    return {"terminated": found}


def failed(*pods: dict[str, Any], reason: str = "", message: str = "") -> tuple[str, str]:
    return advice("Failed", reason=reason, message=message, pods=list(pods))


def test_the_pod_that_failed_first_is_named_with_its_exit_code() -> None:
    late = pod("train-w-0", "Failed", state=ended(143, at="2026-01-01T00:01:00Z"))
    first = pod("train-w-1", "Failed", state=ended(3))
    assert failed(late, first) == (
        "pod train-w-1 failed: exit code 3",
        "see `batholith logs train --pod train-w-1`",
    )


def test_out_of_memory() -> None:
    assert failed(pod(phase="Failed", state=ended(137, "OOMKilled"))) == (
        "pod train-w-0 was killed because it used more memory than its limit",
        "submit it with more --mem, or let it use less",
    )


def test_evicted_by_whom() -> None:
    message = "evicted for gang default/big (reclaim)"
    conditions = [
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": message,
        }
    ]
    assert failed(pod(phase="Failed", conditions=conditions, state=ended(143))) == (
        f"pod train-w-0 was evicted: {message}",
        "submit it again; with --requeue it restarts automatically",
    )


def test_a_command_that_does_not_exist() -> None:
    state = ended(127, "StartError", "python4: not found")
    assert failed(pod(phase="Failed", state=state)) == (
        "pod train-w-0 could not start its command: python4: not found",
        "correct the command, or the image that should have it",
    )


def test_time_limit_and_dependency() -> None:
    assert failed(reason="DeadlineExceeded") == (
        "its time limit has ended it",
        "submit it with a longer --time",
    )
    cause, step = failed(reason="DependencyNeverMet", message="jobs/first is Failed")
    assert "jobs/first is Failed" in cause
    assert step == "submit it again without that dependency"


def test_a_failed_job_without_pods_and_a_completed_one() -> None:
    cause, step = failed(message="1 of 1 pods failed: w-0: exit code 3")
    assert cause == "the job has finished: Failed: 1 of 1 pods failed: w-0: exit code 3"
    assert step == "see its events, or `batholith history`"
    assert advice("Completed") == ("the job has finished: Completed", "")


def test_other_kinds_have_advice_too() -> None:
    body = {"metadata": {"name": "train"}, "spec": {"parallelism": 2}, "status": {"active": 1}}
    job = BATCH.summarize(msgspec.convert(body, BATCH.view))
    pods = [msgspec.convert(pod(state=waiting("ErrImagePull")), JobPod)]
    view = WaitView(job=job, podgroups=(), queue=None, now=NOW, pods=pods)
    assert explain_wait(view).advice.next_step == "correct the name of the image"
