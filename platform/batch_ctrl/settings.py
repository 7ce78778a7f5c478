"""Settings of the Job controller."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from ..machinery.reconcile.controller import ControllerSettings
from .core_types import BUILT_IN_CONTROLLER, OUR_CONTROLLER

UNMANAGED = ""
"""Value for Jobs without ``spec.managedBy``."""

OWN_JOBS = frozenset({OUR_CONTROLLER})
"""Jobs to reconcile in a cluster with kube-controller-manager."""

ALL_JOBS = frozenset({UNMANAGED, BUILT_IN_CONTROLLER, OUR_CONTROLLER})
"""Jobs to reconcile where no other Job controller runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJobSettings(ControllerSettings):
    """Settings of a :class:`~batholith.batch_ctrl.controller.BatchJobController`."""

    managed_by: frozenset[str] = OWN_JOBS
    """Values of ``spec.managedBy`` of the Jobs to reconcile. By default not those of
    kube-controller-manager, which runs on every cluster but the embedded one (`ALL_JOBS`)."""

    delete_finished: bool = False
    """Delete finished Jobs of any controller after ``spec.ttlSecondsAfterFinished``. Off by
    default, because kube-controller-manager does that."""

    ttl_waits_for_history: bool = False
    """Whether an expired Job is deleted only after the recorder of the history has annotated it, or
    ten minutes later."""

    namespace: str = ""
    """Namespace whose Jobs are reconciled; empty for all."""

    max_writes_in_flight: int = 48
    """Maximum number of concurrent writes of pods. Lower than the client's limit, so that a status
    write does not wait for thousands of pods."""

    batch_delay: float = 1.0
    """Seconds for which changes of a Job's pods and status are collected before a sync."""

    unconfirmed_timeout: float = 60.0
    """Seconds after which a pod whose creation had no response counts as not created: by then the
    API server has ended the request. Until then the Job does not end."""

    registry: CollectorRegistry | None = None
    """Registry for metrics, if any."""

    @property
    def manages_default(self) -> bool:
        """Whether Jobs of unknown origin are this controller's, too."""
        return UNMANAGED in self.managed_by
