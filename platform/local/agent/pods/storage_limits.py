"""Limits of the disk space of pods: sizes of emptyDir volumes, and ephemeral storage.

As a kubelet, the agent measures the directories periodically, and evicts a pod that exceeds a
limit. What cannot be measured counts as too much.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ....model.quantity import canonical, parse
from ..runtime.disk_usage import UnmeasurableError, disk_usage
from ..runtime.image_run import WRITABLE
from ..runtime.memory_volumes import is_in_memory
from ..state.core_types import Container, Pod
from .records import PodDir

EVICTED = "Evicted"
GRACE_PERIOD = 1.0
"""Seconds between SIGTERM and SIGKILL of an evicted pod."""

_RESOURCE = "ephemeral-storage"
_OF_RUN = ("root", "home", "work", WRITABLE)


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """Bytes that a pod takes on the disk."""

    volumes: Mapping[str, int] = field(default_factory=dict)
    """By name, those with data of the pod alone."""

    containers: Mapping[str, int] = field(default_factory=dict)
    """By name: what they have written outside of volumes, and their logs."""


def has_limits(pod: Pod) -> bool:
    """Return whether the disk space of *pod* is limited."""
    sizes = any(each.empty_dir and each.empty_dir.size_limit for each in pod.spec.volumes)
    return sizes or any(_limit_of(each) is not None for each in pod.containers.values())


def find_violation(pod: Pod, pod_dir: PodDir) -> str:
    """Measure a pod; return the message of its eviction, or an empty one."""
    try:
        return violation(pod, _measure(pod, pod_dir))
    except UnmeasurableError as error:
        return f"The local storage of the pod is limited and cannot be measured: {error}. "


def violation(pod: Pod, usage: StorageUsage) -> str:
    """Return which limit is exceeded, with a kubelet's messages; an empty text if none is."""
    for volume in pod.spec.volumes:
        limit = volume.empty_dir.size_limit if volume.empty_dir else None
        if limit and usage.volumes.get(volume.name, 0) > _bytes(limit):
            text = canonical(limit)
            return f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{text}". '
    limits = {
        name: limit
        for name, each in pod.containers.items()
        if (limit := _limit_of(each)) is not None
    }
    total = sum(usage.volumes.values()) + sum(usage.containers.values())
    if limits and total > (allowed := sum(map(_bytes, limits.values()))):
        text = canonical(next(iter(limits.values()))) if len(limits) == 1 else str(allowed)
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {text}. "
    for name, limit in limits.items():
        if usage.containers.get(name, 0) > _bytes(limit):
            text = canonical(limit)
            return f'Container {name} exceeded its local ephemeral storage limit "{text}". '
    return ""


def _limit_of(container: Container) -> str | int | float | None:
    return container.resources.limits.get(_RESOURCE)


def _bytes(quantity: str | int | float) -> int:
    return parse(quantity).nanos // 1_000_000_000


def _measure(pod: Pod, pod_dir: PodDir) -> StorageUsage:
    own = [
        volume.name
        for volume in pod.spec.volumes
        if not volume.host_path and not pod.claim_of(volume)
    ]
    paths = {name: pod_dir.path / "volumes" / name for name in own}
    volumes = {name: disk_usage(path) for name, path in paths.items() if not is_in_memory(path)}
    containers = {
        name: sum(map(disk_usage, _written_by(pod_dir, name))) for name in pod_dir.containers()
    }
    return StorageUsage(volumes, containers)


def _written_by(pod_dir: PodDir, container: str) -> Iterator[Path]:
    yield pod_dir.logs / container
    for run in pod_dir.runs(container):
        yield from (run.path / entry for entry in _OF_RUN)
