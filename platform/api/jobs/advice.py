"""The dominant reason why a job waits, is slow to start, or has failed, and the next step. Pure.

The reason is one sentence and the step another one, for people who have never seen the scheduler.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ...model.job_reasons import Reason
from ...model.names import SUBMISSION
from ...model.quantity import QuantityError, parse
from ...wire.jobs import Explanation, JobKindName, JobSummary, Limit, Phase, WaitReason
from .pod_views import JobPod

UNRESPONSIVE_AFTER = 60.0
"""Seconds without a reaction to a job after which a component is assumed not to run."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A reason and a next step, for people."""

    cause: str
    next_step: str = ""
    """Empty if there is nothing to be done."""


NO_ADVICE = Advice("")
HELD = "the job is held: it has not started, and waits for its release"


def is_held(job: JobSummary) -> bool:
    """Return whether a job, of which is known that it is suspended or aborted, has never run."""
    return job.kind == JobKindName.JOBS and job.started_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of a job."""

    job: JobSummary
    reason: WaitReason
    summary: str
    """The reason at length, as its component reports it."""
    explanation: Explanation | None = None
    pods: Iterable[JobPod] = ()
    """Those of a job that runs, starts or has failed."""
    now: datetime


def advise(seen: Observed) -> Advice:
    """Return the dominant reason and the next step."""
    if seen.explanation is not None:
        return _of_explanation(seen.explanation, seen.summary)
    if seen.reason is WaitReason.FINISHED:
        return _of_end(seen)
    if seen.reason in (WaitReason.NOT_WAITING, WaitReason.STARTING, WaitReason.NO_GANG):
        return _of_pods(seen)
    if seen.reason is WaitReason.BLOCKED:
        return Advice(seen.summary, _unblock(seen.job.reason, seen.summary))
    if seen.reason is WaitReason.SUSPENDED and SUBMISSION in seen.job.labels:
        return Advice(seen.summary, f"if `batholith submit` was ended: {_SUBMIT_AGAIN}")
    if seen.reason in (WaitReason.SUSPENDED, WaitReason.ABORTED) and is_held(seen.job):
        return Advice(seen.summary, "use `batholith release`")
    if seen.reason in _UNRESPONSIVE and (advice := _unresponsive(seen)) is not None:
        return advice
    return Advice(seen.summary, _STEPS.get(seen.reason, ""))


_SUBMIT_AGAIN = "use `batholith cancel --delete`, and submit it again"
_OTHER_QUEUE = "submit it to another queue; `batholith queues` lists them"
_STEPS: Mapping[WaitReason, str] = {
    WaitReason.SUSPENDED: "use `batholith resume`",
    WaitReason.ABORTED: "use `batholith resume`",
    WaitReason.RESTARTING: "wait until its pods have ended",
    WaitReason.STOPPING: "wait until its pods have ended",
    WaitReason.QUEUE_NOT_FOUND: f"ask for the queue to be created, or {_OTHER_QUEUE}",
    WaitReason.QUEUE_NOT_OPEN: f"ask for the queue to be opened, or {_OTHER_QUEUE}",
    WaitReason.NO_PODGROUP: "wait: the controllers have not seen the job yet",
    WaitReason.NOT_REPORTED: "wait: the scheduler has not seen the job yet",
    WaitReason.UNSCHEDULABLE: "see its events with `kubectl describe`",
}
_UNRESPONSIVE: Mapping[WaitReason, tuple[str, str]] = {
    WaitReason.NO_PODGROUP: ("no controller has reacted to the job", "batholith-controllers"),
    WaitReason.NOT_REPORTED: ("no scheduler has reacted to the job", "batholith-scheduler"),
}


def _unresponsive(seen: Observed) -> Advice | None:
    """Return the advice for a job without a reaction for long; ``None`` if it is new."""
    text, component = _UNRESPONSIVE[seen.reason]
    created = seen.job.created_at
    age = 0.0 if created is None else (seen.now - created).total_seconds()
    if age < UNRESPONSIVE_AFTER:
        return None
    return Advice(
        f"{text} for {int(age)} s: it does not run, or fails",
        f"check `batholith status`, or on Kubernetes the Deployment {component}",
    )


# -- what the scheduler explains -------------------------------------------------------------------


def _of_explanation(found: Explanation, summary: str) -> Advice:
    by_stage: Mapping[str, Callable[[Explanation, str], Advice]] = {
        "queue": _of_queue,
        "quota": _of_quota,
        "gang": _of_gang,
        "pod": _of_pod,
        "nodes": _of_nodes,
        "scheduler": _of_scheduler,
    }
    of_stage = by_stage.get(found.stage)
    return Advice(summary) if of_stage is None else of_stage(found, summary)


def _of_queue(found: Explanation, summary: str) -> Advice:
    if found.reason == "QueueNotOpen":
        return Advice(summary, _STEPS[WaitReason.QUEUE_NOT_OPEN])
    return Advice(summary, f"ask for the queue to be corrected, or {_OTHER_QUEUE}")


def _of_quota(found: Explanation, summary: str) -> Advice:
    budget = found.budget
    if budget is not None:
        text = (
            f"queue {budget.queue!r} has used its budget of {budget.resource} until {budget.until}"
        )
        return Advice(text, f"wait until then, or {_OTHER_QUEUE}")
    if impossible := _impossible(summary):
        of_queue = "of queue" in impossible
        return Advice(impossible, f"ask for less, or {_OTHER_QUEUE}" if of_queue else _SMALLER)
    for resource, limit in found.limits.items():
        amounts = f"{limit.requested} {resource} requested, {limit.used} of {limit.limit} used"
        if limit.overcommit_factor is not None:
            return Advice(f"the cluster is full: {amounts}", _wait_for_others(found))
        if limit.resource_quota:
            return _of_resource_quota(found, limit, resource, amounts)
        name = limit.queue or found.queue.name
        if _exceeds(limit.requested, limit.limit):
            text = f"it requests more {resource} than queue {name!r} may have: {amounts}"
            return Advice(text, f"ask for less, or {_OTHER_QUEUE}")
        return Advice(f"queue {name!r} is full: {amounts}", _wait_for_others(found))
    return Advice(summary, _wait_for_others(found))


def _of_resource_quota(found: Explanation, limit: Limit, resource: str, amounts: str) -> Advice:
    """Return the advice for a limit of the namespace, such as that of one user."""
    quota = f"ResourceQuota {limit.resource_quota!r} of its namespace"
    if _exceeds(limit.requested, limit.limit):
        text = f"it requests more {resource} than the {quota} permits: {amounts}"
        return Advice(text, "ask for less, or for a larger ResourceQuota")
    return Advice(f"the {quota} is used up: {amounts}", _wait_for_others(found))


def _of_gang(found: Explanation, summary: str) -> Advice:
    if found.reason == "SchedulingGated":
        return Advice(summary, "ask who removes the scheduling gates of its pods")
    pods = found.pods
    text = f"only {pods.existing} of the {pods.needed} pods that have to start together exist"
    return Advice(
        text if pods.needed > pods.existing else summary,
        "see the reason and the events of the job: pods may be refused, depend on a task that has"
        " not started, or have failed",
    )


def _of_pod(found: Explanation, summary: str) -> Advice:
    if "persistentvolumeclaim" in summary:
        step = "wait until the claim is bound; `kubectl describe pvc` shows why it is not"
        if "not found" in summary:
            step = "create the claim, or correct its name in the job"
        elif "being deleted" in summary or "has lost" in summary:
            step = "use another claim"
        return Advice(summary, step)
    if step := _device_claim_step(summary):
        return Advice(summary, step)
    return Advice(summary, f"remove the field that the message names from pod {found.pod}")


def _device_claim_step(summary: str) -> str:
    """Return the next step about a claim of devices; empty if the reason is another one."""
    if "device class" in summary and "does not exist" in summary:
        return "create the DeviceClass, or correct its name in the claim"
    if 'resourceclaim.resource.k8s.io "' in summary and "not found" in summary:
        return "create the claim, or correct its name in the job"
    if "ResourceClaim not created yet" in summary:
        return "wait until the claim is created; `kubectl describe pod` shows why it is not"
    if any(each in summary for each in ("resourceclaim in use", "being deallocated")):
        return "wait until the claim is free, or use another one"
    if 'resourceclaim "' in summary and "being deleted" in summary:
        return "use another claim"
    return ""


def _of_scheduler(_: Explanation, summary: str) -> Advice:
    return Advice(summary, "report it to the operator: the log of the scheduler has the error")


_NODE_REASONS: tuple[tuple[str, str, str], ...] = (
    ("untolerated taint", "nodes have a taint that it does not tolerate", "add a toleration"),
    (
        "node affinity/selector",
        "no node has the labels that it selects",
        "correct its node selector or affinity (`--constraint`)",
    ),
    (
        "scheduler-enforced node affinity",
        "the configuration of the scheduler excludes nodes by their labels",
        "use another scheduler name, or ask the operator (`nodeaffinity.addedAffinity`)",
    ),
    (
        "anti-affinity",
        "pods that it must not run next to are on all other nodes",
        "wait until they have ended, or relax the anti-affinity (`--exclusive`)",
    ),
    ("pod affinity", "no node has the pods that it must run next to", "relax its pod affinity"),
    (
        "topology spread",
        "its pods would not be spread as it demands",
        "relax its topology spread constraints",
    ),
    ("free ports", "its host ports are in use", "use another host port, or none"),
    (
        "PersistentVolume's node affinity",
        "its volume can be used on other nodes only",
        "use another claim, or wait until the nodes of the volume are free",
    ),
    ("volume zone", "its volume is in another zone", "use another claim"),
    (
        "available persistent volumes",
        "no volume for its claim is free there",
        "wait for a volume, or use a storage class that creates them",
    ),
    ("free storage", "too little storage is free for its claim", "ask for less storage, or wait"),
    ("max volume count", "nodes have as many volumes as they can", "wait, or use fewer claims"),
    ("ReadWriteOncePod", "another pod uses its claim", "wait until that pod has ended"),
    ("unschedulable", "nodes are cordoned", "wait, or ask for them to be uncordoned"),
    ("utilization", "nodes are busy with other programs", "wait until their utilization falls"),
    (
        "revocable zone",
        "the nodes are in a revocable zone",
        "wait until the zone is active, or submit the job as preemptable",
    ),
    ("node group", "nodes are not in the node group of its queue", _OTHER_QUEUE),
)
"""Text of a reason that excludes nodes, what it means, and the next step; the first that is found
counts."""


_SMALLER = "ask for fewer or smaller pods: waiting does not help"


def _of_nodes(found: Explanation, summary: str) -> Advice:
    impossible, nodes = _impossible(summary), found.nodes
    if nodes is None or not nodes.excluded:
        if impossible:
            return Advice(impossible, _SMALLER)
        return Advice(summary, "add nodes" if nodes is not None and not nodes.total else "")
    # Resources become free by themselves: what else excludes more nodes counts more.
    reason, count = max(nodes.excluded.items(), key=lambda each: each[1])
    if impossible and (impossible != _TOGETHER or reason.startswith("Insufficient ")):
        return Advice(impossible, _SMALLER)
    where = f"{count} of {nodes.total} nodes"
    for text, cause, step in _NODE_REASONS:
        if text in reason:
            detail = reason.partition("{")[2].rstrip("}")
            return Advice(f"{cause} ({where}{f': {detail}' if detail else ''})", step)
    resource = reason.removeprefix("Insufficient ")
    if resource == reason:
        return Advice(f"{reason} ({where})", "")
    lack = nodes.nearest.lacks.get(resource) if nodes.nearest is not None else None
    amounts = "" if lack is None else f": it requests {lack.requested}, most free {lack.free}"
    return Advice(f"not enough {resource} is free ({where}){amounts}", _wait_for_others(found))


def _wait_for_others(found: Explanation) -> str:
    start = found.start
    if start is not None and start.is_known and start.earliest is not None:
        probable = start.expected or start.earliest
        when = probable.isoformat(timespec="seconds").replace("+00:00", "Z")
        return f"wait: it is expected to start at {when} (by {start.basis}), or ask for less"
    return "wait until other jobs have ended, or ask for less"


_TOGETHER = "all nodes together could not take its pods even if nothing else ran"
"""It may be due to resources, or to what else excludes nodes."""
_IMPOSSIBLE = re.compile(rf"(it needs [^,;]+, (?:more than the|and no node has)[^;:]*|{_TOGETHER})")


def _impossible(summary: str) -> str:
    """Return why the job cannot start even if nothing else runs; empty if it can."""
    match = _IMPOSSIBLE.search(summary)
    return match[1] if match else ""


def _exceeds(requested: str, limit: str) -> bool:
    try:
        return parse(requested) > parse(limit)
    except QuantityError:
        return False


# -- what its controller reports -------------------------------------------------------------------


_REFUSALS = (
    ("webhook", "ask who runs that webhook, or change what it refuses"),
    (
        "exceeded quota",
        "wait until others of the namespace have ended, or ask for a larger ResourceQuota",
    ),
    (
        "violates PodSecurity",
        "change what the message names, or ask for another level of the namespace",
    ),
    ("failed quota", "specify in the containers of the job what the message names"),
)
"""Texts in the message of a refused pod, and the next step; the first that is found counts."""


def _unblock(reason: str, message: str) -> str:
    if reason == Reason.WAITING:
        what = "a time to begin" if message.startswith("begins at") else "the dependency"
        return f"wait, or cancel it and submit it without {what}"
    if reason == Reason.PVC_ERROR:
        return "create the claim, or correct its name in the job"
    if step := next((step for text, step in _REFUSALS if text in message), ""):
        return step
    if "forbidden" in message:
        if _names_missing_object(message):
            return "create what the message names, or correct its name in the job"
        return "ask for a role that permits that, or change what is refused"
    if reason == Reason.GANG_UNSATISFIABLE:
        return "correct minAvailable and the replicas of its tasks"
    return "correct what the message names, then use `batholith restart`"


def _names_missing_object(message: str) -> bool:
    """Whether a pod or container is refused because an object that it names does not exist."""
    return any(each in message for each in ("not found", "was found", "couldn't find key"))


# -- its pods --------------------------------------------------------------------------------------

_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ImageInspectError",
     "ErrImageNeverPull", "RegistryUnavailable"}
)  # fmt: skip
_START = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError",
     "ContainerCannotRun", "PostStartHookError"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why a pod does not run."""

    rank: int
    """The lowest is the dominant one."""
    text: str
    next_step: str


