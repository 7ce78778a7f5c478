"""Scripts, host file and permissions of an MPIJob's launcher, and the shape of its pods."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...model.base import ApiStruct
from ...model.meta import ObjectMeta
from ...model.names import CONFIGMAPS, SERVICEACCOUNTS, Resource
from ...model.pod_resources import Resources
from ..dependents import DesiredObject

RBAC_GROUP = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC_GROUP, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(RBAC_GROUP, "v1", "rolebindings", "RoleBinding")

RESOURCES = (SERVICEACCOUNTS, CONFIGMAPS, ROLES, ROLE_BINDINGS)
"""Resources of the objects."""

_CONFIG_DIR, _KUBECTL_DIR = "/etc/mpi", "/opt/kube"
_CONFIG_VOLUME, _KUBECTL_VOLUME = "mpi-job-config", "mpi-job-kubectl"
_HOSTFILE, _KUBEXEC, _DISCOVER = "hostfile", "kubexec.sh", "discover_hosts.sh"
_READABLE, _EXECUTABLE = 0o444, 0o555

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiCluster:
    """Names of a job's pods, and what its scripts depend on."""

    job: str
    launcher: str
    config: str
    """Name of the ConfigMap."""
    workers: Sequence[str]
    running: Sequence[str]
    """Workers in phase Running."""
    slots: int
    main_container: str
    launcher_template: msgspec.Raw


def desired_objects(cluster: MpiCluster) -> tuple[DesiredObject, ...]:
    """Return the objects that must exist before the pods."""
    template = msgspec.json.decode(cluster.launcher_template, type=_Template).spec
    account = template.service_account_name or cluster.launcher
    own_account = (DesiredObject(resource=SERVICEACCOUNTS, name=account),)
    config = DesiredObject(
        resource=CONFIGMAPS,
        name=cluster.config,
        content={"data": _scripts(cluster, launcher_slots=template.needs_gpu)},
        labels={"app": cluster.job},
    )
    role = DesiredObject(
        resource=ROLES, name=cluster.launcher, content={"rules": _rules(cluster.workers)}
    )
    binding = DesiredObject(
        resource=ROLE_BINDINGS,
        name=cluster.launcher,
        content={
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": ROLES.kind, "name": cluster.launcher},
            "subjects": [{"kind": "ServiceAccount", "name": account}],
        },
    )
    accounts = () if template.service_account_name else own_account
    return (*accounts, config, role, binding)


def _scripts(cluster: MpiCluster, *, launcher_slots: bool) -> dict[str, str]:
    hosts = (cluster.launcher, *cluster.workers) if launcher_slots else cluster.workers
    container = f" --container {cluster.main_container}" if cluster.main_container else ""
    running = sorted(cluster.running)
    return {
        _HOSTFILE: "".join(f"{host} slots={cluster.slots}\n" for host in hosts),
        _KUBEXEC: (
            '#!/bin/sh\npod="$1"\nshift\n'
            f'exec {_KUBECTL_DIR}/kubectl exec "$pod"{container} -- /bin/sh -c "$*"\n'
        ),
        _DISCOVER: "#!/bin/sh\n" + "".join(f"echo {pod}:{cluster.slots}\n" for pod in running),
    }


def _rules(workers: Sequence[str]) -> list[Json]:
    """Return the rules of the launcher; without names, a rule would allow all pods."""
    rules: list[Json] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    if workers:
        rules.append(
            {
                "apiGroups": [""],
                "resources": ["pods/exec"],
                "resourceNames": [*workers],
                "verbs": ["create"],
            }
        )
    return rules


def shape_worker(pod: Json, *, config: str) -> None:
    """Mount the script that is run in the workers; without a command a worker sleeps."""
    spec = pod["spec"]
    containers = spec.get("containers") or []
    if containers and not containers[0].get("command") and not containers[0].get("args"):
        containers[0]["command"], containers[0]["args"] = ["sleep"], ["365d"]
    _add_volume(spec, _config_volume(config, {_KUBEXEC: _EXECUTABLE}))
    for container in containers:
        _mount(container, _CONFIG_VOLUME, _CONFIG_DIR)


def shape_launcher(pod: Json, job: ObjectMeta, *, config: str, image: str) -> None:
    """Add the init container that brings kubectl, the scripts and the environment."""
    spec = pod["spec"]
    delivery: Json = {
        "name": "kubectl-delivery",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": "TARGET_DIR", "value": _KUBECTL_DIR},
            {"name": "NAMESPACE", "value": job.namespace},
        ],
        "resources": {
            kind: {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}
            for kind in ("limits", "requests")
        },
    }
    modes = {_KUBEXEC: _EXECUTABLE, _HOSTFILE: _READABLE, _DISCOVER: _EXECUTABLE}
    _add_volume(spec, {"name": _KUBECTL_VOLUME, "emptyDir": {}})
    _add_volume(spec, _config_volume(config, modes))
    needs_gpu = msgspec.convert(pod, _Template).spec.needs_gpu
    containers = spec.get("containers") or []
    for container in (delivery, *containers):
        _mount(container, _KUBECTL_VOLUME, _KUBECTL_DIR)
        _mount(container, _CONFIG_VOLUME, _CONFIG_DIR)
    for container in containers:
        _add_launcher_env(container, needs_gpu=needs_gpu)
    spec["initContainers"] = [*(spec.get("initContainers") or ()), delivery]


def _add_launcher_env(container: Json, *, needs_gpu: bool) -> None:
    script = f"{_CONFIG_DIR}/{_KUBEXEC}"
    env = [
        {"name": "OMPI_MCA_plm_rsh_agent", "value": script},
        {"name": "OMPI_MCA_orte_default_hostfile", "value": f"{_CONFIG_DIR}/{_HOSTFILE}"},
    ]
    if not needs_gpu:
        names = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
        env += [{"name": name, "value": ""} for name in names]
    given = container.get("env") or []
    hydra = {"I_MPI_HYDRA_BOOTSTRAP": "rsh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": script}
    by_user = {each.get("name") for each in given}
    env += [{"name": name, "value": hydra[name]} for name in hydra if name not in by_user]
    container["env"] = [*given, *env]


def _config_volume(config: str, modes: dict[str, int]) -> Json:
    items = [{"key": name, "path": name, "mode": mode} for name, mode in modes.items()]
    return {"name": _CONFIG_VOLUME, "configMap": {"name": config, "items": items}}


def _add_volume(spec: Json, volume: Json) -> None:
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]


def _mount(container: Json, volume: str, path: str) -> None:
    mounts = container.get("volumeMounts") or ()
    container["volumeMounts"] = [*mounts, {"name": volume, "mountPath": path}]


class _Container(ApiStruct, frozen=True):
    resources: Resources = Resources()


class _PodSpec(ApiStruct, frozen=True):
    service_account_name: str = ""
    containers: tuple[_Container, ...] = ()

    @property
    def needs_gpu(self) -> bool:
        """Whether a container has a limit of GPUs."""
        return any("gpu" in name for each in self.containers for name in each.resources.limits)


class _Template(ApiStruct, frozen=True):
    spec: _PodSpec = _PodSpec()
