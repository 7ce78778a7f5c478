"""JAX: JAXJob."""

from collections.abc import Iterator

import msgspec

from ...model.training import kinds
from ...model.training.types import ReplicaSpec, TrainingJob, TrainingSpec
from .base import WORKER, Framework, Json, Member, add_env, total_replicas


class JaxSpec(TrainingSpec, frozen=True):
    """``spec`` of a JAXJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="jaxReplicaSpecs")


class Jax(Framework[JaxSpec]):
    """JAXJob: worker 0 coordinates the others."""

    kind = kinds.JAX
    job_type = TrainingJob[JaxSpec]

    def shape_pod(self, pod: Json, member: Member[JaxSpec]) -> None:
        """Add the variables of ``jax.distributed``."""
        add_env(pod, self.environment(member))

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

    def running_message(self, job: TrainingJob[JaxSpec]) -> str:
        """Return the message of the condition Running."""
        return f"JAXJob {job.metadata.key} is running."

    def success_message(self, job: TrainingJob[JaxSpec]) -> str:
        """Return the message of the condition Succeeded."""
        return f"JAXJob {job.metadata.key} successfully completed."


FRAMEWORK = Jax()
