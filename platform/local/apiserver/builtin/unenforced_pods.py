"""Fields of a pod that do not have their effect in the embedded cluster.

The agent or the scheduler ignores them, or the scheduler does not schedule pods that have them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_SHARED_NETWORK = "pods use the network of the machine"
_NO_EFFECT = "has no effect"
_PLACEMENT_ONLY = "only affects on which node the pod is scheduled"
OPENED_BY_PROGRAM = _SHARED_NETWORK + "; a port is open where the program opens it"
"""Not so where pods have a network namespace."""

NO_SYSCTLS = "those of the network need `up --pod-network=namespaces`"
"""Not so where pods have a network namespace."""

_MAY_LACK_EFFECT = "may have no effect"

_OWN_NAMESPACES = "each container has its own PID and IPC namespaces, and the pod will not start"
_NOT_CONFINED = "containers run under the rules of the agent's own process"
_UNCONFINED = ({"type": "Unconfined"},)
_NO_PRIVILEGES = "no container has rights over the machine, and the pod will not start"
_FEW_CAPABILITIES = (
    "only rights over the pod's own users are given, and with others it will not start"
)
_NO_DEVICES = "containers name the claims whose devices they use"
_NO_DRIVER = "the agent has no driver for it, and the pod will not start"


class UnenforcedField(NamedTuple):
    """A field that does not have its effect."""

    path: str
    reason: str
    no_op_values: tuple[Any, ...] = ()
    """Values without meaning; empty ones never have any."""

    even_if_empty: bool = False
    """Whether an empty value has a meaning, too."""

    effect: str = _NO_EFFECT
    """What happens instead."""


_DRIVERS = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc",
    "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "iscsi", "nfs",
    "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos",
    "vsphereVolume",
)  # fmt: skip

_POD = (
    UnenforcedField("hostIPC", _OWN_NAMESPACES),
    UnenforcedField("hostPID", _OWN_NAMESPACES),
    UnenforcedField("hostnameOverride", "use spec.hostname"),
    UnenforcedField("os.name", "containers are processes of Linux", ("linux",)),
    UnenforcedField("resources.claims", _NO_DEVICES),
    UnenforcedField("resources.limits", "only the limits of containers are enforced"),
    UnenforcedField("runtimeClassName", "containers are processes of the machine"),
    UnenforcedField("setHostnameAsFQDN", "the host name of a pod is its short name"),
    UnenforcedField("shareProcessNamespace", _OWN_NAMESPACES),
    UnenforcedField("securityContext.appArmorProfile", _NOT_CONFINED, _UNCONFINED),
    UnenforcedField("securityContext.fsGroup", "all users of a pod may write its volumes"),
    UnenforcedField(
        "securityContext.fsGroupChangePolicy", "all users of a pod may write its volumes"
    ),
    UnenforcedField("securityContext.seLinuxChangePolicy", _NOT_CONFINED),
    UnenforcedField("securityContext.seLinuxOptions", _NOT_CONFINED),
    UnenforcedField("securityContext.seccompProfile", _NOT_CONFINED, _UNCONFINED),
    UnenforcedField("securityContext.supplementalGroups", "a container has one user and one group"),
    UnenforcedField(
        "securityContext.supplementalGroupsPolicy", "a container has one user and one group"
    ),
    UnenforcedField("securityContext.sysctls", NO_SYSCTLS, effect=_MAY_LACK_EFFECT),
    UnenforcedField("securityContext.windowsOptions", "containers are processes of Linux"),
    UnenforcedField(
        "volumes[*].emptyDir.medium", "the directory is on the disk of the machine", ("Memory",)
    ),
    UnenforcedField(
        "volumes[*].projected.sources[*].clusterTrustBundle", "it is left out", even_if_empty=True
    ),
    UnenforcedField(
        "volumes[*].projected.sources[*].podCertificate", "it is left out", even_if_empty=True
    ),
    *(UnenforcedField(f"volumes[*].{name}", _NO_DRIVER, even_if_empty=True) for name in _DRIVERS),
)

_CONTAINER = (
    UnenforcedField("securityContext.appArmorProfile", _NOT_CONFINED, _UNCONFINED),
    UnenforcedField(
        "securityContext.capabilities.add",
        _FEW_CAPABILITIES,
    ),
    UnenforcedField("securityContext.privileged", _NO_PRIVILEGES),
    UnenforcedField("securityContext.procMount", _NO_PRIVILEGES, ("Default",)),
    UnenforcedField("securityContext.seLinuxOptions", _NOT_CONFINED),
    UnenforcedField("securityContext.seccompProfile", _NOT_CONFINED, _UNCONFINED),
    UnenforcedField("securityContext.windowsOptions", "containers are processes of Linux"),
    UnenforcedField("volumeDevices", "there are no block devices"),
    UnenforcedField(
        "volumeMounts[*].mountPropagation", "mounts stay in their container", ("None",)
    ),
    UnenforcedField("volumeMounts[*].recursiveReadOnly", "use readOnly", ("Disabled",)),
)

_EPHEMERAL = (
    *(row for row in _CONTAINER if row.path != "securityContext.capabilities.add"),
    UnenforcedField(
        "securityContext.capabilities.add",
        "SYS_PTRACE is not given, and with other rights than those over the pod's own users the "
        "container will not start",
    ),
)
"""Fields of ephemeral containers."""

_OFF_HOST = (
    UnenforcedField("ports[*].hostPort", OPENED_BY_PROGRAM, effect=_PLACEMENT_ONLY),
    UnenforcedField("ports[*].hostIP", OPENED_BY_PROGRAM, effect=_PLACEMENT_ONLY),
)
"""Fields of containers that are defaults if the pod uses the host network."""


_CONTAINER_LIST = re.compile("^(initContainers|ephemeralContainers)")


@dataclass(slots=True)
class _Node:
    """Fields to check at one level of an object."""

    children: dict[str, "_Node"] = field(default_factory=dict)
    rows: list[UnenforcedField] = field(default_factory=list)


def _tree(rows: Iterable[UnenforcedField]) -> _Node:
    root = _Node()
    for row in rows:
        node = root
        for key in row.path.replace("[*]", ".*").split("."):
            node = node.children.setdefault(key, _Node())
        node.rows.append(row)
    return root


def _with_prefix(prefix: str, rows: Iterable[UnenforcedField]) -> list[UnenforcedField]:
    return [row._replace(path=f"{prefix}[*].{row.path}") for row in rows]


_PLAIN = (
    *_POD,
    *_with_prefix("containers", _CONTAINER),
    *_with_prefix("initContainers", _CONTAINER),
    *_with_prefix("ephemeralContainers", _EPHEMERAL),
)
_ON_HOST_TREE = _tree(_PLAIN)
_OFF_HOST_TREE = _tree(
    (*_PLAIN, *_with_prefix("containers", _OFF_HOST), *_with_prefix("initContainers", _OFF_HOST))
)

UNENFORCED_PATHS: Mapping[str, str] = {
    row.path: row.reason
    for row in (
        *_PLAIN,
        *_with_prefix("containers", _OFF_HOST),
        *_with_prefix("initContainers", _OFF_HOST),
    )
}
"""All such fields of a pod's ``spec``; ``[*]`` is any item of a list."""


