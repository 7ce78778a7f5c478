"""Table cells of built-in kinds; for pods see :mod:`.pod_printer`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..kinds.groups import ADMISSION, FLOW_CONTROL, RBAC
from .ages import UNKNOWN, age
from .pod_printer import pod_row

Json = dict[str, Any]

NONE = "<none>"
_UNSET = "<unset>"
_SHOWN_ADDRESSES = 3
_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_ROLE = "node-role.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns of a kind, and the function that returns an object's cells."""

    titles: str
    """Names of the columns; ``+`` marks wide columns, ``#`` integer and ``?`` boolean ones."""

    row: Callable[[Json, datetime], list[Any]]

    def columns(self) -> list[dict[str, Any]]:
        """Return name, type and priority of each column."""
        return [
            {
                "name": title.lstrip("+#?"),
                "type": _column_type(title[:2]),
                "priority": int(title.startswith("+")),
            }
            for title in self.titles.split(", ")
        ]


def _column_type(marks: str) -> str:
    if "#" in marks:
        return "integer"
    return "boolean" if "?" in marks else "string"


def name_of(obj: Json) -> str:
    """Return the name of an object."""
    return str(obj["metadata"].get("name", ""))


def age_of(obj: Json, now: datetime) -> str:
    """Return the age of an object."""
    return age(obj["metadata"].get("creationTimestamp"), now)


def or_none(items: list[str]) -> str:
    """Return items joined with commas, or ``<none>``."""
    return ",".join(items) or NONE


def pairs(labels: Mapping[str, str] | None) -> str:
    """Return labels as ``a=b,c=d``, or ``<none>``."""
    return or_none([f"{key}={value}" for key, value in sorted((labels or {}).items())])


def selector_text(selector: Json | None) -> str:
    """Return a label selector in command-line syntax."""
    selector = selector or {}
    requirements = [
        f"{key}={value}" for key, value in sorted(selector.get("matchLabels", {}).items())
    ]
    for each in selector.get("matchExpressions", ()):
        values = f"({','.join(sorted(each.get('values', ())))})"
        key = each.get("key", "")
        form = {"In": f"{key} in {values}", "NotIn": f"{key} notin {values}", "Exists": key}
        requirements.append(form.get(each.get("operator", ""), f"!{key}"))
    return or_none(requirements)


