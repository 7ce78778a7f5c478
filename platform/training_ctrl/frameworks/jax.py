"""JAX: JAXJob."""

from collections.abc import Iterator

import msgspec

from ...model.names import TRAINING_GROUP, Resource
from ...model.training.kinds import TrainingKind
from ...model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from .base import WORKER, Framework, Member, total_replicas


class JaxSpec(TrainingSpec, frozen=True):
    """``spec`` of a JAXJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="jaxReplicaSpecs")


class Jax(Framework[JaxSpec]):
    """JAXJob: worker 0 coordinates the others."""

    kind = TrainingKind(
        resource=Resource(TRAINING_GROUP, "v1", "jaxjobs", "JAXJob"),
        description="A training job of JAX.",
        framework="jax",
        replica_field="jaxReplicaSpecs",
        replica_types=("Worker",),
        main_container="jax",
        port_name="jaxjob-port",
        port=6666,
        restart_policy=RestartPolicy.NEVER,
        scalable=True,
    )
    job_type = TrainingJob[JaxSpec]

    running_text = "{kind} {key} is running."
    success_text = "{kind} {key} successfully completed."

    def environment(self, member: Member[JaxSpec]) -> Iterator[tuple[str, object]]:
        """Yield the variables of one pod.

        Raises:
            PortNotFoundError: the template lacks the port.
        """
        job = member.job
        yield "PYTHONUNBUFFERED", 1
        yield "COORDINATOR_PORT", self.port(job, WORKER)
        yield "COORDINATOR_ADDRESS", self.pod_name(job.metadata.name, WORKER, 0)
        yield "NUM_PROCESSES", total_replicas(job)
        yield "PROCESS_ID", member.index


FRAMEWORK = Jax()
