"""What an administrator can set about admission."""

from dataclasses import dataclass

from .resource_groups import ResourceGroup

JOB_PLUGINS = frozenset(
    ("ssh", "env", "svc", "tensorflow", "mpi", "pytorch", "hcclrank", "ray"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """The flags of the admission server that its rules depend on."""

    scheduler_names: tuple[str, ...] = ("volcano",)
    """Schedulers whose pods are checked; a job without one gets the first."""

    max_queue_depth: int = 5
    """Queues between the root queue and a leaf, the leaf counted."""

    root_queue_protection: bool = True
    """Whether the resources of the root queue are fixed."""

    queue_allocated_pods_check: bool = False
    """Whether a queue whose pods hold resources can be kept from deletion."""

    job_plugins: frozenset[str] = JOB_PLUGINS
    """Job plugins that the controllers know; the commands add those of other packages."""

    queue_gates: bool = False
    """Whether pods that ask for it get the gate of their queue when they are created."""

    resource_groups: tuple[ResourceGroup, ...] = ()
    """What pods are given when they are created; the first group that takes a pod counts."""