def _node(obj: Json, now: datetime) -> list[Any]:
    status = obj.get("status", {})
    info = status.get("nodeInfo", {})
    labels = obj["metadata"].get("labels", {})
    roles = sorted(key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE))
    listed = reversed(status.get("addresses") or ())
    addresses = {each.get("type"): each.get("address") or NONE for each in listed}
    return [
        name_of(obj),
        _node_status(obj),
        or_none(roles),
        age_of(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _node_status(obj: Json) -> str:
    listed = obj.get("status", {}).get("conditions", ())
    conditions = {each.get("type"): each.get("status", "") for each in listed}
    ready = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    cordoned = obj.get("spec", {}).get("unschedulable")
    return f"{ready},SchedulingDisabled" if cordoned else ready


def _namespace(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("status", {}).get("phase", ""), age_of(obj, now)]


def _service(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP") or NONE]
    return [
        name_of(obj),
        spec.get("type", ""),
        addresses[0],
        _external_address(obj),
        or_none([_port(port) for port in spec.get("ports", ())]),
        age_of(obj, now),
        pairs(spec.get("selector")),
    ]


def _external_address(obj: Json) -> str:
    spec = obj.get("spec", {})
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    given = [
        entry.get("ip") or entry.get("hostname", "")
        for entry in obj.get("status", {}).get("loadBalancer", {}).get("ingress", ())
    ]
    waiting = "<pending>" if spec.get("type") == "LoadBalancer" else NONE
    return ",".join([*given, *spec.get("externalIPs", ())]) or waiting


def _port(port: Json) -> str:
    outer = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{outer}/{port.get('protocol', 'TCP')}"


def _endpoints(obj: Json, now: datetime) -> list[Any]:
    found = [
        f"{address.get('ip')}:{port.get('port')}" if port else str(address.get("ip"))
        for subset in obj.get("subsets", ())
        for port in subset.get("ports") or [None]
        for address in subset.get("addresses") or ()
    ]
    return [name_of(obj), _some(found), age_of(obj, now)]


def _some(items: list[str]) -> str:
    shown = ",".join(items[:_SHOWN_ADDRESSES]) or NONE
    more = len(items) - _SHOWN_ADDRESSES
    return f"{shown} + {more} more..." if more > 0 else shown


def _endpoint_slice(obj: Json, now: datetime) -> list[Any]:
    ports = [str(port.get("port", "*")) for port in obj.get("ports") or ()]
    addresses = [a for each in obj.get("endpoints") or () for a in each.get("addresses") or ()]
    kind = obj.get("addressType", "")
    return [
        name_of(obj),
        kind,
        _some(ports) if ports else _UNSET,
        _some(addresses),
        age_of(obj, now),
    ]


def _config_map(obj: Json, now: datetime) -> list[Any]:
    size = len(obj.get("data", {})) + len(obj.get("binaryData", {}))
    return [name_of(obj), size, age_of(obj, now)]


def _secret(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("type", ""), len(obj.get("data", {})), age_of(obj, now)]


def _plain(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), age_of(obj, now)]


def _event(obj: Json, now: datetime) -> list[Any]:
    about, source = obj.get("involvedObject", {}), obj.get("source", {})
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    series = obj.get("series", {})
    last = series.get("lastObservedTime") or obj.get("lastTimestamp") or first
    component = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or obj.get("reportingInstance", "")
    return [
        age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        obj.get("message", "").strip(),
        age(first, now),
        series.get("count") or obj.get("count") or 1,
        name_of(obj),
    ]


def _modes(modes: list[str] | tuple[str, ...]) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in modes)


def _volume(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    claim = spec.get("claimRef")
    phase = "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", "")
    return [
        name_of(obj),
        spec.get("capacity", {}).get("storage", ""),
        _modes(spec.get("accessModes", ())),
        spec.get("persistentVolumeReclaimPolicy", ""),
        phase,
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or _UNSET,
        status.get("reason", ""),
        age_of(obj, now),
        spec.get("volumeMode") or _UNSET,
    ]


def _claim(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    volume = spec.get("volumeName", "")
    phase = "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", "")
    return [
        name_of(obj),
        phase,
        volume,
        status.get("capacity", {}).get("storage", "") if volume else "",
        _modes(status.get("accessModes", ())) if volume else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or _UNSET,
        age_of(obj, now),
        spec.get("volumeMode") or _UNSET,
    ]


def _quota(obj: Json, now: datetime) -> list[Any]:
    status = obj.get("status", {})
    used = status.get("used", {})
    shown = {
        name: f"{name}: {used.get(name, '0')}/{hard}"
        for name, hard in sorted(status.get("hard", {}).items())
    }
    limits = [text for name, text in shown.items() if name.startswith("limits.")]
    requests = [text for name, text in shown.items() if not name.startswith("limits.")]
    return [name_of(obj), ", ".join(requests), ", ".join(limits), age_of(obj, now)]


def _priority_class(obj: Json, now: datetime) -> list[Any]:
    return [
        name_of(obj),
        obj.get("value", 0),
        bool(obj.get("globalDefault", False)),
        age_of(obj, now),
        obj.get("preemptionPolicy", ""),
    ]


def _native_podgroup(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec") or {}
    conditions = {each["type"]: each for each in (obj.get("status") or {}).get("conditions") or ()}
    status = "Pending"
    if scheduled := conditions.get("PodGroupScheduled"):
        status = "Scheduled" if scheduled["status"] == "True" else "Unschedulable"
    if disrupted := conditions.get("DisruptionTarget"):
        status = disrupted["reason"]
    workload = (spec.get("podGroupTemplateRef") or {}).get("workload") or {}
    return [
        name_of(obj),
        "Gang" if (spec.get("schedulingPolicy") or {}).get("gang") else "Basic",
        workload.get("workloadName", "<none>"),
        status,
        age_of(obj, now),
    ]


def _lease(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("spec", {}).get("holderIdentity", ""), age_of(obj, now)]


def _storage_class(obj: Json, now: datetime) -> list[Any]:
    default = "storageclass.kubernetes.io/is-default-class"
    chosen = obj["metadata"].get("annotations", {}).get(default) == "true"
    return [
        f"{name_of(obj)} (default)" if chosen else name_of(obj),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", ""),
        obj.get("volumeBindingMode", ""),
        bool(obj.get("allowVolumeExpansion", False)),
        age_of(obj, now),
    ]


def _binding(obj: Json, now: datetime) -> list[Any]:
    role = obj.get("roleRef", {})
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in obj.get("subjects", ()):
        name = subject.get("name", "")
        space = subject.get("namespace")
        by_kind.setdefault(subject.get("kind", ""), []).append(f"{space}/{name}" if space else name)
    names = [", ".join(by_kind[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [name_of(obj), f"{role.get('kind')}/{role.get('name')}", age_of(obj, now), *names]


def _network_policy(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), selector_text(obj.get("spec", {}).get("podSelector")), age_of(obj, now)]


def _webhooks(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), len(obj.get("webhooks", ())), age_of(obj, now)]


def _runtime_class(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("handler", ""), age_of(obj, now)]


def _csi_node(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), len(obj.get("spec", {}).get("drivers") or ()), age_of(obj, now)]


def _flow_schema(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    conditions = obj.get("status", {}).get("conditions") or ()
    dangling = [each.get("status", "") for each in conditions if each.get("type") == "Dangling"]
    return [
        name_of(obj),
        (spec.get("priorityLevelConfiguration") or {}).get("name", ""),
        spec.get("matchingPrecedence", 0),
        (spec.get("distinguisherMethod") or {}).get("type", NONE),
        age_of(obj, now),
        next(iter(dangling), "?"),
    ]


def _priority_level(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    level = spec.get("limited") or {}
    queuing = (level.get("limitResponse") or {}).get("queuing") or {}
    return [
        name_of(obj),
        spec.get("type", ""),
        level.get("nominalConcurrencyShares", NONE),
        *(queuing.get(key, NONE) for key in ("queues", "handSize", "queueLengthLimit")),
        age_of(obj, now),
    ]


_CREATED = "Name, Age"
_BINDINGS = Printer("Name, Role, Age, +Users, +Groups, +ServiceAccounts", _binding)
_HOOKS = Printer("Name, #Webhooks, Age", _webhooks)

PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Pod"): Printer(
        "Name, Ready, Status, Restarts, Age, +IP, +Node, +Nominated Node, +Readiness Gates",
        pod_row,
    ),
    ("", "Node"): Printer(
        "Name, Status, Roles, Age, Version, +Internal-IP, +External-IP, +OS-Image, "
        "+Kernel-Version, +Container-Runtime",
        _node,
    ),
    ("", "Namespace"): Printer("Name, Status, Age", _namespace),
    ("", "Service"): Printer(
        "Name, Type, Cluster-IP, External-IP, Port(s), Age, +Selector", _service
    ),
    ("", "Endpoints"): Printer("Name, Endpoints, Age", _endpoints),
    ("", "ConfigMap"): Printer("Name, Data, Age", _config_map),
    ("", "Secret"): Printer("Name, Type, Data, Age", _secret),
    ("", "ServiceAccount"): Printer(_CREATED, _plain),
    ("", "Event"): Printer(
        "Last Seen, Type, Reason, Object, +Subobject, +Source, Message, +First Seen, +Count, +Name",
        _event,
    ),
    ("", "PersistentVolume"): Printer(
        "Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, "
        "VolumeAttributesClass, Reason, Age, +VolumeMode",
        _volume,
    ),
    ("", "PersistentVolumeClaim"): Printer(
        "Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, "
        "+VolumeMode",
        _claim,
    ),
    ("", "ResourceQuota"): Printer("Name, Request, Limit, Age", _quota),
    (ADMISSION, "MutatingWebhookConfiguration"): _HOOKS,
    (ADMISSION, "ValidatingWebhookConfiguration"): _HOOKS,
    ("coordination.k8s.io", "Lease"): Printer("Name, Holder, Age", _lease),
    ("discovery.k8s.io", "EndpointSlice"): Printer(
        "Name, AddressType, Ports, Endpoints, Age", _endpoint_slice
    ),
    (FLOW_CONTROL, "FlowSchema"): Printer(
        "Name, PriorityLevel, MatchingPrecedence, DistinguisherMethod, Age, MissingPL",
        _flow_schema,
    ),
    (FLOW_CONTROL, "PriorityLevelConfiguration"): Printer(
        "Name, Type, NominalConcurrencyShares, Queues, HandSize, QueueLengthLimit, Age",
        _priority_level,
    ),
    ("networking.k8s.io", "NetworkPolicy"): Printer("Name, Pod-Selector, Age", _network_policy),
    ("node.k8s.io", "RuntimeClass"): Printer("Name, Handler, Age", _runtime_class),
    (RBAC, "ClusterRoleBinding"): _BINDINGS,
    (RBAC, "RoleBinding"): _BINDINGS,
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        "Name, #Value, ?Global-Default, Age, PreemptionPolicy", _priority_class
    ),
    ("scheduling.k8s.io", "PodGroup"): Printer(
        "Name, Policy, Workload, Status, Age", _native_podgroup
    ),
    ("storage.k8s.io", "CSINode"): Printer("Name, #Drivers, Age", _csi_node),
    ("storage.k8s.io", "StorageClass"): Printer(
        "Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age",
        _storage_class,
    ),
}
"""Printers by group and kind."""
