"""Small changes to pods that several plugins make, and the host names that pods get."""

from typing import Any

import msgspec

from ...model.base import Part
from ...model.job import Job, TaskSpec
from ..pods import Pod, name_of


class _HostSpec(Part, frozen=True):
    hostname: str = ""
    subdomain: str = ""


class _HostTemplate(Part, frozen=True):
    spec: _HostSpec = _HostSpec()


def containers(pod: Pod) -> list[dict[str, Any]]:
    """All containers of *pod*, init containers too."""
    return [*pod["spec"].get("containers", ()), *pod["spec"].get("initContainers", ())]


def add_env(pod: Pod, variables: list[dict[str, Any]]) -> None:
    """Give every container *variables*, behind its own: the last of a name wins."""
    for container in containers(pod):
        container["env"] = [*(container.get("env") or ()), *variables]


def add_mount(pod: Pod, volume: dict[str, Any], mount: dict[str, Any]) -> None:
    """Give the pod *volume* and every container the *mount* of it."""
    spec = pod["spec"]
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    for container in containers(pod):
        mounts = container.get("volumeMounts") or ()
        container["volumeMounts"] = [*mounts, {"name": volume["name"], **mount}]


def hosts(job: Job, task: TaskSpec) -> list[tuple[str, str]]:
    """Host and domain name of each pod of *task*; just one if its template names the host."""
    spec = msgspec.json.decode(task.template, type=_HostTemplate).spec
    subdomain = spec.subdomain or job.metadata.name
    listed = range(min(task.replicas, 1) if spec.hostname else task.replicas)
    named = (spec.hostname or name_of(job, task.name, index) for index in listed)
    return [(host, f"{host}.{subdomain}") for host in named]