def _trouble_of(job: JobSummary, pod: JobPod) -> _Trouble | None:
    """Return why *pod* does not run; ``None`` if it does, or has finished."""
    if pod.is_finished or pod.metadata.deletion_timestamp is not None:
        return None
    for status in pod.all_statuses():
        waiting = status.state.waiting
        if waiting is None:
            continue
        text = f"{waiting.reason}: {waiting.message}".rstrip(": ")
        if waiting.reason in _IMAGE:
            return _Trouble(0, f"cannot pull its image: {text}", "correct the name of the image")
        if waiting.reason == "CreateContainerConfigError" and _names_missing_object(text):
            step = "create what the message names, or correct its name in the job"
            return _Trouble(1, f"cannot start: {text}", step)
        if waiting.reason in _START:
            return _Trouble(1, f"cannot start: {text}", "correct its command or configuration")
        if waiting.reason == "CrashLoopBackOff":
            last = status.last_state.terminated
            code = "" if last is None else f" with exit code {last.exit_code}"
            text = f"is in a crash loop: container {status.name} failed last{code}"
            return _Trouble(2, text, _see_log(job, pod))
    if not pod.spec.node_name:
        message = next(
            (each.message for each in pod.status.conditions if each.type == "PodScheduled"), ""
        )
        return _Trouble(3, f"has no node: {message}".rstrip(": "), "wait until nodes are free")
    if pod.status.phase != "Running":
        text = f"is being started on node {pod.spec.node_name}"
        return _Trouble(4, text, "wait; its events show what takes long")
    return None


