"""Defaults of pods and pod templates, and the initial status of pods."""

from typing import Any

from ....model import quantity
from ..current_time import now
from .enums import PROBES
from .pod_level_resources import default_pod_resources

Json = dict[str, Any]

_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
_MODE = 0o644
_TOKEN_SECONDS = 3600
_QOS_RESOURCES = ("cpu", "memory")


def default_pod(pod: Json) -> None:
    """Default a pod."""
    _unite_addresses(pod.get("status") or {})
    spec = pod.get("spec")
    if spec is None:
        return
    default_pod_spec(spec)
    if spec.get("hostNetwork"):
        _default_host_ports(spec)
    spec.setdefault("enableServiceLinks", True)
    for name in ("initContainers", "containers"):
        for container in spec.get(name) or ():
            _default_requests(container["resources"])
    default_pod_resources(spec)


def _unite_addresses(status: Json) -> None:
    """Keep the address of a pod equal to the first of its addresses."""
    address, addresses = status.get("podIP"), status.get("podIPs")
    if not address and addresses:
        status["podIP"] = addresses[0].get("ip", "")
    elif address and (not addresses or addresses[0].get("ip") != address):
        status["podIPs"] = [{"ip": address}]


def default_template(template: Json) -> None:
    """Default a pod template."""
    if spec := template.get("spec"):
        default_pod_spec(spec)


def default_pod_spec(spec: Json) -> None:
    """Default the fields that pods and templates have in common."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    # Deprecated alias; both fields are always equal.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for name in _CONTAINER_LISTS:
        for container in spec.get(name) or ():
            _default_container(container)
    for volume in spec.get("volumes", ()):
        _default_volume(volume)


def _default_container(container: Json) -> None:
    if "imagePullPolicy" not in container and "image" in container:
        container["imagePullPolicy"] = _pull_policy(container["image"])
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for name in PROBES:
        if name in container:
            _default_probe(container[name])
    for hook in container.get("lifecycle", {}).values():
        if isinstance(hook, dict) and "httpGet" in hook:
            _default_http(hook["httpGet"])
    for variable in container.get("env", ()):
        if source := variable.get("valueFrom"):
            _default_source(source)


def _pull_policy(image: str) -> str:
    """Return the default pull policy: Always for the tag latest, else IfNotPresent."""
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_probe(probe: Json) -> None:
    probe.setdefault("timeoutSeconds", 1)
    probe.setdefault("periodSeconds", 10)
    probe.setdefault("successThreshold", 1)
    probe.setdefault("failureThreshold", 3)
    if "httpGet" in probe:
        _default_http(probe["httpGet"])
    if "grpc" in probe and probe["grpc"].get("service") is None:  # the decoder adds a null
        probe["grpc"]["service"] = ""


def _default_http(action: Json) -> None:
    action.setdefault("path", "/")
    action.setdefault("scheme", "HTTP")


def _default_source(source: Json) -> None:
    if "fieldRef" in source:
        source["fieldRef"].setdefault("apiVersion", "v1")
    if "resourceFieldRef" in source:
        source["resourceFieldRef"].setdefault("divisor", "0")


def _default_host_ports(spec: Json) -> None:
    for name in ("initContainers", "containers"):
        for container in spec.get(name) or ():
            for port in container.get("ports", ()):
                port.setdefault("hostPort", port.get("containerPort"))


def _default_requests(resources: Json) -> None:
    """Default requests to the limits."""
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **resources.get("requests", {})}


def _default_volume(volume: Json) -> None:
    if volume.keys() == {"name"}:
        volume["emptyDir"] = {}
    for name in ("secret", "configMap", "downwardAPI", "projected"):
        if name in volume:
            volume[name].setdefault("defaultMode", _MODE)
    if "image" in volume:
        reference = volume["image"].get("reference", "")
        volume["image"].setdefault("pullPolicy", _pull_policy(reference))
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for item in volume.get("downwardAPI", {}).get("items", ()):
        _default_source(item)
    for source in volume.get("projected", {}).get("sources") or ():
        _default_projection(source)
    template = volume.get("ephemeral", {}).get("volumeClaimTemplate", {})
    if "spec" in template:
        template["spec"].setdefault("volumeMode", "Filesystem")


def _default_projection(source: Json) -> None:
    if "serviceAccountToken" in source:
        source["serviceAccountToken"].setdefault("expirationSeconds", _TOKEN_SECONDS)
    for item in source.get("downwardAPI", {}).get("items", ()):
        _default_source(item)


def prepare_pod_for_create(pod: Json) -> None:
    """Set the initial status of a pod; a gated one gets its condition immediately."""
    spec = pod.get("spec", {})
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": now(),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]


def qos_class(spec: Json) -> str:
    """Return the QoS class of a pod.

    Guaranteed: all containers have CPU and memory limits equal to their requests; BestEffort: no
    container has any; Burstable: all others. Resources of the pod itself count instead of those
    of its containers.
    """
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    asked = False
    guaranteed = True
    for owner in [spec] if any(spec.get("resources", {}).values()) else containers:
        resources = owner.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for resource in _QOS_RESOURCES:
            request, limit = requests.get(resource, "0"), limits.get(resource, "0")
            asked = asked or request != "0" or limit != "0"
            guaranteed = guaranteed and limit != "0" and _same(request, limit)
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _same(one: str, other: str) -> bool:
    return one == other or quantity.parse(one) == quantity.parse(other)
