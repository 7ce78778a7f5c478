"""Result of a scenario, in one form for recordings and our own cluster.

A *result* is plain JSON: the objects created, their phases, what exists at the end, denials, and
events. Times, uids, versions and addresses are removed. `scenario_result` builds one from an
account, and `differences` compares two.
"""

import base64
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from support.flow_results import flow_results

Json = dict[str, Any]

UID = re.compile(r"<uid \d+>|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
CLAIM = re.compile(r'(-pvc-|"j-)[0-9a-z]{12}\b')
GENERATED_NAME = "[bcdfghjklmnpqrstvwxz2456789]{5}"
VALUE_POSITION = re.compile(r"(?:metadata|spec)(?:\.\w+|\[\w+\])+|\b(?:minAvailable|replicas)\b")
INDEX = re.compile(r"\[\d+\]")
DENIED_FIELD = re.compile(r"/applied/\d+/2")
IGNORED_META = frozenset(
    {"uid", "creationTimestamp", "generation", "namespace", "resourceVersion", "managedFields"}
)
ROOT_CA = "kube-root-ca.crt"
VERSION = "volcano.sh/job-version"
COUNTS = ("pending", "running", "succeeded", "failed", "terminating", "unknown")
TRANSIENT_PHASES = ("Running", "Completed", "Pending", "Unknown")
"""Phases of a PodGroup that may be missed before its deletion."""

CREATED_KINDS = (
    "CronJob", "Job", "PodGroup", "Pod", "ConfigMap", "Service", "Secret", "NetworkPolicy",
    "PersistentVolumeClaim",
)  # fmt: skip


@dataclass(slots=True)
class NamespaceRecord:
    """Observed changes of one namespace, in the recordings' format."""

    apply_results: list[Json] = field(default_factory=list)
    timeline: list[Json] = field(default_factory=list)
    created: dict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))
    final: dict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))
    events: list[list[str]] = field(default_factory=list)


def scenario_result(record: NamespaceRecord, *, queues: frozenset[str] = frozenset()) -> Json:
    """Return the result of *account*; only the named queues count."""
    plain = _with_numbered_names(_without_uids(_with_numbered_minutes(record)))
    cronjobs = {each["name"]: _final_cronjob(each) for each in plain.final.get("CronJob", [])}
    return _scenario_result(plain, queues) | (
        {"cronjobs": {"life": _cronjob_statuses(plain.timeline), "final": cronjobs}}
        if cronjobs
        else {}
    )


def _scenario_result(plain: NamespaceRecord, queues: frozenset[str]) -> Json:
    return {
        "applied": [_apply_result(each) for each in plain.apply_results],
        "jobs": _phases(plain.timeline, "Job"),
        "groups": _phases(plain.timeline, "PodGroup"),
        "queues": {
            name: seen for name, seen in _phases(plain.timeline, "Queue").items() if name in queues
        },
        "pods": _pod_phases(plain.timeline),
        "made": {
            kind: created
            for kind in CREATED_KINDS
            if (created := _created_objects(plain.created.get(kind, [])))
        },
        "final": {
            "jobs": {each["name"]: _final_job(each) for each in plain.final.get("Job", [])},
            "groups": {
                each["name"]: _final_group(each) for each in plain.final.get("PodGroup", [])
            },
            "pods": {each["name"]: _final_pod(each) for each in plain.final.get("Pod", [])},
            "queues": {
                each["name"]: _final_queue(each)
                for each in plain.final.get("Queue", [])
                if each["name"] in queues
            },
        },
        "events": _events(plain.events),
        **flow_results(plain.timeline, plain.final),
    }


def final_result(result: Json) -> Json:
    """The part of a life that is compared for manifests: fates, phases of jobs, pods left."""
    pods = {name: pod["phase"] for name, pod in result["final"]["pods"].items()}
    flows = {key: result[key] for key in ("flows",) if key in result}
    return {"applied": result["applied"], "jobs": result["jobs"], "pods": pods, **flows}


