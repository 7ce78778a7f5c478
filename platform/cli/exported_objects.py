"""Which objects of an embedded cluster are a user's, and their manifests. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..model.names import (
    DIR_PROVISIONER,
    DIR_STORAGE_CLASS,
    MEMBERS,
    PLAN,
    TEMPLATE_GENERATION,
    WHY,
)
from ..model.recorded import RECORDED

Json = dict[str, Any]

SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease", "volcano-system"})
SECRET = "Secret"  # noqa: S105
LEFT_OUT_KINDS = frozenset(
    {
        "APIService", "Binding", "CSINode", "CertificateSigningRequest", "Command",
        "ControllerRevision", "EndpointSlice", "Event", "IPAddress", "Lease", "Node", "NodeMetrics",
        "PersistentVolume", "PodMetrics", "ResourceSlice", "ServiceCIDR", "VolumeAttachment",
    }
)  # fmt: skip
"""Kinds whose objects controllers or agents write, or that describe this machine."""

_CREATED_BY_CLUSTER = frozenset(
    {
        ("ConfigMap", "kube-root-ca.crt"), ("Endpoints", "kubernetes"), ("Namespace", "default"),
        ("Queue", "default"), ("Queue", "root"), ("Service", "kubernetes"),
        ("ServiceAccount", "default"), ("StorageClass", DIR_STORAGE_CLASS),
    }
)  # fmt: skip
_ENDPOINTS_MANAGER = "endpoints.kubernetes.io/managed-by"
_RESTORED_ROLE = "rbac.authorization.kubernetes.io/autoupdate"
_RESTORED_SPEC = "apf.kubernetes.io/autoupdate-spec"
_LEFT_OUT_ANNOTATIONS = frozenset(
    {
        MEMBERS, PLAN, RECORDED, TEMPLATE_GENERATION, WHY, "deployment.kubernetes.io/revision",
        "kubectl.kubernetes.io/last-applied-configuration", "pv.kubernetes.io/bind-completed",
        "pv.kubernetes.io/bound-by-controller", "volume.kubernetes.io/selected-node",
        "volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner",
    }
)  # fmt: skip
_JOB_LABELS = frozenset(
    {
        "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid",
        "job-name",
    }
)  # fmt: skip
_KEPT_METADATA = ("name", "namespace", "labels", "annotations")
_ALLOCATED_BY_SERVER = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
_FINISHED_PHASES = frozenset({"Succeed", "Succeeded", "Failed", "Completed", "Terminated"})
_FINISHED_CONDITIONS = frozenset({"Complete", "Failed", "Succeeded"})
_FINISHING_KINDS = frozenset(
    {
        "Job", "JAXJob", "JobFlow", "MPIJob", "PaddleJob", "Pod", "PyTorchJob", "TFJob",
        "XGBoostJob",
    }
)  # fmt: skip
_ORDER = (
    "CustomResourceDefinition", "Namespace", "PriorityClass", "StorageClass", "ServiceAccount",
    "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", SECRET, "ConfigMap",
    "PersistentVolumeClaim", "Queue", "JobTemplate", "Service",
)  # fmt: skip
_LAST = ("Job", "Pod")


def in_order(manifests: Iterable[Json]) -> list[Json]:
    """Return objects in an order in which they can be applied.

    What others need is first, and what runs is last. Queues are after their parents.
    """
    objects = list(manifests)
    parents = {
        each["metadata"]["name"]: each["spec"].get("parent", "")
        for each in objects
        if each["kind"] == "Queue"
    }
    return sorted(objects, key=lambda each: _order(each, parents))


def _order(obj: Json, parents: Mapping[str, str]) -> tuple[int, str, int, str, str]:
    kind, metadata = obj["kind"], obj["metadata"]
    rank = _ORDER.index(kind) if kind in _ORDER else len(_ORDER) + (kind in _LAST)
    depth = _depth(metadata["name"], parents) if kind == "Queue" else 0
    return rank, kind, depth, metadata.get("namespace", ""), metadata["name"]


def _depth(queue: str, parents: Mapping[str, str]) -> int:
    found = set[str]()
    while queue in parents and queue not in found:  # Without webhooks they may form a cycle.
        found.add(queue)
        queue = parents[queue]
    return len(found)


def is_finished(obj: Json) -> bool:
    """Return whether a job, a flow or a pod has ended: applied again, it would run again."""
    if obj["kind"] not in _FINISHING_KINDS:
        return False
    status = obj.get("status") or {}
    state = status.get("state")
    phase = state.get("phase") if isinstance(state, dict) else status.get("phase")
    if phase in _FINISHED_PHASES:
        return True
    conditions = status.get("conditions")
    # Those of a JobFlow are a mapping of its jobs.
    return isinstance(conditions, list) and any(
        each.get("type") in _FINISHED_CONDITIONS and each.get("status") == "True"
        for each in conditions
    )


def is_of_user(obj: Json) -> bool:
    """Return whether a user created an object, rather than a controller or the cluster itself."""
    kind, metadata = obj["kind"], obj["metadata"]
    annotations = metadata.get("annotations") or {}
    if kind in LEFT_OUT_KINDS or (kind, metadata["name"]) in _CREATED_BY_CLUSTER:
        return False
    if {metadata.get("namespace"), metadata["name"] if kind == "Namespace" else ""} & (
        SYSTEM_NAMESPACES
    ):
        return False
    if "deletionTimestamp" in metadata or _RESTORED_ROLE in annotations:
        return False
    if annotations.get(_RESTORED_SPEC) == "true":
        return False
    if _ENDPOINTS_MANAGER in (metadata.get("labels") or {}):
        return False
    if any(each.get("controller") for each in metadata.get("ownerReferences") or ()):
        return False
    if kind == "PriorityClass" and metadata["name"].startswith("system-"):
        return False
    return obj.get("type") != "kubernetes.io/service-account-token"


def to_manifest(obj: Json) -> Json:
    """Return what to apply elsewhere: without status, and without what servers set."""
    metadata = {key: value for key in _KEPT_METADATA if (value := obj["metadata"].get(key))}
    annotations = {
        key: value
        for key, value in metadata.pop("annotations", {}).items()
        if key not in _LEFT_OUT_ANNOTATIONS
    }
    if annotations:
        metadata["annotations"] = annotations
    found = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    result = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata, **found}
    kind = obj["kind"]
    if kind == "Namespace":
        result.pop("spec", None)
        metadata.get("labels", {}).pop("kubernetes.io/metadata.name", None)
    elif kind == "ServiceAccount":
        result.pop("secrets", None)
    elif kind == "Pod":
        result["spec"] = _pod_spec(obj["spec"])
    elif kind == "Service":
        result["spec"] = _service_spec(obj["spec"])
    elif kind == "PersistentVolumeClaim":
        result["spec"] = _claim_spec(obj["spec"])
    elif kind == "Job" and obj["apiVersion"] == "batch/v1":
        result["spec"] = _job_spec(obj["spec"])
    elif kind == "Job" and "volumes" in obj["spec"]:
        volumes = [_without_created_claim(each) for each in obj["spec"]["volumes"]]
        result["spec"] = {**obj["spec"], "volumes": volumes}
    if not metadata.get("labels", True):
        del metadata["labels"]
    return result


def notes(manifest: Json) -> list[str]:
    """Return what of a manifest depends on this machine."""
    found = []
    if _has_key(manifest, "hostPath"):
        found.append("mounts a directory of this machine (hostPath)")
    if manifest["kind"] == "StorageClass" and manifest.get("provisioner") == DIR_PROVISIONER:
        found.append(f"has the provisioner {DIR_PROVISIONER}, which other clusters lack")
    return found


def _has_key(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has_key(each, key) for each in value.values())
    return isinstance(value, list) and any(_has_key(each, key) for each in value)


def _pod_spec(spec: Json) -> Json:
    """Return the spec of a pod as it was before admission."""
    left_out = ("nodeName", "priority", "preemptionPolicy", "serviceAccount")
    result = {key: value for key, value in spec.items() if key not in left_out}
    mounted = {
        each["name"]
        for each in spec.get("volumes") or ()
        if each["name"].startswith("kube-api-access-")
    }
    if "volumes" in result:
        result["volumes"] = [each for each in spec["volumes"] if each["name"] not in mounted]
    for field in ("initContainers", "containers"):
        if field in result:
            result[field] = [_without_mounts(each, mounted) for each in result[field]]
    result.pop("ephemeralContainers", None)
    return result


def _without_mounts(container: Json, volumes: set[str]) -> Json:
    mounts = container.get("volumeMounts")
    if not mounts:
        return container
    return {**container, "volumeMounts": [each for each in mounts if each["name"] not in volumes]}


def _service_spec(spec: Json) -> Json:
    headless = spec.get("clusterIP") == "None"
    result = {key: value for key, value in spec.items() if key not in _ALLOCATED_BY_SERVER}
    result.pop("healthCheckNodePort", None)
    if headless:
        result["clusterIP"] = "None"
    if "ports" in result:
        result["ports"] = [
            {key: value for key, value in port.items() if key != "nodePort"}
            for port in result["ports"]
        ]
    return result


def _claim_spec(spec: Json) -> Json:
    """Return the spec of a claim that is not bound; of the cluster's default class, if of ours."""
    result = {key: value for key, value in spec.items() if key != "volumeName"}
    if result.get("storageClassName") == DIR_STORAGE_CLASS:
        del result["storageClassName"]
    return result


def _without_created_claim(volume: Json) -> Json:
    """Return a volume of a Volcano job without the name of the claim that its controller created.

    A volume with the spec of a claim, too, would be rejected.
    """
    if "volumeClaim" not in volume:
        return volume
    return {key: value for key, value in volume.items() if key != "volumeClaimName"}


def _job_spec(spec: Json) -> Json:
    """Return the spec of a Job of batch/v1 without the selector that the server generates."""
    if spec.get("manualSelector"):
        return spec
    result = {key: value for key, value in spec.items() if key != "selector"}
    template = dict(result["template"])
    metadata = dict(template.get("metadata") or {})
    labels = {k: v for k, v in (metadata.pop("labels", None) or {}).items() if k not in _JOB_LABELS}
    if labels:
        metadata["labels"] = labels
    template["metadata"] = metadata
    return {**result, "template": template}