def _of_pods(seen: Observed) -> Advice:
    """Return why a job that runs or starts has pods that do not run."""
    found = [
        (trouble, pod.metadata.name)
        for pod in seen.pods
        if (trouble := _trouble_of(seen.job, pod)) is not None
    ]
    if not found:
        return Advice(seen.summary)
    trouble, name = min(found, key=lambda each: (each[0].rank, each[1]))
    count = f"{len(found)} of {seen.job.replicas} pods do not run"
    return Advice(f"{count}: {name} {trouble.text}", trouble.next_step)


def _of_end(seen: Observed) -> Advice:
    job = seen.job
    if job.phase is not Phase.FAILED:
        return Advice(seen.summary)
    if job.reason == Reason.DEADLINE_EXCEEDED:
        return Advice("its time limit has ended it", "submit it with a longer --time")
    if job.reason == Reason.DEPENDENCY_NEVER_MET:
        return Advice(seen.summary, "submit it again without that dependency")
    pod = first_failed(seen.pods)
    if pod is None:
        return Advice(seen.summary, "see its events, or `batholith history`")
    return _of_failed_pod(job, pod)


def first_failed(pods: Iterable[JobPod]) -> JobPod | None:
    """Return the pod that failed first, which is most likely the cause of the others' end."""

    def end(pod: JobPod) -> str:
        ends = [
            each.state.terminated.finished_at or ""
            for each in pod.all_statuses()
            if each.state.terminated is not None
        ]
        return max(ends, default="") or "~"

    failed = [pod for pod in pods if pod.status.phase == "Failed"]
    return min(failed, key=lambda pod: (end(pod), pod.metadata.name), default=None)


def _of_failed_pod(job: JobSummary, pod: JobPod) -> Advice:
    name = pod.metadata.name
    evicted = next(
        (
            each
            for each in pod.status.conditions
            if (each.type, each.status) == ("DisruptionTarget", "True")
        ),
        None,
    )
    if evicted is not None:
        text = f"pod {name} was evicted: {evicted.message or evicted.reason}"
        return Advice(text, "submit it again; with --requeue it restarts automatically")
    ended = [each.state.terminated for each in pod.all_statuses() if each.state.terminated]
    failed = next((each for each in ended if each.exit_code), None)
    if failed is not None and failed.reason == "OOMKilled":
        text = f"pod {name} was killed because it used more memory than its limit"
        return Advice(text, "submit it with more --mem, or let it use less")
    if failed is not None and failed.reason in _START:
        text = f"pod {name} could not start its command: {failed.message or failed.reason}"
        return Advice(text, "correct the command, or the image that should have it")
    failure = pod.failure or "its status has no reason"
    return Advice(f"pod {name} failed: {failure}", _see_log(job, pod))


def _see_log(job: JobSummary, pod: JobPod) -> str:
    return f"see `batholith logs {job.name} --pod {pod.metadata.name}`"