def differences(expected: object, got: object, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the differences of two results: path, and both values.

    Annotations are compared one by one, also if one side has none.
    """
    if at.endswith("/annotations"):
        expected, got = expected or {}, got or {}
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted({*expected, *got}):
            path = f"{at}/{key}"
            yield from differences(expected.get(key), got.get(key), path)
    elif at.startswith("/events/"):
        result, reported = {*_listed(expected)}, {*_listed(got)}
        yield from ((f"{at}/-{reason}", "not recorded") for reason in sorted(result - reported))
        yield from (
            (f"{at}/+{reason}", "recorded in addition") for reason in sorted(reported - result)
        )
    elif DENIED_FIELD.fullmatch(at) and isinstance(expected, list) and isinstance(got, list):
        if not {*expected} <= {*got}:
            yield at, f"recorded to name {expected}, got {got}"
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for number, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differences(one, other, f"{at}/{number}")
    elif expected != got:
        yield at, f"recorded {_short(expected)}, got {_short(got)}"


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 600 else text[:600] + "…"


# --- names instead of uids -------------------------------------------------------------------


def _without_uids(record: NamespaceRecord) -> NamespaceRecord:
    """The account with each uid replaced by the kind and name of what it belongs to."""
    owners: dict[str, str] = {}
    for kind in CREATED_KINDS:
        for each in record.created.get(kind, []):
            name = UID.sub(lambda found: owners.get(found[0], "?"), each["metadata"]["name"])
            owners[each["metadata"]["uid"]] = f"{kind} {name}"
    text = msgspec.json.encode(record).decode()
    text = UID.sub(lambda found: f"({owners.get(found[0], 'unknown')})", text)
    return msgspec.json.decode(CLAIM.sub(r"\1<any>", text), type=NamespaceRecord)


def _with_numbered_names(record: NamespaceRecord) -> NamespaceRecord:
    """Return the account with numbers instead of generated suffixes of pod names."""
    created = [each["metadata"].get("generateName") for each in record.created.get("Pod", [])]
    stems = "|".join(sorted({re.escape(stem) for stem in created if stem}, key=len, reverse=True))
    if not stems:
        return record
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f'"{found[1]}<{numbers.setdefault(found[0], len(numbers))}>"'

    text = re.sub(f'"({stems}){GENERATED_NAME}"', numbered, msgspec.json.encode(record).decode())
    return msgspec.json.decode(text, type=NamespaceRecord)


def _with_numbered_minutes(record: NamespaceRecord) -> NamespaceRecord:
    """Return the account with numbers instead of the minutes for which CronJobs started Jobs."""
    cronjobs = [each["metadata"]["name"] for each in record.created.get("CronJob", [])]
    if not cronjobs:
        return record
    text = msgspec.json.encode(record).decode()
    stems = "|".join(map(re.escape, cronjobs))
    minutes = sorted(set(re.findall(rf"\b(?:{stems})-(\d{{8}})\b", text)))
    for number, minute in enumerate(minutes):
        scheduled = datetime.fromtimestamp(int(minute) * 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = text.replace(f"-{minute}", f"-<{number}>").replace(scheduled, f"<minute {number}>")
    return msgspec.json.decode(text, type=NamespaceRecord)


# --- what was refused -----------------------------------------------------------------------------


def _apply_result(applied: Json) -> list[Any]:
    """Kind, name, and the fields that a refusal names; ``None`` for what was accepted."""
    named = (
        None
        if applied["ok"]
        else sorted({INDEX.sub("", path) for path in VALUE_POSITION.findall(applied["error"])})
    )
    return [applied["kind"], applied["name"], named]


# --- phases ---------------------------------------------------------------------------------------


def _phases(timeline: list[Json], kind: str) -> dict[str, list[str]]:
    """Phases by name, without repetition, and ``gone``."""
    seen: dict[str, list[str]] = defaultdict(list)
    for entry in timeline:
        if entry.get("kind") != kind:
            continue
        phase = _phase(entry.get("status") or {}) or ("gone" if entry.get("what") == "gone" else "")
        if phase and seen[entry["name"]][-1:] != [phase]:
            seen[entry["name"]].append(phase)
    return {
        name: _without_transient_phases(phases) if kind == "PodGroup" else phases
        for name, phases in seen.items()
    }


def _without_transient_phases(phases: list[str]) -> list[str]:
    """The phases without those that a group has only if the scheduler is quick to write them."""
    kept: list[str] = []
    for phase in phases:
        while (
            phase == "gone"
            and kept[-1:]
            and kept[-1] in TRANSIENT_PHASES
            and kept[-2:-1] != ["gone"]
        ):
            kept.pop()
        kept.append(phase)
    return kept


def _phase(status: Json) -> str:
    state = status.get("state") or {}
    return str(state if isinstance(state, str) else state.get("phase") or status.get("phase") or "")


def _pod_phases(timeline: list[Json]) -> dict[str, list[str]]:
    """By name: ``made``, its phases, with a star once its deletion is requested, and ``gone``."""
    seen: dict[str, list[str]] = defaultdict(list)
    for entry in timeline:
        if entry.get("kind") != "Pod":
            continue
        step = entry.get("what") or entry["phase"] + ("*" if entry.get("terminating") else "")
        steps = seen[entry["name"]]
        if step == "gone" and steps[-2:] in (
            ["Failed", "Failed*"],
            ["Pending", "Pending*"],
            ["Succeeded", "Succeeded*"],
        ):
            steps.pop()  # recorded at its deletion
        if steps[-1:] != [step]:
            steps.append(step)
    return dict(seen)


def _cronjob_statuses(timeline: list[Json]) -> dict[str, list[Json]]:
    """Statuses of CronJobs by name, without repetition."""
    seen: dict[str, list[Json]] = defaultdict(list)
    for entry in timeline:
        if entry.get("kind") != "CronJob" or not (status := _cronjob_status(entry)):
            continue
        if seen[entry["name"]][-1:] != [status]:
            seen[entry["name"]].append(status)
    return dict(seen)


def _cronjob_status(cronjob: Json) -> Json:
    status = dict(cronjob.get("status") or {})
    if "lastSuccessfulTime" in status:
        status["lastSuccessfulTime"] = "<time>"
    if "active" in status:
        status["active"] = [
            {key: value for key, value in each.items() if key != "resourceVersion"}
            for each in status["active"]
        ]
    return _without_empty_fields(status)


def _final_cronjob(cronjob: Json) -> Json:
    return _without_empty_fields(
        {
            "labels": cronjob.get("labels"),
            "annotations": cronjob.get("annotations"),
            "spec": _without_defaults(cronjob["spec"]),
            "status": _cronjob_status(cronjob),
        }
    )


# --- objects --------------------------------------------------------------------------------------


def _created_objects(objects: list[Json]) -> list[Json]:
    """The objects of one kind without what the server adds, twins once, in a steady order."""
    objects = [each for each in objects if each["metadata"]["name"] != ROOT_CA]
    versions = _versions(objects)
    texts = {
        msgspec.json.encode(_comparable_object(each, versions), order="sorted") for each in objects
    }
    return [msgspec.json.decode(text) for text in sorted(texts)]


def _versions(objects: list[Json]) -> dict[str, str]:
    """Versions of a job, renumbered: the reference skips some."""
    reported = {_selected_annotations(each["metadata"]).get(VERSION, "0") for each in objects}
    return {version: f"#{n}" for n, version in enumerate(sorted(reported, key=int))}


def _selected_annotations(meta: Json) -> dict[str, str]:
    return meta.get("annotations") or {}


def _comparable_object(obj: Json, versions: Mapping[str, str]) -> Json:
    meta = {key: value for key, value in obj["metadata"].items() if key not in IGNORED_META}
    if VERSION in _selected_annotations(meta):
        meta["annotations"] = {
            **meta["annotations"],
            VERSION: versions[_selected_annotations(meta)[VERSION]],
        }
    body = {k: v for k, v in obj.items() if k not in ("metadata", "status", "apiVersion")}
    spec = dict(body.get("spec") or {})
    for key in ("nodeName", "clusterIP", "clusterIPs", "volumeName"):
        if spec.get(key) != "None":
            spec.pop(key, None)
    if spec:
        body["spec"] = spec
    if obj["kind"] == "Secret":
        body["data"] = {key: _secret(key, text) for key, text in obj["data"].items()}
    return {"metadata": _without_empty_fields(meta), **_without_defaults(body)}


POD_DEFAULTS = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
    "dnsPolicy": "ClusterFirst",
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "securityContext": {},
    "metadata": {},
    "resources": {},
}
"""Fields that the API server sets; test_replay checks them."""


def _without_defaults(value: Any) -> Any:
    """*value* without the API server's defaults."""
    if isinstance(value, list):
        plain = [_without_defaults(each) for each in value if not _is_eviction_default(each)]
        named = all(isinstance(each, dict) and "name" in each for each in plain)
        return sorted(plain, key=lambda each: each["name"]) if named else plain
    if not isinstance(value, dict):
        return value
    return {
        key: _without_defaults(each)
        for key, each in value.items()
        if key not in POD_DEFAULTS or POD_DEFAULTS[key] != each
    }


def _is_eviction_default(each: Any) -> bool:
    return isinstance(each, dict) and each.get("tolerationSeconds") == 300


def _secret(key: str, value: str) -> str:
    return base64.b64decode(value).decode() if key == "config" else "<secret>"


def _without_empty_fields(value: Json) -> Json:
    """*value* without empty fields."""
    return {key: each for key, each in value.items() if each not in (None, {}, [], "")}


def _final_job(job: Json) -> Json:
    status = job["status"] or {}
    state = status.get("state") or {}
    resources = status.get("controlledResources") or {}
    marks = sorted(key for key in resources if key.startswith("batholith-"))
    return _without_empty_fields(
        {
            "labels": job.get("labels"),
            "annotations": job.get("annotations"),
            "spec": _without_defaults(job["spec"]),
            "phase": state.get("phase"),
            "conditions": [each["status"] for each in status.get("conditions") or []],
            "retryCount": status.get("retryCount"),
            "minAvailable": status.get("minAvailable"),
            "controlledResources": {k: v for k, v in resources.items() if k not in marks},
            "marks": marks,
            "tasks": status.get("taskStatusCount"),
            "counts": {key: status[key] for key in COUNTS if status.get(key)},
        }
    )


def _final_group(group: Json) -> Json:
    status = group["status"] or {}
    return _without_empty_fields(
        {
            "labels": group.get("labels"),
            "annotations": group.get("annotations"),
            "spec": group["spec"],
            "phase": status.get("phase"),
            "counts": {key: status[key] for key in COUNTS if status.get(key)},
            "conditions": _conditions(status),
        }
    )


def _final_pod(pod: Json) -> Json:
    conditions = [each for each in _conditions(pod) if each[0] == "PodScheduled"]
    return _without_empty_fields(
        {"bound": pod.get("bound"), "phase": pod["phase"], "conditions": conditions}
    )


def _conditions(status: Json) -> list[list[str]]:
    each = status.get("conditions") or []
    return sorted([one["type"], one["status"], one.get("reason", "")] for one in each)


def _final_queue(queue: Json) -> Json:
    status = queue.get("status") or {}
    return _without_empty_fields(
        {
            "annotations": queue.get("annotations"),
            "spec": queue["spec"],
            "state": status.get("state"),
        }
    )


def _events(events: list[list[str]]) -> dict[str, list[str]]:
    """By kind, the reasons."""
    reported: dict[str, set[str]] = defaultdict(set)
    for kind, _, reason, _ in events:
        if kind in ("CronJob", "Job", "PodGroup", "Pod"):
            reported[kind].add(reason)
    return {kind: sorted(reasons) for kind, reasons in sorted(reported.items())}
