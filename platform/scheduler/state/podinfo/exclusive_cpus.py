"""The CPUs that kubelets assign exclusively to containers of a pod, if it names a NUMA policy."""

from dataclasses import dataclass

from ....model.pod_resources import ContainerResources
from ..core_types import Pod
from ..resources import amounts

NUMA_POLICY = "volcano.sh/numa-topology-policy"


@dataclass(frozen=True, slots=True)
class CpuDemand:
    """CPUs that one container needs for itself."""

    cpus: int
    is_kept: bool = True
    """Whether it keeps them while later containers run: an init container does not."""


@dataclass(frozen=True, slots=True)
class ExclusiveCpus:
    """What a pod with a NUMA policy needs."""

    policy: str
    demands: tuple[CpuDemand, ...]
    """In the order in which the kubelet admits the containers."""


def exclusive_cpus(pod: Pod) -> ExclusiveCpus | None:
    """Return what *pod* needs if its policy has an effect: it is Guaranteed, and a container of it
    requests whole CPUs.

    A pod with pod-level resources (``spec.resources``) gets no CPUs exclusively.
    """
    policy, spec = pod.metadata.annotations.get(NUMA_POLICY), pod.spec
    has_pod_level = spec.resources.requests or spec.resources.limits
    containers = (*spec.init_containers, *spec.containers)
    if not policy or has_pod_level or not all(map(_is_guaranteed, containers)):
        return None
    demands = (
        *(CpuDemand(_cpus(each), each.restart_policy == "Always") for each in spec.init_containers),
        *(CpuDemand(_cpus(each)) for each in spec.containers),
    )
    found = tuple(each for each in demands if each.cpus)
    return ExclusiveCpus(policy, found) if found else None


def _is_guaranteed(container: ContainerResources) -> bool:
    limits = amounts(container.resources.limits)
    requests = limits | amounts(container.resources.requests)
    return all(limits.get(name, 0) > 0 and requests[name] == limits[name] for name in _QOS)


_QOS = ("cpu", "memory")
"""The resources by which a pod is Guaranteed."""


def _cpus(container: ContainerResources) -> int:
    """Return how many CPUs a Guaranteed container gets exclusively: none if it needs a fraction."""
    whole, rest = divmod(amounts(container.resources.limits)["cpu"], 1000)
    return 0 if rest else whole
