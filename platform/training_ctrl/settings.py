"""Settings of the training controller."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from ..machinery.reconcile.controller import ControllerSettings
from ..model.job_size import MAX_PODS
from ..model.names import TRAINING_OPERATOR
from .frameworks.base import PodSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings(ControllerSettings):
    """Settings of a :class:`~batholith.training_ctrl.controller.TrainingController`."""

    kinds: Sequence[str] = ()
    """Kinds to reconcile, upper or lower case; empty for all."""

    namespace: str = ""
    """Namespace whose jobs are reconciled; empty for all."""

    workers: int = 1
    """Concurrent reconciles of each kind."""

    max_pods_per_job: int = MAX_PODS
    """Number of pods above which a job fails, without any of them being created."""

    gang_scheduler_name: str = ""
    """Scheduler that gets PodGroups: empty for none, ``volcano`` for Volcano's; the pods of any
    other name get PodGroups of the scheduler plugins of Kubernetes."""

    managed_by: Sequence[str] = ("", TRAINING_OPERATOR)
    """Values of ``runPolicy.managedBy`` whose jobs are reconciled; empty if the field is unset."""

    pods: PodSettings = field(default_factory=PodSettings)
    """Settings that pods depend on."""

    ttl_waits_for_history: bool = False
    """Whether an expired job is deleted only after the recorder of the history has annotated it, or
    ten minutes later."""

    count_interval: float = 1.0
    """Minimum seconds between two writes of a job's counts; conditions are written at once."""

    served_interval: float = 10.0
    """Seconds between two checks of which kinds the API server has."""

    registry: CollectorRegistry | None = None
    """Registry for metrics, if any."""


class UnknownKindError(ValueError):
    """No framework has the kind."""

    def __init__(self, kind: str, known: Sequence[str]) -> None:
        super().__init__(f"unknown kind {kind!r}; known are {', '.join(known)}")
