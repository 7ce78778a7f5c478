"""JAX: JAXJob."""

import msgspec

from ...model.names import TRAINING_GROUP, Resource
from ...model.training.kinds import TrainingKind
from ...model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from .base import Framework


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


FRAMEWORK = Jax()
