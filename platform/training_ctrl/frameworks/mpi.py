"""MPI: MPIJob."""

import msgspec

from ...model.field_errors import ErrorList
from ...model.names import TRAINING_GROUP, Resource
from ...model.training.kinds import TrainingKind
from ...model.training.types import (
    CleanPodPolicy,
    ReplicaSpec,
    RestartPolicy,
    TrainingJob,
    TrainingSpec,
)
from .base import Framework

LAUNCHER = "Launcher"


class MpiSpec(TrainingSpec, frozen=True):
    """``spec`` of an MPIJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="mpiReplicaSpecs")
    slots_per_worker: int | None = None
    clean_pod_policy: str | None = None
    """Older form of ``runPolicy.cleanPodPolicy``, which has precedence."""
    main_container: str = ""


class Mpi(Framework[MpiSpec]):
    """MPIJob: the launcher starts the processes in the workers."""

    kind = TrainingKind(
        resource=Resource(TRAINING_GROUP, "v1", "mpijobs", "MPIJob"),
        description="A training job whose launcher starts processes in the workers by MPI.",
        framework="mpi",
        replica_field="mpiReplicaSpecs",
        replica_types=(LAUNCHER, "Worker"),
        main_container="mpi",
        port_name="mpi-port",
        port=9999,
        adds_port=False,
        restart_policy=RestartPolicy.NEVER,
        needs_main_container=False,
        has_services=False,
    )
    job_type = TrainingJob[MpiSpec]
    spec_schema = {
        "slotsPerWorker": {
            "description": "Number of processes per worker. Defaults to 1.",
            "type": "integer",
            "format": "int32",
            "minimum": 1,
        },
        "cleanPodPolicy": {
            "description": "Older form of runPolicy.cleanPodPolicy, which has precedence.",
            "type": "string",
            "enum": list(CleanPodPolicy),
        },
        "mainContainer": {
            "description": "Container of the workers in which the processes are started.",
            "type": "string",
        },
    }

    def pod_name(self, job: str, replica_type: str, index: int) -> str:
        """Return the name of a pod; the launcher's has no index."""
        if replica_type == LAUNCHER:
            return f"{job}-launcher".replace("/", "-")
        return super().pod_name(job, replica_type, index)

    def default_replicas(self, replica_type: str) -> int:
        """Return the default number of replicas: one launcher, no worker."""
        return 1 if replica_type == LAUNCHER else 0

    def default_spec(self, spec: MpiSpec) -> MpiSpec:
        """Default the slots, and keep both clean-up policies equal."""
        policy = spec.run_policy.clean_pod_policy or spec.clean_pod_policy or CleanPodPolicy.NONE
        if spec.run_policy.clean_pod_policy != policy:
            run_policy = msgspec.structs.replace(spec.run_policy, clean_pod_policy=policy)
            spec = msgspec.structs.replace(spec, run_policy=run_policy)
        if spec.clean_pod_policy != policy:
            spec = msgspec.structs.replace(spec, clean_pod_policy=policy)
        if spec.slots_per_worker is None:
            spec = msgspec.structs.replace(spec, slots_per_worker=1)
        return spec

    def validate_spec(self, spec: MpiSpec, errors: ErrorList) -> None:
        """Require one launcher."""
        path = f"spec.{self.kind.replica_field}[{LAUNCHER}]"
        launcher = spec.replica_specs.get(LAUNCHER)
        if launcher is None:
            errors.required(path)
        elif launcher.replicas not in (None, 1):
            errors.add(f"{path}.replicas", "Forbidden: must be 1")
        errors.out_of_range("spec.slotsPerWorker", spec.slots_per_worker, minimum=1)
        policy = spec.clean_pod_policy or ""
        errors.not_supported("spec.cleanPodPolicy", policy, tuple(CleanPodPolicy))


FRAMEWORK = Mpi()
