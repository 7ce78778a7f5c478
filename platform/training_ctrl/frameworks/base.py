"""What a framework defines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import msgspec

from ...model.names import Resource
from ...model.training.framework_api import FrameworkApi
from ...model.training.templates import main_container
from ...model.training.types import ReplicaSpec, RestartPolicy, S, TrainingJob
from ..core_types import Pod
from ..dependents import DesiredObject
from ..observation import Evaluation, Failed, Observation, Restarting, Running, Succeeded

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


class Framework(FrameworkApi[S], Generic[S]):
    """One framework: the API of its kind, and how its pods find each other.

    All methods are pure. Jobs that they get have defaults.
    """

    watched: ClassVar[Sequence[Resource]] = ()
    """Resources of :meth:`objects`."""

    # The pods.

    def shape_pod(self, pod: Json, member: Member[S]) -> None:
        """Add to *pod* what it needs to find the others.

        Raises:
            PortNotFoundError: a template lacks a port.
        """

    def is_master(self, job: TrainingJob[S], replica_type: str, index: int) -> bool:
        """Return whether a pod gets the label of the master: the Master, or else worker 0."""
        if MASTER in job.spec.replica_specs:
            return replica_type == MASTER
        return replica_type == WORKER and index == 0

    def has_index(self, replica_type: str) -> bool:
        """Return whether pods of this type have an index in name and labels."""
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
                    yield Succeeded(self.success_message(seen.job))
                    return
                if counts.active:
                    yield Running(self.running_message(seen.job))
            yield from self.evaluate_failures(seen, replica_type)

    def succeeds_early(self, seen: Observation[S], replica_type: str) -> bool:
        """Return whether the job succeeds although pods of *replica_type* are missing."""
        return False

    def evaluate_failures(self, seen: Observation[S], replica_type: str) -> Iterator[Evaluation]:
        """Yield what follows from failed pods that were not created again yet."""
        counts = seen.counts[replica_type]
        if not counts.failed or counts.replicas <= counts.succeeded + counts.active:
            return
        policy = seen.job.spec.replica_specs[replica_type].restart_policy
        if policy == RestartPolicy.NEVER:
            yield Failed(self.failure_message(seen.job, replica_type, counts.failed))
        else:
            yield Restarting(self.restart_message(seen.job, replica_type, counts.failed))

    def running_message(self, job: TrainingJob[S]) -> str:
        """Return the message of the condition Running."""
        return f"{self.kind.name} {job.metadata.name} is running."

    def success_message(self, job: TrainingJob[S]) -> str:
        """Return the message of the condition Succeeded."""
        return f"{self.kind.name} {job.metadata.name} is successfully completed."

    def failure_message(self, job: TrainingJob[S], replica_type: str, number: int) -> str:
        """Return the message of the condition Failed."""
        return (
            f"{self.kind.name} {job.metadata.name} is failed because "
            f"{number} {replica_type} replica(s) failed."
        )

    def restart_message(self, job: TrainingJob[S], replica_type: str, number: int) -> str:
        """Return the message of the condition Restarting."""
        return (
            f"{self.kind.name} {job.metadata.name} is restarting because "
            f"{number} {replica_type} replica(s) failed."
        )

    # Helpers.

    def port(self, job: TrainingJob[S], replica_type: str) -> int:
        """Return the port of a replica type.

        Raises:
            PortNotFoundError: the main container has no port of this name.
        """
        container = main_container(
            job.spec.replica_specs[replica_type].template, self.kind.main_container
        )
        port = container.port(self.kind.port_name) if container is not None else None
        if port is None:
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
    """Append variables to *container*: an object is the source of a value, else its text."""
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
