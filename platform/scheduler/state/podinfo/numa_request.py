"""What kubelets assign to containers of a pod from NUMA nodes, if the pod names a NUMA policy."""

from dataclasses import dataclass

from ....model.pod_resources import ContainerResources
from ..core_types import Pod
from ..resources import amounts

NUMA_POLICY = "volcano.sh/numa-topology-policy"

_GPU = "nvidia.com/gpu"
NUMA_RESOURCES = ("cpu", _GPU)
"""The resources whose NUMA nodes are in Numatopologies; GPUs have no resource name there."""

NumaAmounts = tuple[int, ...]
"""A number of CPUs or devices for each of :data:`NUMA_RESOURCES`."""


@dataclass(frozen=True, slots=True)
class ContainerNeeds:
    """What one container needs for itself."""

    amounts: NumaAmounts
    is_kept: bool = True
    """Whether it keeps them while later containers run: an init container does not."""


@dataclass(frozen=True, slots=True)
class NumaRequest:
    """What a pod with a NUMA policy needs."""

    policy: str
    containers: tuple[ContainerNeeds, ...]
    """In the order in which the kubelet admits them."""

    @property
    def peak(self) -> NumaAmounts:
        """The most that its containers need at the same time."""
        running = peak = (0,) * len(NUMA_RESOURCES)
        for each in self.containers:
            total = tuple(map(sum, zip(running, each.amounts, strict=True)))
            peak = tuple(map(max, peak, total))
            running = total if each.is_kept else running
        return peak


def numa_request(pod: Pod) -> NumaRequest | None:
    """Return what *pod* needs if its policy has an effect: a container of it requests GPUs, or the
    pod is Guaranteed and a container requests whole CPUs.

    A pod with pod-level resources (``spec.resources``) gets no CPUs exclusively.
    """
    policy, spec = pod.metadata.annotations.get(NUMA_POLICY), pod.spec
    if not policy:
        return None
    has_pod_level = spec.resources.requests or spec.resources.limits
    containers = (*spec.init_containers, *spec.containers)
    has_cpus = not has_pod_level and all(map(_is_guaranteed, containers))
    needs = (
        *(
            ContainerNeeds(_amounts(each, has_cpus=has_cpus), each.restart_policy == "Always")
            for each in spec.init_containers
        ),
        *(ContainerNeeds(_amounts(each, has_cpus=has_cpus)) for each in spec.containers),
    )
    found = tuple(each for each in needs if any(each.amounts))
    return NumaRequest(policy, found) if found else None


def _is_guaranteed(container: ContainerResources) -> bool:
    limits = amounts(container.resources.limits)
    requests = limits | amounts(container.resources.requests)
    return all(limits.get(name, 0) > 0 and requests[name] == limits[name] for name in _QOS)


_QOS = ("cpu", "memory")
"""The resources by which a pod is Guaranteed."""


def _amounts(container: ContainerResources, *, has_cpus: bool) -> NumaAmounts:
    """Return what a container gets for itself: no CPUs if it needs a fraction of one."""
    limits = amounts(container.resources.limits)
    whole, rest = divmod(limits["cpu"], 1000) if has_cpus else (0, 0)
    return (0 if rest else whole, limits.get(_GPU, 0) // 1000)
