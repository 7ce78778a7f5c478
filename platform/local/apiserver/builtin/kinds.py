"""Table of the built-in kinds: one row per kind, groups in the order of discovery."""

from dataclasses import replace
from typing import Any

from ....model import names
from ....model.names import Resource
from ..kinds.groups import (
    ADMISSION,
    AUTHENTICATION,
    AUTHORIZATION,
    CERTIFICATES,
    FLOW_CONTROL,
    METRICS,
    NETWORKING,
    RBAC,
    STORAGE,
)
from ..kinds.info import Column, KindInfo, RestStrategy, Subresource, common_subresources
from . import autoscaler_conversion, event_conversion, metrics_schemas
from .pod_resizes import RESIZE
from .pod_strategy import EPHEMERAL_CONTAINERS
from .strategies import APPROVAL, AUTOSCALER_V1, AUTOSCALER_V1_STATUS, BuiltInStrategy

__all__ = ["BUILT_IN", "Column", "KindInfo", "RestStrategy", "Subresource"]

_CONNECT = ("create", "get")
_CREATE = ("create",)
_PROXY = ("create", "delete", "get", "patch", "update")
_READ = ("get", "list")

_EVENTS_GROUP = "events.k8s.io"


def _kind(resource: Resource, **options: Any) -> KindInfo:
    """Describe a built-in kind; common *subresources* are given by name."""
    known = common_subresources(resource)
    given = options.pop("subresources", ())
    subresources = [
        known[subresource] if isinstance(subresource, str) else subresource for subresource in given
    ]
    return KindInfo(
        resource=resource,
        strategy=options.pop("strategy", None) or BuiltInStrategy(resource),
        singular=resource.kind.lower(),
        list_kind=f"{resource.kind}List",
        subresources={subresource.name: subresource for subresource in subresources},
        **options,
    )


def _label(*labels: str, missing: str = "") -> dict[str, tuple[tuple[str, ...], str]]:
    """Field labels that equal the paths of their fields."""
    return {label: (tuple(label.split(".")), missing) for label in labels}


def _cluster(group: str, plural: str, kind: str) -> Resource:
    return Resource(group, "v1", plural, kind, namespaced=False)


