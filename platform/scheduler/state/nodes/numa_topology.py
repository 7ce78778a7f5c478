"""The NUMA nodes of nodes, as their Numatopologies describe them.

Volcano's resource exporter writes a Numatopology for each node: the policies of its kubelet, its
CPUs and GPUs, which of them are not assigned, and the pods that have others.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....model.base import ApiStruct
from ....model.meta import ObjectMeta
from ..podinfo.numa_request import NUMA_RESOURCES
from ..resources import amount
from .node_matrix import NodeMatrix

MAX_NUMA_NODES = 8
"""With more, a kubelet whose topology manager has a policy does not start."""

_CPU = "cpu"
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)


class CpuInfo(ApiStruct, frozen=True):
    """Where a CPU is."""

    numa: int = 0
    socket: int = 0
    core: int = 0


class GpuInfo(ApiStruct, frozen=True):
    """Where a GPU is."""

    numa: int = 0


class ResourceInfo(ApiStruct, frozen=True):
    """The set of CPUs or GPUs that are not assigned."""

    allocatable: str = ""


class PodAllocation(ApiStruct, frozen=True):
    """A pod that has resources of NUMA nodes."""

    uid: str = ""


class NumatopologySpec(ApiStruct, frozen=True):
    """``spec`` of a Numatopology."""

    policies: dict[str, str] = {}
    res_reserved: dict[str, str] = {}
    numares: dict[str, ResourceInfo] = {}
    cpu_detail: dict[str, CpuInfo] = {}
    gpu_detail: dict[str, GpuInfo] = {}
    pod_allocations: tuple[PodAllocation, ...] = ()


class Numatopology(ApiStruct, frozen=True):
    """A Numatopology, which has the name of its node."""

    metadata: ObjectMeta
    spec: NumatopologySpec = NumatopologySpec()


@dataclass(frozen=True, slots=True)
class NumaNodes:
    """The NUMA nodes of one node, in the order of their ids."""

    is_static: bool
    """Whether its kubelet assigns CPUs exclusively."""

    policy: str
    """Of its topology manager."""

    total: tuple[tuple[int, ...], ...]
    """What each NUMA node has of each of :data:`NUMA_RESOURCES`; empty for one without details."""

    free: tuple[tuple[int, ...], ...]
    """What of that may be assigned."""

    pods: frozenset[str]
    """The uids of the pods that *free* takes into account; empty if the exporter lists none."""

    @classmethod
    def parse(cls, spec: NumatopologySpec) -> "NumaNodes":
        """Return the NUMA nodes that *spec* describes.

        Raises:
            ValueError: it is malformed, or has too many NUMA nodes.
        """
        cpus = {_position(text, "cpuDetail"): info for text, info in spec.cpu_detail.items()}
        gpus = {_position(text, "gpuDetail"): info.numa for text, info in spec.gpu_detail.items()}
        ids = sorted({info.numa for info in cpus.values()} | set(gpus.values()))
        if len(ids) > MAX_NUMA_NODES:
            raise ValueError(f"{len(ids)} NUMA nodes, at most {MAX_NUMA_NODES} are supported")
        # The kubelet reserves whole cores first, of all CPUs and in the order of their ids.
        in_order = sorted(cpus, key=lambda cpu: (*_location(cpus[cpu]), cpu))
        reserved = -(-amount(_CPU, spec.res_reserved.get(_CPU, "0")) // 1000)
        numa_of_cpus = {cpu: info.numa for cpu, info in cpus.items()}
        total, free = [], []
        for name, numa, unusable in zip(
            NUMA_RESOURCES, (numa_of_cpus, gpus), (in_order[:reserved], ()), strict=True
        ):
            unassigned = _ranges(name, spec.numares.get(name, ResourceInfo()).allocatable)
            usable = [
                numa[each]
                for each in numa.keys() - set(unusable)
                if any(each in positions for positions in unassigned)
            ]
            total.append(_counts(numa.values(), ids) if numa else ())
            free.append(_counts(usable, ids) if numa else ())
        return cls(
            spec.policies.get("CPUManagerPolicy") == "static",
            spec.policies.get("TopologyManagerPolicy", ""),
            tuple(total),
            tuple(free),
            frozenset(each.uid for each in spec.pod_allocations),
        )


class NumaTopologies:
    """The NUMA nodes of all nodes that have a valid Numatopology."""

    def __init__(self, nodes: NodeMatrix) -> None:
        """Start empty; what is derived from columns of *nodes* is updated with a Numatopology."""
        self._nodes = nodes
        self._by_node: dict[str, NumaNodes] = {}

    @property
    def by_node(self) -> Mapping[str, NumaNodes]:
        """NUMA nodes by the name of the node."""
        return self._by_node

    def update(self, old: Numatopology | None, new: Numatopology | None) -> bool:
        """Add, update or delete a Numatopology; returns whether anything used here changed."""
        changed = new or old
        if changed is None:
            return False
        name = changed.metadata.name
        before, after = self._by_node.pop(name, None), _parsed(new)
        if after is not None:
            self._by_node[name] = after
        if before == after:
            return False
        node_index = self._nodes.index_of(name)
        if node_index is not None:
            self._nodes.usage_changes.add(node_index)
            if _policies(before) != _policies(after):
                self._nodes.node_changes.add(node_index)
        return True


def _parsed(topology: Numatopology | None) -> NumaNodes | None:
    try:
        return NumaNodes.parse(topology.spec) if topology else None
    except ValueError:
        return None


def _policies(known: NumaNodes | None) -> tuple[bool, str] | None:
    return (known.is_static, known.policy) if known else None


def _location(info: CpuInfo) -> tuple[int, int, int]:
    return info.numa, info.socket, info.core


def _counts(numa: Iterable[int], ids: list[int]) -> tuple[int, ...]:
    counted = Counter(numa)
    return tuple(counted[each] for each in ids)


def _position(text: str, field: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        raise ValueError(f"{field}: {text!r} is not a number")
    return int(text)


def _ranges(name: str, text: str) -> list[range]:
    """Return the ranges of a list of CPUs or GPUs such as ``0,2-4``."""
    found = []
    for item in text.split(",") if text else ():
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"numares.{name}.allocatable: {text!r} is not a list of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        found.append(range(first, last + 1))
    return found
