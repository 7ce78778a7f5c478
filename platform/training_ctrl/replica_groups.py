"""The pods and Services of a job by replica type and index, and the effect of failed pods. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..machinery.pod_ranking import deletion_order
from ..model import names
from ..model.meta import HasMeta
from ..model.pod import PodPhase
from ..model.training.types import RestartPolicy
from .core_types import Pod, Service
from .frameworks.base import ReplicaCounts
from .replica_pods import Reaction, deletion_requested_by, exit_code, reaction
from .view import TrainingView

T = TypeVar("T", bound=HasMeta)

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slots(Generic[T]):
    """Objects of one replica type by index."""

    by_index: dict[int, T] = field(default_factory=dict)
    """The objects of the indices below the number of replicas; some may be missing."""
    excess: list[T] = field(default_factory=list)
    """Objects with another index, or with the index of an object that is kept."""
    unindexed: list[T] = field(default_factory=list)
    """Objects without a valid index; they are ignored."""

    def missing(self, replicas: int) -> list[int]:
        """Return the indices without object."""
        return [index for index in range(replicas) if index not in self.by_index]


def arrange(
    objects: Iterable[T],
    replicas: int,
    *,
    index_of: Callable[[T], int | None],
    rank: Callable[[list[T]], list[T]],
) -> Slots[T]:
    """Assign *objects* to the indices below *replicas*.

    Of several objects with one index the last in the order of *rank* is kept.
    """
    slots: Slots[T] = Slots()
    candidates: dict[int, list[T]] = {}
    for obj in objects:
        index = index_of(obj)
        if index is None:
            slots.unindexed.append(obj)
        elif 0 <= index < replicas:
            candidates.setdefault(index, []).append(obj)
        else:
            slots.excess.append(obj)
    for index, several in sorted(candidates.items()):
        *others, kept = rank(several) if len(several) > 1 else several
        slots.by_index[index] = kept
        slots.excess.extend(others)
    return slots


def parse_index(text: str) -> int | None:
    """Parse the value of an index label; ``None`` if it is no integer."""
    return int(text) if _INTEGER.fullmatch(text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """The objects of one replica type."""

    replica_type: str
    replicas: int
    restart_policy: str
    pods: Slots[Pod]
    services: Slots[Service]
    current: Mapping[int, Pod]
    """Pods by index, without those of an earlier run of the job, and without *rejected* ones."""
    restarting: tuple[Pod, ...]
    """Failed pods that are created again."""
    rejected: tuple[Pod, ...]
    """Pods that a kubelet rejected before a container started: they are created again, too, and
    count neither as failed nor as restarted."""
    fails_job: bool
    """Whether a program has failed with an exit code that is not retried."""


def replica_groups(view: TrainingView, started: str | None) -> tuple[ReplicaGroup, ...]:
    """Return the objects of each replica type of a job that was started at *started*."""
    pods, services = _by_type(view.pods), _by_type(view.services)
    return tuple(
        _group(view, name, pods.get(name.lower(), []), services.get(name.lower(), []), started)
        for name in view.job.spec.replica_specs
    )


def first_failure(groups: Iterable[ReplicaGroup]) -> str:
    """Return the name of the first failed pod and why it failed; empty if that is not known."""
    for group in groups:
        for _, pod in sorted(group.current.items()):
            if pod.phase == PodPhase.FAILED and (cause := pod.failure):
                return f"{pod.metadata.name}: {cause}"
    return ""


def count(group: ReplicaGroup, *, terminating_counts_as_failed: bool) -> ReplicaCounts:
    """Count the pods of this run by phase."""
    active = succeeded = failed = 0
    for pod in group.current.values():
        match pod.phase:
            case PodPhase.RUNNING if pod.is_terminating and terminating_counts_as_failed:
                failed += 1
            case PodPhase.RUNNING:
                active += 1
            case PodPhase.SUCCEEDED:
                succeeded += 1
            case PodPhase.FAILED:
                failed += 1
    return ReplicaCounts(replicas=group.replicas, active=active, succeeded=succeeded, failed=failed)


def _group(
    view: TrainingView,
    replica_type: str,
    pods: list[Pod],
    services: list[Service],
    started: str | None,
) -> ReplicaGroup:
    spec = view.job.spec.replica_specs[replica_type]
    number = spec.replicas or 0
    index_of = _index if view.framework.has_index(replica_type) else _only_index
    pod_slots = arrange(pods, number, index_of=index_of, rank=deletion_order)
    of_this_run = {
        index: pod
        for index, pod in pod_slots.by_index.items()
        if not deletion_requested_by(pod, started)
    }
    rejected = {
        index: pod
        for index, pod in of_this_run.items()
        if pod.is_rejected and spec.restart_policy != RestartPolicy.NEVER
    }
    current = {index: pod for index, pod in of_this_run.items() if index not in rejected}
    reactions = {
        pod.metadata.uid: reaction(
            spec.restart_policy, exit_code(pod, view.framework.kind.main_container)
        )
        for pod in current.values()
        if pod.phase == PodPhase.FAILED
    }
    return ReplicaGroup(
        replica_type=replica_type,
        replicas=number,
        restart_policy=spec.restart_policy,
        pods=pod_slots,
        services=arrange(services, number, index_of=index_of, rank=_by_name),
        current=current,
        restarting=tuple(
            pod for pod in current.values() if reactions.get(pod.metadata.uid) is Reaction.RESTART
        ),
        rejected=tuple(rejected.values()),
        fails_job=Reaction.FAIL in reactions.values(),
    )


def _by_type(objects: Iterable[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for each in objects:
        found.setdefault(each.metadata.labels.get(names.TRAINING_REPLICA_TYPE, ""), []).append(each)
    return found


def _index(obj: HasMeta) -> int | None:
    return parse_index(obj.metadata.labels.get(names.TRAINING_REPLICA_INDEX, ""))


def _only_index(obj: HasMeta) -> int | None:
    """Return the index of a replica type without indices."""
    return 0


def _by_name(services: Iterable[Service]) -> list[Service]:
    return sorted(services, key=lambda each: each.metadata.name)
