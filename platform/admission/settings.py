"""Settings of the admission rules."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..model.job_size import MAX_PODS
from ..model.notification_destinations import NotificationRules
from ..model.training.framework_api import FrameworkApi
from .resource_groups import ResourceGroup

JOB_PLUGINS = frozenset(
    ("ssh", "env", "svc", "tensorflow", "mpi", "pytorch", "hcclrank", "ray", "array"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Flags of the admission server that its rules depend on."""

    scheduler_names: tuple[str, ...] = ("volcano",)
    """Schedulers whose pods are validated; the first is the default of Jobs."""

    max_pods_per_job: int = MAX_PODS
    """Maximum number of the pods of one Volcano job or training job."""

    frameworks: Sequence[FrameworkApi[Any]] = ()
    """The kinds of training jobs that are validated. They are defined in the training controller,
    which admission does not import: the command line passes them."""

    max_queue_depth: int = 5
    """Maximum depth of a leaf queue below root."""

    root_queue_protection: bool = True
    """Whether to deny changes of the root queue's resources."""

    queue_allocated_pods_check: bool = False
    """Whether to deny the deletion of a queue with allocated pods."""

    job_plugins: frozenset[str] = JOB_PLUGINS
    """Available job plugins; the CLI adds those of entry points."""

    notifications: NotificationRules = field(
        default_factory=lambda: NotificationRules(is_known=False)
    )
    """Whether notifications are sent, and where to: others cause a warning."""

    queue_gates: bool = False
    """Whether to add the queue's scheduling gate to new pods that request it."""

    resource_groups: tuple[ResourceGroup, ...] = ()
    """Fields set on new pods; the first matching group applies."""
