"""Table cells of workload kinds."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ....model import durations, times
from .ages import age
from .printers import NONE, Printer, age_of, name_of, or_none, pairs, selector_text

Json = dict[str, Any]


def _pods_of(spec: Json) -> list[str]:
    """Return the wide columns: container names, images."""
    containers = spec.get("template", {}).get("spec", {}).get("containers") or ()
    return [
        ",".join(each.get("name", "") for each in containers),
        ",".join(each.get("image", "") for each in containers),
    ]


def _deployment(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    return [
        name_of(obj),
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age_of(obj, now),
        *_pods_of(spec),
        selector_text(spec.get("selector")),
    ]


def _replicas(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    selector = spec.get("selector", {})
    # A ReplicationController has labels where a ReplicaSet has a selector.
    plain = not selector.keys() <= {"matchLabels", "matchExpressions"}
    return [
        name_of(obj),
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        age_of(obj, now),
        *_pods_of(spec),
        pairs(selector) if plain else selector_text(selector),
    ]


def _stateful_set(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [name_of(obj), ready, age_of(obj, now), *_pods_of(spec)]


def _daemon_set(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    return [
        name_of(obj),
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        pairs(spec.get("template", {}).get("spec", {}).get("nodeSelector")),
        age_of(obj, now),
        *_pods_of(spec),
        selector_text(spec.get("selector")),
    ]


def _job(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    return [
        name_of(obj),
        _job_status(obj),
        _completions(spec, status.get("succeeded", 0)),
        _job_duration(status, now),
        age_of(obj, now),
        *_pods_of(spec),
        selector_text(spec.get("selector")),
    ]


def _job_status(obj: Json) -> str:
    held = {
        each.get("type", "")
        for each in obj.get("status", {}).get("conditions", ())
        if each.get("status") == "True"
    }
    if "Complete" in held:
        return "Complete"
    if "Failed" in held:
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for each in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if each in held:
            return each
    return "Running"


def _completions(spec: Json, succeeded: int) -> str:
    if "completions" in spec:
        return f"{succeeded}/{spec['completions']}"
    parallel = spec.get("parallelism", 0)
    return f"{succeeded}/1 of {parallel}" if parallel > 1 else f"{succeeded}/1"


def _job_duration(status: Json, now: datetime) -> str:
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return ""
    last = times.parse(end) if end else now
    return durations.human((last - times.parse(start)).total_seconds())


def _cron_job(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    job = spec.get("jobTemplate", {}).get("spec", {})
    last = status.get("lastScheduleTime")
    return [
        name_of(obj),
        spec.get("schedule", ""),
        spec.get("timeZone", NONE),
        "True" if spec.get("suspend") else "False",
        len(status.get("active", ())),
        age(last, now) if last else NONE,
        age_of(obj, now),
        *_pods_of(job),
        selector_text(job.get("selector")),
    ]


def _budget(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    return [
        name_of(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        obj.get("status", {}).get("disruptionsAllowed", 0),
        age_of(obj, now),
    ]


def _revision(obj: Json, now: datetime) -> list[Any]:
    owners = [o for o in obj["metadata"].get("ownerReferences", ()) if o.get("controller")]
    names = [f"{owner['kind'].lower()}.{_group(owner)}/{owner['name']}" for owner in owners]
    return [name_of(obj), or_none(names), obj.get("revision", 0), age_of(obj, now)]


def _group(owner: Json) -> str:
    return str(owner.get("apiVersion", "")).partition("/")[0]


_MAX_TARGETS = 2
_UNKNOWN = "<unknown>"
_METRIC_SOURCES = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}


def _autoscaler(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    reference = spec.get("scaleTargetRef", {})
    metrics, measured = spec.get("metrics") or (), status.get("currentMetrics") or ()
    targets = [
        _target(each, measured[index] if index < len(measured) else {})
        for index, each in enumerate(metrics)
    ]
    shown = ", ".join(targets[:_MAX_TARGETS])
    if len(targets) > _MAX_TARGETS:
        shown += f" + {len(targets) - _MAX_TARGETS} more..."
    return [
        name_of(obj),
        f"{reference.get('kind', '')}/{reference.get('name', '')}",
        shown or NONE,
        str(spec.get("minReplicas", "<unset>")),
        spec.get("maxReplicas", 0),
        status.get("currentReplicas", 0),
        age_of(obj, now),
    ]


def _target(metric: Json, measured: Json) -> str:
    """Return the current value of a metric and its target."""
    field = _METRIC_SOURCES.get(metric.get("type", ""))
    if field is None:
        return "<unknown type>"
    source = metric.get(field, {})
    target, current = source.get("target", {}), measured.get(field, {}).get("current", {})
    average = target.get("averageValue")
    if field in ("resource", "containerResource"):
        if average is not None:
            text = f"{current.get('averageValue', _UNKNOWN)}/{average}"
        else:
            text = f"{_percent(current, _UNKNOWN)}/{_percent(target, '<auto>')}"
        return f"{source.get('name', '')}: {text}"
    if average is None:
        return f"{current.get('value', _UNKNOWN)}/{target.get('value', 0)}"
    suffix = "" if field == "pods" else " (avg)"
    return f"{current.get('averageValue', _UNKNOWN)}/{average}{suffix}"


def _percent(amounts: Json, default: str) -> str:
    utilization = amounts.get("averageUtilization")
    return default if utilization is None else f"{utilization}%"


_PODS = "+Containers, +Images"
_REPLICAS = Printer(f"Name, #Desired, #Current, #Ready, Age, {_PODS}, +Selector", _replicas)

WORKLOAD_PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "ReplicationController"): _REPLICAS,
    ("apps", "ControllerRevision"): Printer("Name, Controller, Revision, Age", _revision),
    ("apps", "DaemonSet"): Printer(
        "Name, #Desired, #Current, #Ready, #Up-to-date, #Available, Node Selector, Age, "
        f"{_PODS}, +Selector",
        _daemon_set,
    ),
    ("apps", "Deployment"): Printer(
        f"Name, Ready, Up-to-date, Available, Age, {_PODS}, +Selector", _deployment
    ),
    ("apps", "ReplicaSet"): _REPLICAS,
    ("apps", "StatefulSet"): Printer(f"Name, Ready, Age, {_PODS}", _stateful_set),
    ("autoscaling", "HorizontalPodAutoscaler"): Printer(
        "Name, Reference, Targets, MinPods, MaxPods, Replicas, Age", _autoscaler
    ),
    ("batch", "CronJob"): Printer(
        f"Name, Schedule, Timezone, ?Suspend, #Active, Last Schedule, Age, {_PODS}, +Selector",
        _cron_job,
    ),
    ("batch", "Job"): Printer(
        f"Name, Status, Completions, Duration, Age, {_PODS}, +Selector", _job
    ),
    ("policy", "PodDisruptionBudget"): Printer(
        "Name, Min Available, Max Unavailable, #Allowed Disruptions, Age", _budget
    ),
}
"""Printers of workload kinds by group and kind."""
