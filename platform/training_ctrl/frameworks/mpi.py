"""MPI: MPIJob."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ...model.field_errors import ErrorList
from ...model.pod import PodPhase
from ...model.training import kinds
from ...model.training.types import (
    CleanPodPolicy,
    ReplicaSpec,
    TrainingJob,
    TrainingSpec,
)
from ..core_types import Pod
from ..dependents import DesiredObject
from ..replica_pods import EVICTED
from . import _mpi_objects as mpi_objects
from .base import (
    WORKER,
    Evaluation,
    Failed,
    Framework,
    Json,
    Member,
    Observation,
    PodSettings,
    replicas,
)

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

    kind = kinds.MPI
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

    terminating_counts_as_failed = False
    leaders = (LAUNCHER,)
    watched = mpi_objects.RESOURCES

    def has_index(self, replica_type: str) -> bool:
        """Return whether pods of this type have an index: the launcher has none."""
        return replica_type != LAUNCHER

    def creation_order(self, job: TrainingJob[MpiSpec]) -> Sequence[str]:
        """Return the replica types in the order of their creation: the launcher is the last."""
        return tuple(reversed(job.spec.replica_specs))

    def shape_pod(self, pod: Json, member: Member[MpiSpec]) -> None:
        """Mount the scripts; the launcher gets kubectl and the variables of Open MPI."""
        job = member.job
        if member.replica_type == LAUNCHER:
            account = pod["spec"].get("serviceAccountName") or self._launcher(job)
            pod["spec"]["serviceAccountName"] = account
            mpi_objects.shape_launcher(
                pod,
                job.metadata,
                config=self._config(job),
                image=member.settings.mpi_kubectl_delivery_image,
            )
        else:
            mpi_objects.shape_worker(pod, config=self._config(job))

    def objects(
        self,
        job: TrainingJob[MpiSpec],
        pods: Mapping[str, Mapping[int, Pod]],
        settings: PodSettings,
    ) -> Sequence[DesiredObject]:
        """Return service account, ConfigMap, Role and RoleBinding of the launcher."""
        workers = replicas(job.spec.replica_specs[WORKER]) if self._has_workers(job) else 0
        cluster = mpi_objects.MpiCluster(
            launcher=self._launcher(job),
            config=self._config(job),
            job=job.metadata.name,
            workers=tuple(
                self.pod_name(job.metadata.name, WORKER, index) for index in range(workers)
            ),
            running=tuple(
                pod.metadata.name
                for pod in pods.get(WORKER, {}).values()
                if pod.phase == PodPhase.RUNNING
            ),
            slots=job.spec.slots_per_worker or 1,
            main_container=job.spec.main_container,
            launcher_template=job.spec.replica_specs[LAUNCHER].template,
        )
        return mpi_objects.desired_objects(cluster)

    def evaluate(self, seen: Observation[MpiSpec]) -> Iterable[Evaluation]:
        """The launcher decides how the job ends; the job runs once launcher and workers run."""
        launcher = seen.counts[LAUNCHER]
        if launcher.expected == 0:
            yield self.succeeded(seen.job)
            return
        if launcher.active and all(
            counts.active == counts.replicas for counts in seen.counts.values()
        ):
            yield self.running(seen.job)
        for replica_type, counts in seen.counts.items():
            if counts.failed:
                failure = self.failure(seen, replica_type)
                pods = seen.pods.get(replica_type, {}).values()
                evicted = any(pod.status.reason == EVICTED for pod in pods)
                if evicted and isinstance(failure, Failed):
                    failure = Failed(failure.message, "Evicted")
                yield failure

    def _has_workers(self, job: TrainingJob[MpiSpec]) -> bool:
        return WORKER in job.spec.replica_specs

    def _launcher(self, job: TrainingJob[MpiSpec]) -> str:
        return self.pod_name(job.metadata.name, LAUNCHER, 0)

    def _config(self, job: TrainingJob[MpiSpec]) -> str:
        return f"{job.metadata.name}-config"


FRAMEWORK = Mpi()
