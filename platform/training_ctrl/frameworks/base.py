"""What a framework defines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import msgspec

from ...model.names import Resource
from ...model.training.framework_api import FrameworkApi
from ...model.training.templates import main_container
from ...model.training.types import ReplicaSpec, RestartPolicy, S, TrainingJob
from ..core_types import Pod
from ..dependents import DesiredObject

Json = dict[str, Any]
"""An object as decoded JSON."""

MASTER, WORKER = "Master", "Worker"


class PortNotFoundError(ValueError):
    """The main container of a template lacks the port that the other pods need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """Settings of the operator that its pods depend on."""

    cluster_domain: str = ""
    """Domain of the cluster, appended to the addresses in ``TF_CONFIG``."""

    pytorch_init_image: str = "alpine:3.10"
    """Image of the init container that waits for the master; empty for none."""

    pytorch_init_tries: int = 100
    """Attempts of that init container."""

    pytorch_init_template: str = ""
    """YAML list of init containers instead of the built-in one, with ``{{.MasterAddr}}``,
    ``{{.InitContainerImage}}`` and ``{{.MaxTries}}``."""

    mpi_kubectl_delivery_image: str = "kubeflow/kubectl-delivery:latest"
    """Image of the init container that brings kubectl to the launcher."""


@dataclass(frozen=True, slots=True)
class Member(Generic[S]):
    """Type and index of a pod, and its job, which has defaults."""

    job: TrainingJob[S]
    replica_type: str
    index: int
    settings: PodSettings = PodSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounts:
    """Pods of one replica type."""

    replicas: int
    active: int = 0
    """Running pods."""
    succeeded: int = 0
    failed: int = 0
    """Failed pods, and running ones that are terminating."""

    @property
    def expected(self) -> int:
        """Number of replicas that have not succeeded."""
        return self.replicas - self.succeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Generic[S]):
    """A job, with defaults, and its pods."""

    job: TrainingJob[S]
    counts: Mapping[str, ReplicaCounts]
    """By replica type, in the order in which they are evaluated."""
    pods: Mapping[str, Mapping[int, Pod]]
    """By replica type and index."""
    restarting: bool = False
    """Whether the condition Restarting is True, or pods are restarted now."""


@dataclass(frozen=True, slots=True)
class Running:
    """The job is running."""

    message: str


@dataclass(frozen=True, slots=True)
class Restarting:
    """Pods are created again."""

    message: str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The job has succeeded."""

    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The job has failed."""

    message: str
    reason: str = ""
    """Suffix of the condition's reason, if it is not ``Failed``."""


Evaluation = Running | Restarting | Succeeded | Failed


