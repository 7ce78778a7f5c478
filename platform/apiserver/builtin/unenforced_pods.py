"""Fields of a pod that the agent and the scheduler of the embedded cluster pass over."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_SHARED_NETWORK = "pods share the network of the machine"
_NODE_ONLY = "the scheduler knows the affinity to nodes only"
_OWN_SPACES = "each container has processes and IPC of its own, and the pod will not start"
_NO_TOKENS = "pods get no tokens of service accounts"
_NOT_CONFINED = "containers run under the rules of the agent's own process"
_UNCONFINED = ({"type": "Unconfined"},)
_NO_PRIVILEGES = "no container has rights over the machine, and the pod will not start"
_FEW_RIGHTS = "only rights over the pod's own users are given, and with others it will not start"
_NO_DEVICES = "no devices are allocated"
_NO_TERMINAL = "nothing can be attached to a container"
_NO_DRIVER = "the agent has no driver for it, and the pod will not start"


class Row(NamedTuple):
    """A field that has no effect."""

    path: str
    why: str
    harmless: tuple[Any, ...] = ()
    """Values that ask for nothing; empty ones never do."""

    present: bool = False
    """Whether an empty value asks for something, too."""


_DRIVERS = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "ephemeral", "fc",
    "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "image", "iscsi", "nfs",
    "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos",
    "vsphereVolume",
)  # fmt: skip

_POD = (
    Row("affinity.podAffinity", _NODE_ONLY),
    Row("affinity.podAntiAffinity", _NODE_ONLY),
    Row("automountServiceAccountToken", _NO_TOKENS),
    Row("dnsConfig", "pods resolve names as the machine does"),
    Row("hostIPC", _OWN_SPACES),
    Row("hostPID", _OWN_SPACES),
    Row("hostnameOverride", "use spec.hostname"),
    Row("os.name", "containers are processes of Linux", ("linux",)),
    Row("readinessGates", "a pod is ready when its containers are"),
    Row("resourceClaims", _NO_DEVICES),
    Row("resources", "only those of containers are counted"),
    Row("runtimeClassName", "containers are processes of the machine"),
    Row("schedulingGroup", "use a PodGroup of Volcano"),
    Row("serviceAccountName", _NO_TOKENS, ("default",)),
    Row("setHostnameAsFQDN", "the host name of a pod is its short name"),
    Row("shareProcessNamespace", _OWN_SPACES),
    Row("topologySpreadConstraints", "the scheduler does not spread pods"),
    Row("securityContext.appArmorProfile", _NOT_CONFINED, _UNCONFINED),
    Row("securityContext.fsGroup", "all users of a pod may write its volumes"),
    Row("securityContext.fsGroupChangePolicy", "all users of a pod may write its volumes"),
    Row("securityContext.seLinuxChangePolicy", _NOT_CONFINED),
    Row("securityContext.seLinuxOptions", _NOT_CONFINED),
    Row("securityContext.seccompProfile", _NOT_CONFINED, _UNCONFINED),
    Row("securityContext.supplementalGroups", "a container has one user and one group"),
    Row("securityContext.supplementalGroupsPolicy", "a container has one user and one group"),
    Row("securityContext.sysctls", _SHARED_NETWORK + " and its kernel's settings"),
    Row("securityContext.windowsOptions", "containers are processes of Linux"),
    Row("volumes[*].emptyDir.medium", "the folder lies on the disk of the machine"),
    Row("volumes[*].emptyDir.sizeLimit", "the size of folders is not limited"),
    Row("volumes[*].hostPath.type", "what lies at the path is not checked"),
    Row("volumes[*].projected.sources[*].clusterTrustBundle", "it is left out", present=True),
    Row("volumes[*].projected.sources[*].podCertificate", "it is left out", present=True),
    Row("volumes[*].projected.sources[*].serviceAccountToken", _NO_TOKENS, present=True),
    *(Row(f"volumes[*].{name}", _NO_DRIVER, present=True) for name in _DRIVERS),
)

_CONTAINER = (
    Row("lifecycle.stopSignal", "containers are stopped by SIGTERM", ("SIGTERM",)),
    Row("livenessProbe.grpc", "probes by gRPC count as passed", present=True),
    Row("readinessProbe.grpc", "probes by gRPC count as passed", present=True),
    Row("startupProbe.grpc", "probes by gRPC count as passed", present=True),
    Row("resizePolicy", "pods cannot be resized"),
    Row("resources.claims", _NO_DEVICES),
    Row("resources.limits.ephemeral-storage", "the use of the disk is not limited"),
    Row("restartPolicyRules", "use spec.restartPolicy"),
    Row("securityContext.appArmorProfile", _NOT_CONFINED, _UNCONFINED),
    Row(
        "securityContext.capabilities.add",
        _FEW_RIGHTS,
    ),
    Row("securityContext.privileged", _NO_PRIVILEGES),
    Row("securityContext.procMount", _NO_PRIVILEGES, ("Default",)),
    Row("securityContext.seLinuxOptions", _NOT_CONFINED),
    Row("securityContext.seccompProfile", _NOT_CONFINED, _UNCONFINED),
    Row("securityContext.windowsOptions", "containers are processes of Linux"),
    Row("stdin", _NO_TERMINAL),
    Row("stdinOnce", _NO_TERMINAL),
    Row("tty", _NO_TERMINAL),
    Row("env[*].valueFrom.fileKeyRef", "the container will not start", present=True),
    Row("volumeDevices", "there are no block devices"),
    Row("volumeMounts[*].mountPropagation", "mounts stay in their container", ("None",)),
    Row("volumeMounts[*].recursiveReadOnly", "use readOnly", ("Disabled",)),
)

_MAIN = (Row("restartPolicy", "use spec.restartPolicy"),)
"""Fields of containers that mean something for init containers."""

_OFF_HOST = (
    Row("ports[*].hostPort", _SHARED_NETWORK + "; a port is open where the program opens it"),
    Row("ports[*].hostIP", _SHARED_NETWORK + "; a port is open where the program opens it"),
)
"""Fields of containers that are defaults if the pod asks for the network of its node."""


@dataclass(slots=True)
class _Node:
    """What is looked for below one place of an object."""

    inside: dict[str, "_Node"] = field(default_factory=dict)
    row: Row | None = None


def _tree(rows: Iterable[Row]) -> _Node:
    root = _Node()
    for row in rows:
        node = root
        for key in row.path.replace("[*]", ".*").split("."):
            node = node.inside.setdefault(key, _Node())
        node.row = row
    return root


def _below(place: str, rows: Iterable[Row]) -> list[Row]:
    return [row._replace(path=f"{place}[*].{row.path}") for row in rows]


_PLAIN = (
    *_POD,
    *_below("containers", (*_CONTAINER, *_MAIN)),
    *_below("initContainers", _CONTAINER),
)
_ON_HOST_TREE = _tree(_PLAIN)
_OFF_HOST_TREE = _tree(
    (*_PLAIN, *_below("containers", _OFF_HOST), *_below("initContainers", _OFF_HOST))
)

PATHS: Mapping[str, str] = {
    row.path: row.why
    for row in (*_PLAIN, *_below("containers", _OFF_HOST), *_below("initContainers", _OFF_HOST))
}
"""All fields of a pod's ``spec`` that have no effect; ``[*]`` stands for any entry of a list."""


def pod_gaps(specs: Iterable[tuple[str, object]]) -> Iterator[tuple[str, str]]:
    """Where in these pods' specifications something has no effect, and why; each field once.

    A specification comes with its path.
    """
    seen: set[str] = set()
    for path, spec in specs:
        if not isinstance(spec, dict):
            continue
        tree = _ON_HOST_TREE if spec.get("hostNetwork") is True else _OFF_HOST_TREE
        for found, row in _walk(tree, spec, path):
            what = row.path.replace("initContainers", "containers")
            if what not in seen:
                seen.add(what)
                yield found, row.why


def _walk(node: _Node, value: object, path: str) -> Iterator[tuple[str, Row]]:
    row = node.row
    if row is not None and _asks(row, value):
        yield path, row
    if isinstance(value, dict):
        for key, inner in node.inside.items():
            if key in value:
                yield from _walk(inner, value[key], f"{path}.{key}")
    elif isinstance(value, list) and "*" in node.inside:
        for index, each in enumerate(value):
            yield from _walk(node.inside["*"], each, f"{path}[{index}]")


def _asks(row: Row, value: object) -> bool:
    if row.present:
        return value is not None
    return bool(value) and value not in row.harmless