_POD_LABELS = {
    **_label(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    **_label("spec.hostNetwork", missing="false"),
    "spec.host": (("spec", "nodeName"), ""),
}
_ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_LABELS = {
    **_label(*(f"involvedObject.{name}" for name in _ABOUT), "reason", "type"),
    "reportingComponent": (("reportingComponent",), ""),
    "source": (("source", "component"), ""),
}
_NEW_EVENT_LABELS = {f"regarding.{name}": f"involvedObject.{name}" for name in _ABOUT} | {
    "reason": "reason",
    "type": "type",
    "reportingController": "reportingComponent",
}
_CSRS = _cluster(CERTIFICATES, "certificatesigningrequests", "CertificateSigningRequest")
_ALL = ("all",)
_EXTENSIONS = ("api-extensions",)
_SELECTED_BY_REPLICAS = _label("status.replicas", missing="0")

_CORE = (
    _kind(Resource("", "v1", "bindings", "Binding"), verbs=_CREATE),
    _kind(names.CONFIGMAPS, short_names=("cm",)),
    _kind(Resource("", "v1", "endpoints", "Endpoints"), short_names=("ep",)),
    _kind(
        names.EVENTS,
        short_names=("ev",),
        field_labels=_EVENT_LABELS,
        fallback_labels={"source": "reportingComponent"},
    ),
    _kind(Resource("", "v1", "limitranges", "LimitRange"), short_names=("limits",)),
    _kind(
        names.NAMESPACES,
        short_names=("ns",),
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        subresources=("status", Subresource("finalize", "Namespace", ("update",))),
        field_labels=_label("status.phase"),
    ),
    _kind(
        names.NODES,
        short_names=("no",),
        subresources=("status", Subresource("proxy", "NodeProxyOptions", _PROXY, connects=True)),
        field_labels=_label("spec.unschedulable", missing="false"),
        status_on_create=True,
    ),
    _kind(
        names.PERSISTENTVOLUMECLAIMS,
        short_names=("pvc",),
        subresources=("status",),
        delete_returns_object=True,
    ),
    _kind(
        names.PERSISTENTVOLUMES,
        short_names=("pv",),
        subresources=("status",),
        delete_returns_object=True,
    ),
    _kind(
        names.PODS,
        short_names=("po",),
        categories=_ALL,
        subresources=(
            "status",
            Subresource("binding", "Binding", _CREATE),
            Subresource(
                "ephemeralcontainers",
                "Pod",
                ("get", "patch", "update"),
                strategy=EPHEMERAL_CONTAINERS,
            ),
            Subresource("eviction", "Eviction", _CREATE, "policy"),
            Subresource("log", "Pod", ("get",)),
            Subresource("attach", "PodAttachOptions", _CONNECT, connects=True),
            Subresource("exec", "PodExecOptions", _CONNECT, connects=True),
            Subresource("portforward", "PodPortForwardOptions", _CONNECT, connects=True),
            Subresource("proxy", "PodProxyOptions", _PROXY, connects=True),
            Subresource("resize", "Pod", ("get", "patch", "update"), strategy=RESIZE),
        ),
        field_labels=_POD_LABELS,
        stored_labels={"spec.host": "spec.nodeName"},
        delete_returns_object=True,
        generation="spec",
    ),
    _kind(
        Resource("", "v1", "podtemplates", "PodTemplate"),
        delete_returns_object=True,
        generation="all",
    ),
    _kind(
        Resource("", "v1", "replicationcontrollers", "ReplicationController"),
        short_names=("rc",),
        categories=_ALL,
        subresources=("status", "scale"),
        field_labels=_SELECTED_BY_REPLICAS,
        orphan_by_default=True,
        generation="spec",
    ),
    _kind(
        names.RESOURCEQUOTAS,
        short_names=("quota",),
        subresources=("status",),
        delete_returns_object=True,
    ),
    _kind(names.SECRETS, field_labels=_label("type")),
    _kind(
        names.SERVICEACCOUNTS,
        short_names=("sa",),
        subresources=(Subresource("token", "TokenRequest", _CREATE, AUTHENTICATION),),
        delete_returns_object=True,
    ),
    _kind(
        names.SERVICES,
        short_names=("svc",),
        categories=_ALL,
        subresources=("status", Subresource("proxy", "ServiceProxyOptions", _PROXY, connects=True)),
        field_labels=_label("spec.clusterIP", "spec.type"),
        delete_returns_object=True,
    ),
)

_WORKLOADS = (
    _kind(Resource("apps", "v1", "controllerrevisions", "ControllerRevision")),
    _kind(
        Resource("apps", "v1", "daemonsets", "DaemonSet"),
        short_names=("ds",),
        categories=_ALL,
        subresources=("status",),
        generation="spec",
    ),
    _kind(
        Resource("apps", "v1", "deployments", "Deployment"),
        short_names=("deploy",),
        categories=_ALL,
        subresources=("status", "scale"),
        generation="spec",
        generation_metadata="annotations",
    ),
    _kind(
        Resource("apps", "v1", "replicasets", "ReplicaSet"),
        short_names=("rs",),
        categories=_ALL,
        subresources=("status", "scale"),
        generation="spec",
    ),
    _kind(
        Resource("apps", "v1", "statefulsets", "StatefulSet"),
        short_names=("sts",),
        categories=_ALL,
        subresources=("status", "scale"),
        generation="spec",
    ),
    _kind(
        Resource(_EVENTS_GROUP, "v1", "events", "Event"),
        short_names=("ev",),
        stored_as=names.EVENTS,
        field_labels=_label(*_NEW_EVENT_LABELS),
        stored_labels=_NEW_EVENT_LABELS,
        conversion=(event_conversion.to_core, event_conversion.from_core),
    ),
    _kind(
        autoscaler_conversion.V2,
        short_names=("hpa",),
        categories=_ALL,
        subresources=("status",),
    ),
    _kind(
        autoscaler_conversion.V1,
        short_names=("hpa",),
        categories=_ALL,
        strategy=BuiltInStrategy(autoscaler_conversion.V1, AUTOSCALER_V1),
        subresources=(
            replace(
                common_subresources(autoscaler_conversion.V1)["status"],
                status_strategy=BuiltInStrategy(autoscaler_conversion.V1, AUTOSCALER_V1_STATUS),
            ),
        ),
        stored_as=autoscaler_conversion.V2,
        conversion=(autoscaler_conversion.to_v2, autoscaler_conversion.from_v2),
    ),
    _kind(
        names.BATCH_CRONJOBS,
        short_names=("cj",),
        categories=_ALL,
        subresources=("status",),
        generation="spec",
    ),
    _kind(
        names.BATCH_JOBS,
        categories=_ALL,
        subresources=("status",),
        field_labels={"status.successful": (("status", "succeeded"), "0")},
        orphan_by_default=True,
        generation="spec",
    ),
)

_ACCESS = (
    _kind(_cluster(AUTHENTICATION, "selfsubjectreviews", "SelfSubjectReview"), verbs=_CREATE),
    _kind(names.TOKENREVIEWS, verbs=_CREATE),
    _kind(
        Resource(AUTHORIZATION, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview"),
        verbs=_CREATE,
    ),
    _kind(
        _cluster(AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        verbs=_CREATE,
    ),
    _kind(
        _cluster(AUTHORIZATION, "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
        verbs=_CREATE,
    ),
    _kind(_cluster(AUTHORIZATION, "subjectaccessreviews", "SubjectAccessReview"), verbs=_CREATE),
    _kind(
        _CSRS,
        short_names=("csr",),
        subresources=(
            Subresource(
                "approval",
                _CSRS.kind,
                ("get", "patch", "update"),
                CERTIFICATES,
                status_strategy=BuiltInStrategy(_CSRS, APPROVAL),
            ),
            "status",
        ),
        field_labels=_label("spec.signerName"),
    ),
    _kind(_cluster(RBAC, "clusterrolebindings", "ClusterRoleBinding")),
    _kind(_cluster(RBAC, "clusterroles", "ClusterRole")),
    _kind(Resource(RBAC, "v1", "rolebindings", "RoleBinding")),
    _kind(Resource(RBAC, "v1", "roles", "Role")),
)

_NETWORK = (
    _kind(_cluster(NETWORKING, "ingressclasses", "IngressClass"), generation="spec"),
    _kind(
        Resource(NETWORKING, "v1", "ingresses", "Ingress"),
        short_names=("ing",),
        subresources=("status",),
        generation="spec",
    ),
    _kind(names.IP_ADDRESSES, short_names=("ip",)),
    _kind(names.NETWORKPOLICIES, short_names=("netpol",), generation="spec"),
    _kind(names.SERVICE_CIDRS, subresources=("status",)),
    _kind(
        names.POD_DISRUPTION_BUDGETS,
        short_names=("pdb",),
        subresources=("status",),
        update_needs_rv=True,
        generation="spec",
    ),
)

_STORAGE_KINDS = (
    _kind(_cluster(STORAGE, "csidrivers", "CSIDriver"), delete_returns_object=True),
    _kind(_cluster(STORAGE, "csinodes", "CSINode"), delete_returns_object=True),
    _kind(Resource(STORAGE, "v1", "csistoragecapacities", "CSIStorageCapacity")),
    _kind(
        names.STORAGECLASSES,
        short_names=("sc",),
        delete_returns_object=True,
    ),
    _kind(
        _cluster(STORAGE, "volumeattachments", "VolumeAttachment"),
        subresources=("status",),
        delete_returns_object=True,
    ),
    _kind(
        _cluster(STORAGE, "volumeattributesclasses", "VolumeAttributesClass"),
        short_names=("vac",),
        delete_returns_object=True,
    ),
)

_WEBHOOK_KINDS = tuple(
    _kind(
        _cluster(ADMISSION, plural, kind),
        categories=_EXTENSIONS,
        subresources=subresources,
        update_needs_rv=True,
        generation="all",
    )
    for plural, kind, subresources in (
        ("mutatingadmissionpolicies", "MutatingAdmissionPolicy", ()),
        ("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", ()),
        ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", ()),
        ("validatingadmissionpolicies", "ValidatingAdmissionPolicy", ("status",)),
        ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", ()),
        ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration", ()),
    )
)
_DEFINITIONS = _kind(
    names.CRDS,
    short_names=("crd", "crds"),
    categories=_EXTENSIONS,
    subresources=("status",),
    update_needs_rv=True,
    generation="spec",
    offload_threshold=0,  # compiling one pattern may take milliseconds
)
_API_SERVICES = _kind(
    names.API_SERVICES,
    categories=_EXTENSIONS,
    subresources=("status",),
    update_needs_rv=True,
)

_OTHERS = (
    _kind(names.PRIORITYCLASSES, short_names=("pc",), generation="all"),
    _kind(names.NATIVE_PODGROUPS, subresources=("status",)),
    _kind(names.WORKLOADS),
    _kind(names.LEASES, update_needs_rv=True),
    _kind(_cluster("node.k8s.io", "runtimeclasses", "RuntimeClass")),
    _kind(
        Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
        generation="all",
        generation_metadata="labels",
    ),
    _kind(
        _cluster(FLOW_CONTROL, "flowschemas", "FlowSchema"),
        subresources=("status",),
        generation="spec",
    ),
    _kind(
        _cluster(FLOW_CONTROL, "prioritylevelconfigurations", "PriorityLevelConfiguration"),
        subresources=("status",),
        generation="spec",
    ),
    _kind(
        names.DEVICECLASSES,
        delete_returns_object=True,
        generation="spec",
    ),
    _kind(
        names.RESOURCECLAIMS,
        subresources=("status",),
        delete_returns_object=True,
    ),
    _kind(
        names.RESOURCECLAIMTEMPLATES,
        delete_returns_object=True,
    ),
    _kind(
        names.RESOURCESLICES,
        field_labels=_label("spec.nodeName", "spec.driver"),
        delete_returns_object=True,
        generation="spec",
    ),
    _kind(
        names.DEVICETAINTRULES,
        subresources=("status",),
        delete_returns_object=True,
        generation="spec",
    ),
)

NODE_METRICS = _kind(
    Resource(METRICS, "v1beta1", "nodes", "NodeMetrics", namespaced=False),
    verbs=_READ,
    computed=True,
    openapi=metrics_schemas.NODE_METRICS,
)
POD_METRICS = _kind(
    Resource(METRICS, "v1beta1", "pods", "PodMetrics"),
    verbs=_READ,
    computed=True,
    openapi=metrics_schemas.POD_METRICS,
)
BUILT_IN: tuple[KindInfo, ...] = (
    *_CORE,
    *_WORKLOADS,
    *_ACCESS,
    *_NETWORK,
    *_STORAGE_KINDS,
    *_WEBHOOK_KINDS,
    _DEFINITIONS,
    _API_SERVICES,
    *_OTHERS,
)
"""All built-in kinds whose objects are stored; groups in the order of discovery."""

COMPUTED = (NODE_METRICS, POD_METRICS)
"""Kinds that can only be read."""