class Framework(FrameworkApi[S], Generic[S]):
    """One framework: the API of its kind, and how its pods find each other.

    All methods are pure. Jobs that they get have defaults.
    """

    watched: ClassVar[Sequence[Resource]] = ()
    """Resources of :meth:`objects`."""

    # The pods.

    def shape_pod(self, pod: Json, member: Member[S]) -> None:
        """Add to *pod* what it needs to find the others, by default :meth:`environment`.

        Raises:
            PortNotFoundError: a template lacks a port.
        """
        add_env(pod, self.environment(member))

    def environment(self, member: Member[S]) -> Iterable[tuple[str, object]]:
        """Return the variables that each container of a pod gets.

        Raises:
            PortNotFoundError: a template lacks a port.
        """
        return ()

    leaders: ClassVar[Sequence[str]] = (MASTER,)
    """Replica types whose pods get the label of the master."""

    def is_master(self, job: TrainingJob[S], replica_type: str, index: int) -> bool:
        """Return whether a pod gets the label of the master: a leader, or worker 0 without one."""
        if any(leader in job.spec.replica_specs for leader in self.leaders):
            return replica_type in self.leaders
        return replica_type == WORKER and index == 0

    def has_index(self, replica_type: str) -> bool:
        """Return whether the names and labels of this type's pods contain an index."""
        return True

    def creation_order(self, job: TrainingJob[S]) -> Sequence[str]:
        """Return the replica types in the order in which their pods are created."""
        return tuple(job.spec.replica_specs)

    # Other objects.

    def objects(
        self, job: TrainingJob[S], pods: Mapping[str, Mapping[int, Pod]], settings: PodSettings
    ) -> Sequence[DesiredObject]:
        """Return the objects that must exist before the pods, in order."""
        return ()

    def obsolete_objects(self, job: TrainingJob[S]) -> Sequence[DesiredObject]:
        """Return objects, without content, that must not exist."""
        return ()

    # The status.

    terminating_counts_as_failed: ClassVar[bool] = True
    """Whether a running pod that is terminating counts as failed: its node may be lost."""

    def evaluate(self, seen: Observation[S]) -> Iterable[Evaluation]:
        """Return what follows from the pods, in order; Succeeded ends the evaluation.

        By default: with a master, the master decides; else all workers.
        """
        for replica_type, counts in seen.counts.items():
            if replica_type == MASTER or MASTER not in seen.counts:
                if counts.expected == 0 or self.succeeds_early(seen, replica_type):
                    yield self.succeeded(seen.job)
                    return
                if counts.active:
                    yield self.running(seen.job)
            if counts.failed and counts.replicas > counts.succeeded + counts.active:
                yield self.failure(seen, replica_type)  # they were not created again yet

    def succeeds_early(self, seen: Observation[S], replica_type: str) -> bool:
        """Return whether the job succeeds although pods of *replica_type* are missing."""
        return False

    def failure(self, seen: Observation[S], replica_type: str) -> Failed | Restarting:
        """Return what follows from failed pods by the restart policy."""
        number = seen.counts[replica_type].failed
        if seen.job.spec.replica_specs[replica_type].restart_policy == RestartPolicy.NEVER:
            return Failed(self.message(self.failure_text, seen.job, replica_type, number))
        return Restarting(self.message(self.restart_text, seen.job, replica_type, number))

    # Messages of conditions; see :meth:`message` for the fields.

    running_text: ClassVar[str] = "{kind} {name} is running."
    success_text: ClassVar[str] = "{kind} {name} is successfully completed."
    failure_text: ClassVar[str] = (
        "{kind} {name} is failed because {number} {replica_type} replica(s) failed."
    )
    restart_text: ClassVar[str] = (
        "{kind} {name} is restarting because {number} {replica_type} replica(s) failed."
    )

    def running(self, job: TrainingJob[S]) -> Running:
        """Return that *job* runs."""
        return Running(self.message(self.running_text, job))

    def succeeded(self, job: TrainingJob[S]) -> Succeeded:
        """Return that *job* has succeeded."""
        return Succeeded(self.message(self.success_text, job))

    def message(
        self, text: str, job: TrainingJob[S], replica_type: str = "", number: int = 0
    ) -> str:
        """Fill in *kind*, *name* and *key* of the job, and *number* of failed *replica_type*."""
        meta = job.metadata
        fields = {"kind": self.kind.name, "name": meta.name, "key": meta.key}
        return text.format(**fields, replica_type=replica_type, number=number)

    # Helpers.

    def port(self, job: TrainingJob[S], replica_type: str, default: int | None = None) -> int:
        """Return the port of a replica type.

        Raises:
            PortNotFoundError: the main container has no port of this name, and there is no default.
        """
        container = main_container(
            job.spec.replica_specs[replica_type].template, self.kind.main_container
        )
        port = container.port(self.kind.port_name) if container is not None else None
        if (port := port or default) is None:
            raise PortNotFoundError("port not found")
        return port


def total_replicas(job: TrainingJob[Any]) -> int:
    """Return the number of pods of *job*."""
    return sum(replicas(spec) for spec in job.spec.replica_specs.values())


def replicas(spec: ReplicaSpec) -> int:
    """Return the number of replicas of a type with defaults."""
    return spec.replicas or 0


def containers(pod: Json) -> list[Json]:
    """Return the containers of *pod*, without init containers."""
    found: list[Json] = pod["spec"].get("containers") or []
    return found


def append_env(container: Json, variables: Iterable[tuple[str, object]]) -> None:
    """Append variables to *container*; a dict, such as ``valueFrom``, is kept; else it is text."""
    env = [
        {"name": name, **value} if isinstance(value, dict) else {"name": name, "value": str(value)}
        for name, value in variables
    ]
    container["env"] = [*(container.get("env") or ()), *env]


def add_env(pod: Json, variables: Iterable[tuple[str, object]]) -> None:
    """Append variables to each container; the last variable of a name counts."""
    given = tuple(variables)
    for container in containers(pod):
        append_env(container, given)


def decode_raw(raw: msgspec.Raw) -> Any:
    """Decode raw JSON."""
    return msgspec.json.decode(raw)
