"""Which pods and Services of a job are deleted. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from ..model.meta import HasMeta
from ..model.pod import PodPhase
from ..model.training.types import CleanPodPolicy
from .core_types import Pod, Service

T = TypeVar("T", bound=HasMeta)

_RUNNING = (PodPhase.RUNNING, PodPhase.PENDING)
"""Phases of the pods that are deleted under policy Running."""


@dataclass(frozen=True, slots=True)
class Deletions:
    """Pods and Services to delete."""

    pods: tuple[Pod, ...] = ()
    services: tuple[Service, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is anything to delete."""
        return bool(self.pods or self.services)


def of_finished_job(
    policy: str | None, pods: Iterable[Pod], services: Iterable[Service]
) -> Deletions:
    """Return what is deleted of a finished job with this cleanPodPolicy.

    A Service stays if its pod does; one without a pod is deleted.
    """
    if policy in (None, CleanPodPolicy.NONE):
        return Deletions()
    if policy == CleanPodPolicy.ALL:
        return of_unfinished_job(pods, services)
    pods = tuple(pods)
    kept = {pod.metadata.name for pod in pods if pod.phase not in _RUNNING}
    return Deletions(
        _not_terminating(pod for pod in pods if pod.phase in _RUNNING),
        _not_terminating(each for each in services if each.metadata.name not in kept),
    )


def of_unfinished_job(pods: Iterable[Pod], services: Iterable[Service]) -> Deletions:
    """Return what is deleted of a job that is suspended or exceeds a limit: everything."""
    return Deletions(_not_terminating(pods), _not_terminating(services))


def _not_terminating(objects: Iterable[T]) -> tuple[T, ...]:
    return tuple(each for each in objects if each.metadata.deletion_timestamp is None)