def unenforced_pod_fields(specs: Iterable[tuple[str, object]]) -> Iterator[tuple[str, str, str]]:
    """Return the paths of such fields in *specs*, the reason and what happens instead.

    Each field is returned once. Each item of *specs* is a path with its pod spec.
    """
    seen: set[tuple[str, str]] = set()
    for path, spec in specs:
        if not isinstance(spec, dict):
            continue
        tree = _ON_HOST_TREE if spec.get("hostNetwork") is True else _OFF_HOST_TREE
        for found, row in _walk(tree, spec, path):
            what = _CONTAINER_LIST.sub("containers", row.path), row.effect
            if what not in seen:
                seen.add(what)
                yield found, row.reason, row.effect


def _walk(node: _Node, value: object, path: str) -> Iterator[tuple[str, UnenforcedField]]:
    for row in node.rows:
        if _has_effect_requested(row, value):
            yield path, row
    if isinstance(value, dict):
        for key, inner in node.children.items():
            if key in value:
                yield from _walk(inner, value[key], f"{path}.{key}")
    elif isinstance(value, list) and "*" in node.children:
        for index, each in enumerate(value):
            yield from _walk(node.children["*"], each, f"{path}[{index}]")


def _has_effect_requested(row: UnenforcedField, value: object) -> bool:
    if row.even_if_empty:
        return value is not None
    return bool(value) and value not in row.no_op_values
