"""Describe the pods of a job before they exist (docs/decisions/0012). Pure.

A job is described if the scheduler can decide on its pods by the description alone. Any field
that is not known to have no influence on that excludes it: its pods have no node at creation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from ...model import names
from ...model.arrays import max_parallel
from ...model.job import Job, TaskSpec
from ...model.job_podgroup import dependencies_met
from ...model.placement import (
    MAX_MEMBERS,
    MAX_TEXT,
    MemberRole,
    Members,
    encode_members,
    hash_of,
)
from .. import pods
from ..plugins.errors import PluginError
from ..plugins.registry import JobPlugins

JsonObject = dict[str, Any]


class Unplaced(StrEnum):
    """Why pods are created without a node."""

    EXCLUDED = "excluded"
    """An annotation of the job excludes it."""
    DEPENDENCIES = "dependencies"
    TOPOLOGY = "topology"
    VOLUMES = "volumes"
    GATES = "gates"
    CLAIMS = "claims"
    TERMS = "terms"
    """The pods have terms on other pods."""
    NODE = "node"
    """The template names a node."""
    RESOURCES = "resources"
    """The pods have a runtime class, or resources of the pod as a whole."""
    FIELD = "field"
    """A field of the pods is not known."""
    PLUGIN = "plugin"
    """A plugin of the job fails, or a template is malformed."""
    SIZE = "size"
    LIMIT_RANGE = "limit-range"
    MUTATION = "mutation"
    """A webhook or a policy may change pods."""
    UNKNOWN_RULES = "unknown-rules"
    """The rules of the cluster for new pods cannot be read."""
    NO_PLAN = "no-plan"
    """The scheduler has written none."""
    INVALID_PLAN = "invalid-plan"
    CHANGED = "changed"
    """The job has changed since it was described, or a pod differs from the description."""
    EXPIRED = "expired"
    REJECTED = "rejected"
    """The API server has rejected a planned pod."""


class NotDescribedError(Exception):
    """The pods of a job are not described."""

    def __init__(self, reason: Unplaced) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Description:
    """Description of the pods of a job in its PodGroup, by which the scheduler chooses nodes."""

    text: str
    hash: str
    pods: Mapping[str, bytes]
    """What :func:`scheduling_fields` returns of the pods, by task."""
    is_uniform: bool
    """The pods of a task cannot differ in them, since no plugin changes pods."""
    labels: tuple[Mapping[str, str], ...]
    """Of a pod of each task."""


def describe(
    job: Job, plugins: JobPlugins, *, priority_of: Callable[[str], int | None]
) -> Description:
    """Return the description of the pods of *job*.

    *priority_of* returns the priority that admission gives to pods of a class; empty for none.

    Raises:
        NotDescribedError: they are not described.
    """
    _check_job(job)
    described: dict[str, bytes] = {}
    labels: list[Mapping[str, str]] = []
    roles = []
    for task in job.spec.tasks:
        try:
            body = pods.build(job, task, 0)
            plugins.mutate_pod(body, job)
            described[task.name] = scheduling_fields(body)
            labels.append(body["metadata"].get("labels") or {})
            priority = priority_of(body["spec"].get("priorityClassName") or "")
        except (PluginError, msgspec.MsgspecError, TypeError, AttributeError, KeyError) as error:
            raise NotDescribedError(Unplaced.PLUGIN) from error
        roles.append(
            MemberRole(
                name=task.name,
                count=task.replicas,
                pod=msgspec.Raw(described[task.name]),
                priority=priority,
            )
        )
    meta = job.metadata
    members = Members(job=meta.name, uid=meta.uid, version=job.status.version, roles=tuple(roles))
    if members.count > MAX_MEMBERS:
        raise NotDescribedError(Unplaced.SIZE)
    text = encode_members(members)
    if len(text) > MAX_TEXT:
        raise NotDescribedError(Unplaced.SIZE)
    return Description(
        text, hash_of(text), described, is_uniform=not plugins.mutate_pods, labels=tuple(labels)
    )


def _check_job(job: Job) -> None:
    if job.metadata.annotations.get(names.PLACE_AT_CREATION, "").lower() == "false":
        raise NotDescribedError(Unplaced.EXCLUDED)
    if max_parallel(job.metadata.annotations) is not None:
        # Nodes would be reserved for pods that are created much later.
        raise NotDescribedError(Unplaced.DEPENDENCIES)
    if job.spec.network_topology is not None or any(map(_has_topology, job.spec.tasks)):
        raise NotDescribedError(Unplaced.TOPOLOGY)
    if not all(dependencies_met(task, lambda name: False) for task in job.spec.tasks):
        raise NotDescribedError(Unplaced.DEPENDENCIES)
    if any(volume.volume_claim_name for volume in job.spec.volumes):
        raise NotDescribedError(Unplaced.VOLUMES)
    if not job.spec.tasks:
        raise NotDescribedError(Unplaced.SIZE)


def _has_topology(task: TaskSpec) -> bool:
    return task.partition_policy is not None or bool(task.topology_policy)


def scheduling_fields(pod: JsonObject) -> bytes:
    """Return all of *pod* that scheduling reads, as JSON; equal for pods that are equal in it.

    Raises:
        NotDescribedError: the pod has something else that may influence where it runs.
    """
    meta, spec = pod["metadata"], pod["spec"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    if annotations.get(names.QUEUE_GATE):
        raise NotDescribedError(Unplaced.GATES)
    found: JsonObject = {}
    for name, value in spec.items():
        if value in (None, "", [], {}) or name in _WITHOUT_INFLUENCE:
            continue
        found |= _described_field(name, value, spec)
    kept = {
        "labels": {name: value for name, value in labels.items() if name != names.TASK_INDEX},
        "annotations": {
            name: value for name, value in annotations.items() if name not in _OWN_ANNOTATIONS
        },
    }
    return _ENCODE({"metadata": kept, "spec": found})


def _described_field(name: str, value: Any, spec: JsonObject) -> JsonObject:
    """Return what is described of a field of the spec."""
    if name in ("containers", "initContainers"):
        host_network = spec.get("hostNetwork") is True
        return {name: [_container(each, host_network=host_network) for each in value]}
    if name == "volumes":
        for volume in value:
            if not volume.keys() - {"name"} <= _HARMLESS_VOLUMES:
                raise NotDescribedError(Unplaced.VOLUMES)
        return {}
    if name == "affinity":
        if value.get("podAffinity") or value.get("podAntiAffinity"):
            raise NotDescribedError(Unplaced.TERMS)
        return {name: {"nodeAffinity": value.get("nodeAffinity") or {}}}
    if name in _DESCRIBED:
        return {name: value}
    raise NotDescribedError(_REASONS.get(name, Unplaced.FIELD))


def _container(container: JsonObject, *, host_network: bool) -> JsonObject:
    """Return what is described of a container; unknown fields of it are ignored."""
    found: JsonObject = {}
    for name in ("image", "restartPolicy"):
        if container.get(name):
            found[name] = container[name]
    resources = container.get("resources") or {}
    if resources.get("claims"):
        raise NotDescribedError(Unplaced.CLAIMS)
    amounts = {
        name: {key: str(amount) for key, amount in resources[name].items()}
        for name in ("requests", "limits")
        if resources.get(name)
    }
    if amounts:
        found["resources"] = amounts
    ports = [
        {key: port[key] for key in ("hostPort", "hostIP", "protocol") if port.get(key)}
        | ({"hostPort": port["containerPort"]} if host_network else {})
        for port in container.get("ports") or ()
        if port.get("hostPort") or host_network
    ]
    if ports:
        found["ports"] = ports
    return found


_DESCRIBED = frozenset(
    {"nodeSelector", "tolerations", "schedulerName", "priorityClassName", "preemptionPolicy"}
)
_WITHOUT_INFLUENCE = frozenset(
    {
        "activeDeadlineSeconds",
        "automountServiceAccountToken",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "hostname",
        "imagePullSecrets",
        "readinessGates",
        "restartPolicy",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "subdomain",
        "terminationGracePeriodSeconds",
    }
)
_HARMLESS_VOLUMES = frozenset(
    {"configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret"}
)
_REASONS = {
    "nodeName": Unplaced.NODE,
    "overhead": Unplaced.RESOURCES,
    "resourceClaims": Unplaced.CLAIMS,
    "resources": Unplaced.RESOURCES,
    "runtimeClassName": Unplaced.RESOURCES,
    "schedulingGates": Unplaced.GATES,
    "topologySpreadConstraints": Unplaced.TERMS,
}
_OWN_ANNOTATIONS = frozenset(
    {
        names.GROUP_NAME,
        names.JOB_NAME,
        names.JOB_RETRY_COUNT,
        names.JOB_VERSION,
        names.QUEUE_NAME,
        names.TASK_INDEX,
        names.TASK_SPEC,
        names.TEMPLATE_UID,
    }
)
"""Annotations that the controller adds; scheduling reads those that it needs from elsewhere."""
_ENCODE = msgspec.json.Encoder(order="deterministic").encode
