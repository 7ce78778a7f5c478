"""Objects and fields that the server stores although the embedded cluster does not act on them.

Clients get a warning. Every kind and every field of a pod has its row in
`tests/apiserver/test_no_silent_acceptance.py`; once it is enforced, remove its row there and its
entry here or in :mod:`.unenforced_pods`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ....model import unscheduled_fields
from ....model.names import Resource
from ....model.service_network import HEADLESS, PodNetwork
from ..kinds.groups import ADMISSION, FLOW_CONTROL, NETWORKING, STORAGE
from .unenforced_pods import NO_SYSCTLS, OPENED_BY_PROGRAM, unenforced_pod_fields

Json = dict[str, Any]


class UnenforcedKind(NamedTuple):
    """A kind whose objects have no effect."""

    missing_action: str
    """What the embedded cluster does not do: *enforced*, *run*, *used*."""

    advice: str


_ENFORCED = "enforced"
_USED = "used"
_NO_PROXY = "it has no HTTP proxy; use the address of a Service"
_NO_QUEUES = "it handles all requests at once, without queues"
_NO_DRIVERS = "a PersistentVolumeClaim is bound to a directory on its node, or to a path there"

_NETWORK_POLICY = (NETWORKING, "NetworkPolicy")
_SHARED_NETWORK = "pods share the network of the machine; start it with --pod-network=namespaces"

_JOB_CONTROLLERS = ("kubernetes.io/job-controller", "batholith.io/job-controller")
"""Names in ``spec.managedBy`` of the one Job controller of the embedded cluster."""

UNENFORCED_KINDS: Mapping[tuple[str, str], UnenforcedKind] = {
    (FLOW_CONTROL, "FlowSchema"): UnenforcedKind(_ENFORCED, _NO_QUEUES),
    (FLOW_CONTROL, "PriorityLevelConfiguration"): UnenforcedKind(_ENFORCED, _NO_QUEUES),
    (NETWORKING, "Ingress"): UnenforcedKind("served", _NO_PROXY),
    (NETWORKING, "IngressClass"): UnenforcedKind(_USED, _NO_PROXY),
    _NETWORK_POLICY: UnenforcedKind(_ENFORCED, _SHARED_NETWORK),
    (STORAGE, "CSIDriver"): UnenforcedKind(_USED, _NO_DRIVERS),
    (STORAGE, "CSINode"): UnenforcedKind(_USED, _NO_DRIVERS),
    (STORAGE, "CSIStorageCapacity"): UnenforcedKind(_USED, _NO_DRIVERS),
    (STORAGE, "VolumeAttachment"): UnenforcedKind(_USED, _NO_DRIVERS),
    (STORAGE, "VolumeAttributesClass"): UnenforcedKind(_USED, _NO_DRIVERS),
}
"""By group and kind. Kinds that are plain data on any cluster are not included."""


_MAY_LACK_NAME_SERVER = (
    "unless the cluster was started by root or has network namespaces, pods have no name server; "
    "use hostAliases"
)


def warnings_on_write(
    resource: Resource, obj: Json, old: Json | None, network: PodNetwork
) -> list[str]:
    """Return warnings for what has no effect in *obj*, where pods run in *network*.

    For an update, only for its changes: *old* is the previous object.
    """
    gap = _kind_warning(resource, network)
    if gap:
        return [gap] if old is None or _content(obj) != _content(old) else []
    found = field_warnings(resource, obj, network)
    if old is None or not found:
        return found
    known = set(field_warnings(resource, old, network))
    return [text for text in found if text not in known]


def _kind_warning(resource: Resource, network: PodNetwork) -> str:
    """Return the warning for any object of *resource*; empty if it has an effect."""
    kind = resource.group, resource.kind
    gap = UNENFORCED_KINDS.get(kind)
    if gap is None or (kind == _NETWORK_POLICY and network is PodNetwork.NAMESPACES):
        return ""
    missing = f"{resource.kind} is stored but not {gap.missing_action} by the embedded cluster"
    return f"{missing}: {gap.advice}"


def field_warnings(
    resource: Resource, obj: Json, network: PodNetwork = PodNetwork.HOST
) -> list[str]:
    """Return a warning for each field of *obj* that does not have its effect."""
    look = _FIELDS.get((resource.group, resource.kind))
    if look is None:
        return []
    has_effect: tuple[str, ...] = ()
    if network is PodNetwork.NAMESPACES:
        has_effect = OPENED_BY_PROGRAM, NO_SYSCTLS, _MAY_LACK_NAME_SERVER
    return [_field_warning(*found) for found in look(obj) if found[1] not in has_effect]


def _field_warning(path: str, why: str, effect: str = "has no effect") -> str:
    return f"{path} {effect} in the embedded cluster: {why}"


def _content(obj: Json) -> Json:
    apart = ("apiVersion", "kind", "metadata", "status")
    return {key: value for key, value in obj.items() if key not in apart}


# Fields of single kinds. Objects may be malformed custom objects, so types are checked.

Found = Iterator[tuple[str, str] | tuple[str, str, str]]
"""Yields paths of fields, why they have no effect, and what they have instead, if anything."""


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _namespace(obj: Json) -> Found:
    for label in _dict(_dict(obj.get("metadata")).get("labels")):
        if str(label) == "pod-security.kubernetes.io/audit":
            yield f"metadata.labels[{label}]", "there is no audit log"


def _pod(obj: Json) -> Found:
    return unenforced_pod_fields([("spec", obj.get("spec"))])


def _batch_job(obj: Json) -> Found:
    return _batch_job_spec(_dict(obj.get("spec")), "spec")


def _cron_job(obj: Json) -> Found:
    template = _dict(_dict(obj.get("spec")).get("jobTemplate"))
    return _batch_job_spec(_dict(template.get("spec")), "spec.jobTemplate.spec")


def _batch_job_spec(spec: Json, path: str) -> Found:
    if spec.get("managedBy") not in (None, *_JOB_CONTROLLERS):
        yield f"{path}.managedBy", "no controller of this name runs, so the Job is not run"
    pod = _dict(spec.get("template")).get("spec")
    yield from unenforced_pod_fields([(f"{path}.template.spec", pod)])


def _workload(obj: Json) -> Found:
    pod = _dict(_dict(obj.get("spec")).get("template")).get("spec")
    return unenforced_pod_fields([("spec.template.spec", pod)])


def _volcano_job(obj: Json) -> Found:
    return _volcano_job_spec(_dict(obj.get("spec")), "spec")


def _volcano_cron_job(obj: Json) -> Found:
    template = _dict(_dict(obj.get("spec")).get("jobTemplate"))
    return _volcano_job_spec(_dict(template.get("spec")), "spec.jobTemplate.spec")


def _volcano_job_spec(spec: Json, path: str) -> Found:
    tasks = _list(spec.get("tasks"))
    templates = [_dict(_dict(task).get("template")).get("spec") for task in tasks]
    yield from unenforced_pod_fields(
        (f"{path}.tasks[{index}].template.spec", found) for index, found in enumerate(templates)
    )


def _job_template(obj: Json) -> Found:
    yield from _volcano_job(obj)
    yield from unscheduled_fields.of_job(obj.get("spec"), "spec")


def _queue(obj: Json) -> Found:
    spec = _dict(obj.get("spec"))
    if spec.get("affinity"):
        yield "spec.affinity", "the scheduler does not reserve nodes for queues"
    if spec.get("extendClusters"):
        yield "spec.extendClusters", "there is one cluster"


def _service(obj: Json) -> Found:
    spec = _dict(obj.get("spec"))
    kind = spec.get("type", "ClusterIP")
    if kind == "ExternalName":
        yield "spec.externalName", _MAY_LACK_NAME_SERVER
    elif kind == "LoadBalancer":
        yield "spec.type", "it has no load balancer; use the cluster IP or the node ports"
    if spec.get("externalIPs"):
        yield "spec.externalIPs", "the Service proxy listens on loopback addresses only"
    if kind == "ExternalName" or spec.get("clusterIP") == HEADLESS:
        return
    for index, port in enumerate(_list(spec.get("ports"))):
        if _dict(port).get("protocol") == "SCTP":
            why = "the Service proxy has no SCTP; use a headless Service (clusterIP None)"
            yield f"spec.ports[{index}].protocol", why


_REVIEWED_SUBRESOURCES = ("", "status", "ephemeralcontainers", "resize")
_REVIEWED_CONNECTIONS = ("attach", "exec", "portforward", "proxy")


def _webhook_configuration(obj: Json) -> Found:
    mutating = obj.get("kind") == "MutatingWebhookConfiguration"
    for index, hook in enumerate(_list(obj.get("webhooks"))):
        path = f"webhooks[{index}]"
        for number, rule in enumerate(_list(_dict(hook).get("rules"))):
            of_rule = f"{path}.rules[{number}]"
            yield from _admission_rule(_dict(rule), of_rule, mutating=mutating)


def _admission_policy(obj: Json) -> Found:
    spec = _dict(obj.get("spec"))
    rules = _list(_dict(spec.get("matchConstraints")).get("resourceRules"))
    for index, rule in enumerate(rules):
        path = f"spec.matchConstraints.resourceRules[{index}]"
        mutating = obj.get("kind") == "MutatingAdmissionPolicy"
        yield from _admission_rule(_dict(rule), path, mutating=mutating)
    if spec.get("auditAnnotations"):
        yield "spec.auditAnnotations", "there is no audit log"


def _policy_binding(obj: Json) -> Found:
    if "Audit" in _list(_dict(obj.get("spec")).get("validationActions")):
        yield "spec.validationActions[Audit]", "there is no audit log"


def _admission_rule(rule: Json, path: str, *, mutating: bool) -> Found:
    connects = "CONNECT" in _list(rule.get("operations"))
    reviewed: tuple[str, ...] = _REVIEWED_SUBRESOURCES
    if connects and mutating:
        yield (
            f"{path}.operations[CONNECT]",
            "only validating webhooks and policies review connections",
        )
    elif connects:
        reviewed += _REVIEWED_CONNECTIONS
    for resource in _list(rule.get("resources")):
        if str(resource).partition("/")[2] not in reviewed:
            why = (
                "of subresources, only status, ephemeralcontainers, resize and connections are "
                "reviewed"
            )
            yield f"{path}.resources[{resource}]", why


_FIELDS: Mapping[tuple[str, str], Callable[[Json], Found]] = {
    ("", "Namespace"): _namespace,
    ("", "Pod"): _pod,
    ("", "ReplicationController"): _workload,
    ("", "Service"): _service,
    (ADMISSION, "MutatingAdmissionPolicy"): _admission_policy,
    (ADMISSION, "MutatingWebhookConfiguration"): _webhook_configuration,
    (ADMISSION, "ValidatingAdmissionPolicy"): _admission_policy,
    (ADMISSION, "ValidatingAdmissionPolicyBinding"): _policy_binding,
    (ADMISSION, "ValidatingWebhookConfiguration"): _webhook_configuration,
    ("apps", "DaemonSet"): _workload,
    ("apps", "Deployment"): _workload,
    ("apps", "ReplicaSet"): _workload,
    ("apps", "StatefulSet"): _workload,
    ("batch", "CronJob"): _cron_job,
    ("batch", "Job"): _batch_job,
    ("batch.volcano.sh", "CronJob"): _volcano_cron_job,
    ("batch.volcano.sh", "Job"): _volcano_job,
    ("flow.volcano.sh", "JobTemplate"): _job_template,
    ("scheduling.volcano.sh", "Queue"): _queue,
}
