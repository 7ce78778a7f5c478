"""PaddlePaddle: PaddleJob."""

import msgspec

from ...model.field_errors import ErrorList
from ...model.names import TRAINING_GROUP, Resource
from ...model.training.elastic import (
    RANGE_SCHEMA,
    WORKER,
    ElasticRange,
    default_range,
    validate_range,
)
from ...model.training.kinds import TrainingKind
from ...model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from .base import Framework


class PaddleSpec(TrainingSpec, frozen=True):
    """``spec`` of a PaddleJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="paddleReplicaSpecs")
    elastic_policy: ElasticRange | None = None


class Paddle(Framework[PaddleSpec]):
    """PaddleJob: collective without a master, else with the master as parameter server."""

    kind = TrainingKind(
        resource=Resource(TRAINING_GROUP, "v1", "paddlejobs", "PaddleJob"),
        description="A training job of PaddlePaddle.",
        framework="paddle",
        replica_field="paddleReplicaSpecs",
        replica_types=("Master", WORKER),
        main_container="paddle",
        port_name="master",
        port=36543,
        restart_policy=RestartPolicy.ON_FAILURE,
        scalable=True,
    )
    job_type = TrainingJob[PaddleSpec]
    spec_schema = {
        "elasticPolicy": {
            "description": "Settings of a job whose number of workers may change.",
            "type": "object",
            "properties": RANGE_SCHEMA,
        }
    }

    def default_spec(self, spec: PaddleSpec) -> PaddleSpec:
        """Default the elastic range."""
        policy = spec.elastic_policy
        if policy is not None and (ranged := default_range(policy, spec)) is not policy:
            return msgspec.structs.replace(spec, elastic_policy=ranged)
        return spec

    def validate_spec(self, spec: PaddleSpec, errors: ErrorList) -> None:
        """Validate the elastic range."""
        if spec.elastic_policy is not None:
            validate_range(
                spec.elastic_policy,
                workers=WORKER in spec.replica_specs,
                replica_field=self.kind.replica_field,
                errors=errors,
            )


FRAMEWORK = Paddle()
